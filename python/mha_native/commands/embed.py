"""The command ``embed``: embeddings of texts, lines of a file, images, or a folder of files."""

import argparse
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeAlias

import numpy as np

from ..functions.progress import Progress
from ..models import ImageEncoder, SentenceEncoder
from ..models.files.hub_cache import find_directory
from ..models.images.sources import PlacedImage
from ..sentence_transformers._arguments import Formats
from ..sentence_transformers._images import ImageModel, open_image_model
from . import embed_corpus, embed_sparse
from .errors import UserError, complain
from .input_images import Source, add_images, images_or_texts
from .input_texts import texts_given
from .model_calls import answers, errors_of_models, loaded
from .output import (
    Array,
    JsonLines,
    Npy,
    Sink,
    Terminal,
    is_stream,
    is_terminal,
    lines_to,
    refuse_to_replace_source,
    report,
    written,
)
from .shared_arguments import add_model, count, formats_of, one_source
from .show_heads import MAX_DRAWN, draw_heads, print_heads

about = "embeddings of texts, of the lines of a file, or of images, by a pretrained model"

Encode: TypeAlias = Callable[[Iterable[str]], Iterator[Array]]  # from texts to batches of embeddings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument("--prompt-name", metavar="NAME", help="a prompt of the model before each text, such as query")
    prompts.add_argument("--prompt", metavar="TEXT", help="text before each text; default: as the model says")
    source = one_source(parser, "embed")
    source.add_argument("texts", metavar="TEXT", nargs="*", default=[], help="a text, or several")
    source.add_argument("--file", metavar="FILE", help="a text in each line, in UTF-8; - reads standard input")
    add_images(source)
    source.add_argument("--explain", metavar="TEXT", help="show the attention of each token, in each layer and head")
    folder = "with --ray: a folder of files .txt, .jsonl and .parquet; --output is the folder of the results"
    source.add_argument("--input", metavar="DIR", help=folder)
    output = "out.npy or out.jsonl; default: JSON lines to standard output, and on a terminal the first eight numbers"
    parser.add_argument("--output", metavar="PATH", help=output)
    parser.add_argument("--plot", metavar="PATH", help="with --explain: draw the weights, to heads.png for example")
    embed_sparse.add_arguments(parser)
    corpus = parser.add_argument_group("of a folder of files")
    pool = "embed by a pool of actors of Ray; a run that was killed continues where it stopped"
    corpus.add_argument("--ray", action="store_true", help=pool)
    column = "the texts in JSON objects and Parquet files; default: %(default)s"
    corpus.add_argument("--column", metavar="NAME", default="text", help=column)
    corpus.add_argument("--concurrency", metavar="N", type=count, help="limit of actors; default: one per processor")
    threads = "processors and threads of each actor; default: %(default)s"
    corpus.add_argument("--num-cpus", metavar="N", type=count, default=1, help=threads)


def run(options: argparse.Namespace) -> None:
    """Embed texts, lines or a folder, or explain a text, depending on the arguments."""
    refuse = options.usage_error
    if options.ray or options.input is not None:
        if not options.ray or (options.input is None and options.images is None) or options.output is None:
            refuse("--ray, --input and --output go together, or --ray, --images and --output")
        if options.images is not None and (len(options.images) > 1 or options.column != "text"):
            refuse("--ray takes one folder of --images, without --column")
    elif options.explain is not None:
        if options.output is not None:
            refuse("--output does not go with --explain")
        if options.prompt is not None or options.prompt_name is not None:
            refuse("a prompt does not go with --explain")
    if options.sparse and not (options.explain is None and options.images is None):
        refuse("--sparse does not go with --explain or --images")
    if not options.sparse and (options.task is not None or options.max_active_dims is not None):
        refuse("--task and --max-active-dims need --sparse")
    if options.images is not None and (options.prompt is not None or options.prompt_name is not None):
        refuse("a prompt does not go with --images")
    if options.explain is None and options.plot is not None:
        refuse("--plot needs --explain")
    if options.ray:
        embed_corpus.run(options)
    elif options.explain is not None:
        _explain(options)
    elif options.sparse:
        embed_sparse.run(options)
    else:
        _embed(options)


def _embed(options: argparse.Namespace) -> None:
    """Write the embedding of each text. A failure leaves the output as it was."""
    path, output = options.file, options.output
    if output is not None:
        _check_output(output)
        refuse_to_replace_source(path, output)
    with images_or_texts(options) as source:
        model, encode = (_texts_of if options.images is None else _images_of)(options)
        if output is not None and output.endswith(".npy"):
            with written(output) as target:
                _write(encode, source, Npy(target, model.embed_dim), Progress())
        else:
            with lines_to(output) as (write, progress):
                sink = Terminal(write) if is_terminal(output) else JsonLines(write, source.entry)
                _write(encode, source, sink, progress)
        report(output, f"{source.count:,} embeddings of {model.embed_dim} features")


def _explain(options: argparse.Namespace) -> None:
    """Print the key with the largest weight for each token in each layer and head, and draw all weights to a file."""
    (readable,), plot = texts_given([options.explain]), options.plot
    model = _load(options)
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


def _load(options: argparse.Namespace) -> SentenceEncoder:
    return loaded(lambda: SentenceEncoder.from_pretrained(options.model, **formats_of(options)))


def _texts_of(options: argparse.Namespace) -> tuple[SentenceEncoder | ImageModel, Encode]:
    """Open a model of texts, or of images and texts, and return it with its function for texts."""
    images = _image_model(options)
    if images is not None and "text" not in images.modalities:
        raise UserError(f"{options.model} reads images and no texts; give images by --images")
    model = images or _load(options)
    prompt = {"prompt_name": options.prompt_name, "prompt": options.prompt}
    return model, partial(model.encode_batches, **{name: given for name, given in prompt.items() if given is not None})


def _images_of(options: argparse.Namespace) -> tuple[ImageModel | ImageEncoder, Encode]:
    """Open a model of images, and return it with its function for paths. Without modules.json it is one of
    transformers, whose vector of an image counts."""
    model: ImageModel | ImageEncoder | None = _image_model(options)
    home = loaded(lambda: find_directory(options.model))
    if not (home / "modules.json").exists():
        model = loaded(lambda: ImageEncoder.from_pretrained(home, **formats_of(options)))
    if model is None:
        raise UserError(f"--images needs a model of images; {options.model} reads texts")
    encode = model.encode_batches
    return model, lambda paths: encode(PlacedImage(i, path) for i, path in enumerate(paths))


def _image_model(options: argparse.Namespace) -> ImageModel | None:
    home = loaded(lambda: find_directory(options.model))
    return loaded(lambda: open_image_model(options.command, home, Formats(**formats_of(options))))


def _write(encode: Encode, source: Source, sink: Sink, progress: Progress) -> None:
    rows_before = num_bad = first_bad = 0  # bad: not finite; the first one counts from 1
    for texts, rows in answers(encode, source, source, progress):
        sink.write(texts, rows)
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if bad.size:
            first_bad = first_bad or rows_before + int(bad[0]) + 1
            num_bad += bad.size
        rows_before += len(rows)
    sink.finish(rows_before)
    if num_bad:
        more = f", and {num_bad - 1:,} more are not" if num_bad > 1 else ""
        complain(f"the embedding of {source.place} {first_bad} is not finite{more}")


def _check_output(output: str) -> None:
    """Raise UserError unless `output` can have one of the formats: JSON lines anywhere, .npy in a regular file."""
    if output.endswith(".npy") and is_stream(output):
        raise UserError(f"--output must be a regular file for .npy, whose beginning is written last; got {output}")
    if not output.endswith((".npy", ".jsonl")) and not is_stream(output):
        raise UserError(f"--output must end in .npy or .jsonl; got {output}")
