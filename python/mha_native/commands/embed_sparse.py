"""The command ``embed --sparse``: sparse embeddings of texts, or of the lines of a file."""

import argparse
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ..models import SparseEmbeddings, SparseEncoder
from .errors import complain
from .input_texts import opened
from .model_calls import answers, loaded
from .output import check_lines_output, is_terminal, lines_to, number, refuse_to_replace_source, report, row_of_terminal
from .shared_arguments import count, formats_of

_SHOWN = 8  # tokens of an embedding on a terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of sparse embeddings."""
    sparse = parser.add_argument_group("of sparse embeddings")
    about = "use a SPLADE model; JSON lines have the indices, values and tokens of the numbers that are not zero"
    sparse.add_argument("--sparse", action="store_true", help=about)
    sparse.add_argument("--task", metavar="NAME", help="query or document, for models that treat them differently")
    sparse.add_argument("--max-active-dims", metavar="N", type=count, help="keep this many numbers, the largest")


def run(options: argparse.Namespace) -> None:
    """Write the sparse embedding of each text. A failure leaves the output as it was."""
    output = options.output
    check_lines_output(output)
    refuse_to_replace_source(options.file, output)
    names = ("prompt_name", "prompt", "task", "max_active_dims")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    with opened(options.texts, options.file) as source:
        model = loaded(lambda: SparseEncoder.from_pretrained(options.model, **formats_of(options)))

        def rows(texts: Iterable[str]) -> Iterator[list[SparseEmbeddings]]:
            for found in model.encode_batches(texts, **given):
                yield [found.texts(i, i + 1) for i in range(found.num_texts)]

        to_terminal, num_texts = is_terminal(output), 0
        with lines_to(output) as (write, progress):
            for texts, embeddings in answers(rows, source, source, progress):
                for text, embedding in zip(texts, embeddings, strict=True):
                    num_texts += 1
                    if not np.isfinite(embedding.values).all():
                        complain(f"the embedding of {source.place} {num_texts} is not finite")
                    if to_terminal:
                        write(row_of_terminal("", text))
                        write(row_of_terminal("  ", _shown(model, embedding)))
                    else:
                        write(json.dumps(_entry(model, text, embedding)) + "\n")
        report(output, f"{source.count:,} sparse embeddings of {model.embed_dim} features")


def _entry(model: SparseEncoder, text: str, embedding: SparseEmbeddings) -> dict[str, Any]:
    """Return an embedding for JSON: numbers that are not finite become null."""
    indices = embedding.indices.tolist()
    tokens = [model.token(index) for index in indices]
    return {"text": text, "indices": indices, "values": [*map(number, embedding.values.tolist())], "tokens": tokens}


def _shown(model: SparseEncoder, embedding: SparseEmbeddings) -> str:
    """Return the tokens with the largest numbers, for people."""
    words = [f"{token} {value:.2f}" for token, value in model.decode(embedding, top_k=_SHOWN)[0]]
    more = f" ... {len(embedding.values):,} tokens" if len(embedding.values) > _SHOWN else ""
    return f"{', '.join(words)}{more}"
