"""The command ``rerank``: documents in the order in which they fit a query."""

import argparse
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from ..functions.progress import Progress
from ..models import MultiVectorEncoder
from ..models.files.hub_cache import find_directory
from ..models.files.late_interaction import is_late_interaction
from ..sentence_transformers import CrossEncoder
from .errors import UserError
from .input_texts import Texts, objects, opened, text_in, texts_given, with_characters
from .model_calls import answers, loaded
from .output import Write, check_lines_output, lines_to, number, refuse_to_replace_source, report
from .shared_arguments import add_model, add_results, formats_of, one_source

about = "documents in the order in which they fit a query, by a cross-encoder or late interaction"

_PAIRS = 64  # pairs scored at once: some seconds of a small model, after which the progress bar moves

_Query = dict[str, Any]  # query, documents, and the other entries of a line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--query", metavar="TEXT", help="the query; default: each line of FILE has its own")
    source = one_source(parser, "rank")
    source.add_argument("documents", metavar="TEXT", nargs="*", default=[], help="a document, or several")
    lines = "a document in each line, in UTF-8; without --query a JSON object: query, and documents, a list"
    source.add_argument("--file", metavar="FILE", help=f"{lines}; - reads standard input")
    add_results(parser, "documents")


def run(options: argparse.Namespace) -> None:
    """Write the documents, the best for the query first. A failure leaves the output as it was."""
    query, directory, output = options.query, options.model, options.output
    if query is None and options.file is None:
        options.usage_error("documents need --query")
    check_lines_output(output)
    refuse_to_replace_source(options.file, output)
    if query is not None:
        (query,) = texts_given([query])
    with opened(options.documents, options.file) as source:
        model = loaded(lambda: _opened(directory, formats_of(options)))
        if model.num_labels != 1:
            raise UserError(f"{directory}: a model for rerank must have a single label; it has {model.num_labels}")
        with lines_to(output) as (write, progress):
            if query is None:
                _rank_each(model, options.top_k, source, write, progress)
            else:
                _rank(model, query, options.top_k, source, write, progress)
        report(output, f"{source.count:,} {'documents' if query is not None else 'queries'}")


class _LateInteraction:
    """A multi-vector encoder with the methods of a cross-encoder that are used here."""

    num_labels = 1

    def __init__(self, model: MultiVectorEncoder) -> None:
        self._model = model

    def predict(self, pairs: list[tuple[str, str]], show_progress_bar: bool = False) -> Any:
        """Return the scores [n] of pairs with one query."""
        documents = self._model.encode_document([text for _, text in pairs])
        return self._model.scores(self._model.encode_query(pairs[0][0]), documents)[0]

    def rank(
        self, query: str, documents: list[str], top_k: int | None, return_documents: bool, show_progress_bar: bool
    ) -> list[dict[str, Any]]:
        """Return the documents, the best first."""
        return self._model.rank(query, documents, top_k=top_k, return_documents=return_documents)


_Model = CrossEncoder | _LateInteraction


def _opened(directory: str, formats: dict[str, Any]) -> _Model:
    try:
        home = find_directory(directory, organization="cross-encoder")
        is_late = is_late_interaction(home)
    except (ImportError, OSError, ValueError):
        is_late = False  # the class below says what is wrong
    if is_late:
        return _LateInteraction(MultiVectorEncoder.from_pretrained(home, **formats))
    return CrossEncoder(directory, model_kwargs=formats)


def _rank(model: _Model, query: str, top_k: int | None, source: Texts, write: Write, progress: Progress) -> None:
    """Write the best documents of `source`, each in a line."""

    def computed(documents: Iterable[str]) -> Iterator[list[float]]:
        texts = iter(documents)
        while some := list(islice(texts, _PAIRS)):
            yield model.predict([(query, text) for text in some], show_progress_bar=False).tolist()

    found: list[tuple[float, str]] = []
    for texts, scores in answers(computed, source, source, progress):
        found += zip(scores, texts, strict=True)
    for i in sorted(range(len(found)), key=lambda i: -found[i][0])[:top_k]:
        score, text = found[i]
        write(f"{json.dumps({'corpus_id': i, 'score': number(score), 'text': text})}\n")


def _rank_each(model: _Model, top_k: int | None, source: Texts, write: Write, progress: Progress) -> None:
    """Write each line of `source`, with a ranking in place of its documents."""

    def computed(queries: Iterable[_Query]) -> Iterator[list[Any]]:
        for given in queries:
            documents = given["documents"]
            yield [model.rank(given["query"], documents, top_k, return_documents=True, show_progress_bar=False)]

    for queries, rankings in answers(computed, objects(source, _checked), source, progress):
        for given, ranking in zip(queries, rankings, strict=True):
            more = {name: value for name, value in given.items() if name != "documents"}
            entries = [entry | {"score": number(entry["score"])} for entry in ranking]
            write(f"{json.dumps(more | {'ranking': entries})}\n")


def _checked(value: dict[str, Any]) -> _Query:
    text_in(value, "query")
    documents = value.get("documents")
    if not isinstance(documents, list) or not all(isinstance(text, str) for text in documents):
        raise UserError("documents must be a list of texts")
    for text in documents:
        with_characters("documents", text)
    return value
