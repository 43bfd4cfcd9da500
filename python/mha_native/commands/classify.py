"""The command ``classify``: labels of texts or images, or the entities in texts."""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from ..models import ImageClassifier, TextClassifier, TokenClassifier
from ..models.heads.classifier import finds_entities
from ..models.heads.entities import STRATEGIES
from ..models.heads.labels import best_labels
from ..models.images.sources import PlacedImage
from .errors import UserError
from .input_images import add_images, images_or_texts
from .input_texts import Texts, objects, text_in
from .model_calls import answers, loaded
from .output import Array, check_lines_output, lines_to, number, refuse_to_replace_source, report
from .shared_arguments import add_model, add_results, formats_of, one_source

about = "labels of texts or images, or the entities in texts, by a pretrained classifier"

_Object = dict[str, Any]  # text, perhaps text_pair, and the other entries of a line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    source = one_source(parser, "classify")
    source.add_argument("texts", metavar="TEXT", nargs="*", default=[], help="a text, or several")
    lines = "a text in each line, in UTF-8; in a file .jsonl a JSON object: text, and perhaps text_pair"
    source.add_argument("--file", metavar="FILE", help=f"{lines}; - reads lines of standard input")
    add_images(source)
    how = "of a model that finds entities, how tokens are joined: simple (default), first, average, max, none"
    parser.add_argument("--aggregation", metavar="HOW", choices=STRATEGIES, help=how)
    add_results(parser, "labels of each text or image")


def run(options: argparse.Namespace) -> None:
    """Write a line with labels or entities for each text or image. A failure leaves the output as it was."""
    check_lines_output(options.output)
    refuse_to_replace_source(options.file, options.output)
    with images_or_texts(options) as source:
        arguments = options.model, formats_of(options), options.top_k, options.aggregation
        compute = (_computation if options.images is None else _computation_of_images)(*arguments)
        inputs: Iterable[_Object] = ({source.entry: given} for given in source)
        if isinstance(source, Texts) and options.file is not None and options.file.endswith(".jsonl"):
            inputs = objects(source, _checked)
        with lines_to(options.output) as (write, progress):
            for given, results in answers(compute, inputs, source, progress):
                for value, result in zip(given, results, strict=True):
                    write(f"{json.dumps(value | result)}\n")
        report(options.output, f"{source.count:,} {source.entry}s")


def _computation(
    directory: str, formats: dict[str, Any], top_k: int | None, strategy: str | None
) -> Callable[[Iterable[_Object]], Iterator[list[_Object]]]:
    """Load the model and return the function that maps inputs to batches of results."""
    if loaded(lambda: finds_entities(directory)):
        if top_k is not None:
            raise UserError(f"--top-k is for models that label whole texts, and {directory} finds entities")
        tokens = loaded(lambda: TokenClassifier.from_pretrained(directory, **formats))
        return partial(_entities, tokens, strategy or "simple")
    if strategy is not None:
        raise UserError(f"--aggregation is for models that find entities, and {directory} labels whole texts")
    return partial(_labels, loaded(lambda: TextClassifier.from_pretrained(directory, **formats)), top_k)


def _computation_of_images(
    directory: str, formats: dict[str, Any], top_k: int | None, strategy: str | None
) -> Callable[[Iterable[_Object]], Iterator[list[_Object]]]:
    """Load the model and return the function that maps images to batches of results."""
    if strategy is not None:
        raise UserError("--aggregation is for entities in texts, and does not go with --images")
    model = loaded(lambda: ImageClassifier.from_pretrained(directory, **formats))

    def compute(inputs: Iterable[_Object]) -> Iterator[list[_Object]]:
        scores = model.predict_proba_batches(PlacedImage(i, value["image"]) for i, value in enumerate(inputs))
        return _named(model.labels, scores, top_k)

    return compute


def _labels(model: TextClassifier, top_k: int | None, inputs: Iterable[_Object]) -> Iterator[list[_Object]]:
    """Yield the labels of each text."""
    texts = ({name: value[name] for name in ("text", "text_pair") if name in value} for value in inputs)
    return _named(model.labels, model.predict_proba_batches(texts), top_k)


def _named(names: tuple[str, ...], batches: Iterable[Array], top_k: int | None) -> Iterator[list[_Object]]:
    """Yield the best label for each row of scores, or with `top_k` a list of that many labels."""
    for scores in batches:
        found = [[_readable(label) for label in best_labels(names, row, top_k or 1)] for row in scores]
        yield [labels[0] if top_k is None else {"labels": labels} for labels in found]


def _entities(model: TokenClassifier, strategy: Any, inputs: Iterable[_Object]) -> Iterator[list[_Object]]:
    """Yield the entities in each text."""
    texts = (_without_pair(value) for value in inputs)
    for found in model.iter_entities(texts, aggregation_strategy=strategy):
        yield [{"entities": [_readable(entity) for entity in found]}]


def _readable(result: _Object) -> _Object:
    return result | {"score": number(result["score"])}


def _without_pair(value: _Object) -> str:
    if "text_pair" in value:
        raise UserError("text_pair must be absent: the model finds entities in single texts")
    return str(value["text"])


def _checked(value: _Object) -> _Object:
    for name in ("text", "text_pair"):
        if name == "text" or name in value:
            text_in(value, name)
    return value
