"""Score options of each layer of a stack, in addition to the options of a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..functions.messages import listed, name_of_type
from ..functions.options import ATTENTION_OPTIONS, MODEL_OPTIONS, ModelOptions, ScoreOptions, core_options


def checked_layer_options(
    function: str, layer_options: Sequence[ModelOptions], num_layers: int
) -> tuple[dict[str, Any], ...]:
    """Return the options that a caller gave for each of `num_layers` layers, with arrays in place of tensors."""
    if not isinstance(layer_options, Sequence) or not all(isinstance(options, Mapping) for options in layer_options):
        given = [name_of_type(options) for options in layer_options] if isinstance(layer_options, Sequence) else []
        raise TypeError(
            f"{function}: layer_options must be a sequence of dicts of options; "
            f"got {name_of_type(layer_options)} of {listed(given)}"
        )
    if len(layer_options) != num_layers:
        raise ValueError(
            f"{function}: layer_options must have an entry for each of layers, {num_layers}; got {len(layer_options)}"
        )
    return tuple(
        dict(core_options(f"{function}: layer_options[{i}]", options, MODEL_OPTIONS))
        for i, options in enumerate(layer_options)
    )


def merged_options(
    function: str, options: Mapping[str, Any], layer_options: Iterable[Mapping[str, Any]], dtype: np.dtype[Any]
) -> list[dict[str, Any]]:
    """Return the options of the call and of each layer together. An option in both is a ValueError."""
    of_call = core_options(function, options, ATTENTION_OPTIONS)
    merged = []
    for i, own in enumerate(layer_options):
        for name in own.keys() & of_call.keys():
            raise ValueError(f"{function}: {name} is given in the call and in layer_options[{i}]")
        merged.append({**of_call, **in_dtype_of_scores(own, dtype)})
    return merged


def in_dtype_of_scores(options: Mapping[str, Any], dtype: np.dtype[Any]) -> ScoreOptions:
    """Return the options of a model for layers in `dtype`, with arrays in the dtype of scores."""
    scores = np.float64 if dtype == np.float64 else np.float32
    converted: Any = {
        name: x.astype(scores, copy=False) if isinstance(x, np.ndarray) else x for name, x in options.items()
    }
    found: ScoreOptions = converted
    return found
