"""The command ``python -m mha_native rerank``: documents in the order in which they fit a query."""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from ..functions.progress import Progress
from ..sentence_transformers import CrossEncoder
from .errors import UserError
from .lines import (
    Texts,
    Write,
    answers,
    check_lines_output,
    lines_to,
    loaded,
    objects,
    opened,
    refuse_to_replace_source,
    report,
    text_in,
    texts_given,
    with_characters,
)
from .output import number

_PAIRS = 64  # that are scored at once: some seconds of a small model, after which the progress bar moves

_Query = dict[str, Any]  # with query, documents, and whatever else a line has


def run(
    directory: str,
    dtype: str,
    weight_dtype: str | None,
    query: str | None,
    documents: list[str],
    path: str | None,
    top_k: int | None,
    output: str | None,
) -> None:
    """Write the `documents`, or the lines of the file at `path`, to `output`: the best for the query first.

    Without a query each line of the file is a JSON object with its own ``query`` and ``documents``.

    Raises
    ------
    UserError
        Before anything is written; if a disk fills up, `output` is as before.
    """
    check_lines_output(output)
    refuse_to_replace_source(path, output)
    if query is not None:
        (query,) = texts_given([query])
    with opened(documents, path) as source:
        formats = {"dtype": dtype, "weight_dtype": weight_dtype}
        model = loaded(lambda: CrossEncoder(directory, model_kwargs=formats))
        if model.num_labels != 1:
            raise UserError(f"{directory}: a model for rerank must have a single label; it has {model.num_labels}")
        with lines_to(output) as (write, progress):
            if query is None:
                _rank_each(model, top_k, source, write, progress)
            else:
                _rank(model, query, top_k, source, write, progress)
        report(output, f"{source.count:,} {'documents' if query is not None else 'queries'}")


def _rank(model: CrossEncoder, query: str, top_k: int | None, source: Texts, write: Write, progress: Progress) -> None:
    """Write the best documents that `source` has, each in a line."""

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


def _rank_each(model: CrossEncoder, top_k: int | None, source: Texts, write: Write, progress: Progress) -> None:
    """Write each line that `source` has, with the ranking of its documents in their place."""

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
