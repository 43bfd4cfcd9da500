"""The labels of a classifier, and the function from logits to scores, as config.json describes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...functions.messages import listed, shown
from ..files.entries import Entries

_MOST_LABELS = 1 << 16  # shops have some thousands of product categories; a label takes 100 bytes here

_PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")

FUNCTIONS = ("softmax", "sigmoid", "none")


class Labels(NamedTuple):
    """The labels of a classifier, and the function from logits to scores."""

    names: tuple[str, ...]  # L of them
    # One of `FUNCTIONS`: "sigmoid" for a single label or independent labels; "softmax" for labels that exclude each
    # other; "none" for regression.
    function: str


def read_labels(path: Path, task: str) -> Labels:
    """Read the labels in config.json of a model. Its `architectures`, if present, must end with `task`.

    Without ``id2label`` the labels are LABEL_0, LABEL_1, ...: ``num_labels`` of them, or 2.

    Raises OSError or ValueError if the file cannot be read, if the model is for another task, or if the labels are not
    numbered from 0.
    """
    entries = Entries.read(path)
    architectures = entries.values.get("architectures")
    if architectures and not (
        isinstance(architectures, list) and isinstance(architectures[0], str) and architectures[0].endswith(task)
    ):
        raise ValueError(f"{path}: architectures must be a model {task}; got {shown(architectures)}")
    names = _names(entries)
    function = "sigmoid" if len(names) == 1 else "softmax"
    if entries.has("problem_type"):
        problem = entries.choice("problem_type", *_PROBLEMS)
        if problem == "single_label_classification" and len(names) == 1:
            raise ValueError(f"{path}: problem_type must not be {problem} for a single label")
        function = {"regression": "none", "multi_label_classification": "sigmoid"}.get(problem, function)
    return Labels(names, function)


def apply_function(function: str, logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the scores of logits [..., L], by one of `FUNCTIONS`; rows do not depend on each other."""
    if function == "none":
        return logits
    with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite stay so
        if function == "sigmoid":
            scores: NDArray[np.float32] = np.divide(1, 1 + np.exp(-logits), dtype=np.float32)
            return scores
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        scores = powers / powers.sum(axis=-1, keepdims=True)
        return scores


def best_labels(names: Sequence[str], scores: NDArray[np.float32], top_k: int | None) -> list[dict[str, Any]]:
    """Return the labels with the best of the scores [L] of a text: `top_k` of them, or all."""
    order = np.argsort(-scores, kind="stable")[:top_k]
    return [{"label": names[i], "score": float(scores[i])} for i in order]


def _names(entries: Entries) -> tuple[str, ...]:
    given, path = entries.values.get("id2label"), entries.path
    if given is None:
        count = entries.size_or_none("num_labels") or 2
        if count > _MOST_LABELS:
            raise ValueError(f"{path}: num_labels must be at most {_MOST_LABELS}; got {shown(count)}")
        return tuple(f"LABEL_{i}" for i in range(count))
    if not isinstance(given, dict) or not 1 <= len(given) <= _MOST_LABELS:
        raise ValueError(f"{path}: id2label must be an object of 1 to {_MOST_LABELS} labels; got {shown(given)}")
    if missing := [str(i) for i in range(len(given)) if str(i) not in given]:
        raise ValueError(
            f"{path}: id2label must have the keys 0 to {len(given) - 1}; it has others instead of {listed(missing)}"
        )
    names = tuple(given[str(i)] for i in range(len(given)))
    if others := [name for name in names if not isinstance(name, str)]:
        raise ValueError(f"{path}: id2label must hold texts; got {shown(others[0])}")
    if entries.has("num_labels"):
        entries.choice("num_labels", len(names))
    return names
