"""The command ``python -m mha_native classify``: labels of texts, or the entities in them, as they come."""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from ..models import TextClassifier, TokenClassifier
from ..models.heads.classifier import finds_entities
from ..models.heads.entities import STRATEGIES
from ..models.heads.labels import best_labels
from .errors import UserError
from .lines import (
    answers,
    check_lines_output,
    lines_to,
    loaded,
    objects,
    opened,
    refuse_to_replace_source,
    report,
    text_in,
)
from .output import number

__all__ = ["STRATEGIES", "run"]

_Object = dict[str, Any]  # with text and perhaps text_pair, and whatever else a line has


def run(
    directory: str,
    dtype: str,
    weight_dtype: str | None,
    texts: list[str],
    path: str | None,
    top_k: int | None,
    strategy: str | None,
    output: str | None,
) -> None:
    """Write the labels of `texts`, or of the lines of the file at `path`, to `output`; or the entities in them, if that
    is what the model finds. If the name of the file ends in .jsonl, its lines are JSON objects with ``text`` and
    perhaps ``text_pair``.

    Raises
    ------
    UserError
        Before anything is written; if a disk fills up, `output` is as before.
    """
    check_lines_output(output)
    refuse_to_replace_source(path, output)
    with opened(texts, path) as source:
        compute = _computation(directory, dtype, weight_dtype, top_k, strategy)
        has_objects = path is not None and path.endswith(".jsonl")
        inputs = objects(source, _checked) if has_objects else ({"text": text} for text in source)
        with lines_to(output) as (write, progress):
            for given, results in answers(compute, inputs, source, progress):
                for value, result in zip(given, results, strict=True):
                    write(f"{json.dumps(value | result)}\n")
        report(output, f"{source.count:,} texts")


def _computation(
    directory: str, dtype: str, weight_dtype: Any, top_k: int | None, strategy: str | None
) -> Callable[[Iterable[_Object]], Iterator[list[_Object]]]:
    """What makes results of inputs, some at a time."""
    formats = {"dtype": dtype, "weight_dtype": weight_dtype}
    if loaded(lambda: finds_entities(directory)):
        if top_k is not None:
            raise UserError(f"--top-k is for models that label whole texts, and {directory} finds entities")
        tokens = loaded(lambda: TokenClassifier.from_pretrained(directory, **formats))
        return partial(_entities, tokens, strategy or "simple")
    if strategy is not None:
        raise UserError(f"--aggregation is for models that find entities, and {directory} labels whole texts")
    return partial(_labels, loaded(lambda: TextClassifier.from_pretrained(directory, **formats)), top_k)


def _labels(model: TextClassifier, top_k: int | None, inputs: Iterable[_Object]) -> Iterator[list[_Object]]:
    """The best label of each text, or with `top_k` a list of so many."""
    texts = ({name: value[name] for name in ("text", "text_pair") if name in value} for value in inputs)
    for scores in model.predict_proba_batches(texts):
        found = [[_readable(label) for label in best_labels(model.labels, row, top_k or 1)] for row in scores]
        yield [labels[0] if top_k is None else {"labels": labels} for labels in found]


def _entities(model: TokenClassifier, strategy: Any, inputs: Iterable[_Object]) -> Iterator[list[_Object]]:
    """The entities in each text."""
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
