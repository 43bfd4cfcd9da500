"""The command ``search``: the lines of a file, or the images, that are most similar to a query."""

import argparse
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from ..sentence_transformers import SentenceTransformer, SparseEncoder
from .errors import UserError
from .input_images import add_images, images_or_texts
from .input_texts import texts_given
from .model_calls import answers, errors_of_models, loaded
from .output import check_lines_output, is_terminal, lines_to, number, refuse_to_replace_source, report, row_of_terminal
from .shared_arguments import add_model, add_results, formats_of, one_source

about = "the lines of a file, or the images, that are most similar to a query, by a model of embeddings"

_TOP_K = 5
_IMAGES = 64
_LINES = 512  # embedded at once: some seconds of a small model, after which the progress bar moves

_Line = tuple[int, str]  # its place in the file, from 0, and its text; or the place and the path of an image


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("query", metavar="QUERY", help="a text; give it before --images, which takes all that follows")
    source = one_source(parser, "search")
    lines = "a text in each line, in UTF-8; - reads standard input; empty lines are passed over"
    source.add_argument("--file", metavar="FILE", help=lines)
    add_images(source)
    parser.add_argument("--sparse", action="store_true", help="use a model of sparse embeddings, such as SPLADE")
    parser.set_defaults(texts=[])
    add_results(parser, "lines or images", _TOP_K)


def run(options: argparse.Namespace) -> None:
    """Write the lines, the most similar one first. A failure leaves the output as it was."""
    output = options.output
    check_lines_output(output)
    refuse_to_replace_source(options.file, output)
    (query,) = texts_given([options.query])
    with images_or_texts(options) as source:
        has_images = options.images is not None
        if has_images and options.sparse:
            raise UserError("--images does not go with --sparse")
        kind: Any = SparseEncoder if options.sparse else SentenceTransformer
        model = loaded(lambda: kind(options.model, model_kwargs=formats_of(options)))
        if has_images and model.modalities != ["text", "image"]:
            raise UserError(f"--images needs a model of images and texts; {options.model} reads one of them")
        with errors_of_models():
            wanted = model.encode_query(query)
        size = _IMAGES if has_images else _LINES

        def scored(lines: Iterable[_Line]) -> Iterator[list[float]]:
            rest = iter(lines)
            while some := [{source.entry: given} if has_images else given for _, given in islice(rest, size)]:
                yield model.similarity(wanted, model.encode_document(some, show_progress_bar=False))[0].tolist()

        lines: Iterable[_Line] = ((place, text) for place, text in enumerate(source) if text.strip())
        best: list[tuple[float, _Line]] = []
        with lines_to(output) as (write, progress):
            for some, scores in answers(scored, lines, source, progress):
                # Numbers that are not finite come last, equal ones in the order of the file.
                found = [*best, *zip(scores, some, strict=True)]
                best = sorted(found, key=lambda entry: (entry[0] != entry[0], -entry[0]))[: options.top_k]
            for score, (place, text) in best:
                if is_terminal(output):
                    write(row_of_terminal(f"{score:6.3f}  {place + 1:>5}  ", text))
                else:
                    write(f"{json.dumps({'corpus_id': place, 'score': number(score), source.entry: text})}\n")
        report(output, f"{len(best):,} of {source.count:,} {'images' if has_images else 'lines'}")
