"""The command ``python -m mha_native embed``: sentence embeddings of texts, or of the lines of a file, as they come."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ..functions.progress import Progress
from ..models import SentenceEncoder
from .errors import UserError, complain
from .lines import (
    Texts,
    answers,
    errors_of_models,
    lines_to,
    loaded,
    opened,
    refuse_to_replace_source,
    report,
    texts_given,
)
from .output import Array, JsonLines, Npy, Sink, is_stream, written
from .show_heads import MAX_DRAWN, draw_heads, print_heads

Encode: TypeAlias = Callable[[Iterable[str]], Iterator[Array]]  # texts to their embeddings, some at a time


def run(
    directory: str,
    dtype: str,
    weight_dtype: str | None,
    prompt: Mapping[str, Any],
    texts: list[str],
    path: str | None,
    output: str | None,
) -> None:
    """Embeddings of `texts`, or if there is a `path` of the lines of that file, one after another to `output`.

    `prompt` has the arguments of `SentenceEncoder.encode_batches` by that say what stands before each of them.

    Raises
    ------
    UserError
        Before anything is written; if a disk fills up, `output` is as before.
    """
    if output is not None:
        _check_output(output)
        refuse_to_replace_source(path, output)
    with opened(texts, path) as source:
        model = _load(directory, dtype, weight_dtype)
        encode = partial(model.encode_batches, **{name: given for name, given in prompt.items() if given is not None})
        if output is not None and output.endswith(".npy"):
            with written(output) as target:
                _write(encode, source, Npy(target, model.embed_dim), Progress())
        else:
            with lines_to(output) as (write, progress):
                _write(encode, source, JsonLines(write), progress)
        report(output, f"{source.count:,} embeddings of {model.embed_dim} features")


def explain(directory: str, dtype: str, weight_dtype: str | None, text: str, plot: str | None) -> None:
    """Print what each token of `text` attends to in each layer and head, and draw it to the file `plot`."""
    (readable,) = texts_given([text])
    model = _load(directory, dtype, weight_dtype)
    with errors_of_models():
        tokens, weights = model.attention_weights(readable)  # [layers, H, T, T]
    if not tokens:
        raise UserError("the text has no tokens")
    if plot is not None:
        titles = [f"layer {i + 1}, head {h + 1}" for i in range(model.num_layers) for h in range(model.num_heads)]
        draw_heads(tokens, weights[..., :MAX_DRAWN, :MAX_DRAWN], titles, plot)
    print(f"{len(tokens)} tokens, {model.num_layers} layers of {model.num_heads} heads")
    for layer, of_layer in enumerate(weights):
        print(f"\nLayer {layer + 1}: what each token attends to most, and how much")
        print_heads(tokens, of_layer)
    if plot is not None:
        print(f"\nPlot of {'all' if len(tokens) <= MAX_DRAWN else f'the first {MAX_DRAWN}'} tokens: {plot}")


def _load(directory: str, dtype: str, weight_dtype: str | None) -> SentenceEncoder:
    return loaded(lambda: SentenceEncoder.from_pretrained(directory, dtype=dtype, weight_dtype=weight_dtype))


def _write(encode: Encode, source: Texts, sink: Sink, progress: Progress) -> None:
    count = num_bad = first_bad = 0  # embeddings; those that are not finite; the first of those, counted from 1
    for texts, rows in answers(encode, source, source, progress):
        sink.write(texts, rows)
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if bad.size:
            first_bad = first_bad or count + int(bad[0]) + 1
            num_bad += bad.size
        count += len(rows)
    sink.finish(count)
    if num_bad:
        more = f", and {num_bad - 1:,} more are not" if num_bad > 1 else ""
        complain(f"the embedding of {source.place} {first_bad} is not finite{more}")


def _check_output(output: str) -> None:
    """UserError unless one of the formats can be written to `output`: JSON lines anywhere, .npy to a regular file."""
    if output.endswith(".npy") and is_stream(output):
        raise UserError(f"--output must be a regular file for .npy, whose beginning is written last; got {output}")
    if not output.endswith((".npy", ".jsonl")) and not is_stream(output):
        raise UserError(f"--output must end in .npy or .jsonl; got {output}")
