"""Activations of float32 arrays by their names in torch, with torch's default parameters."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...functions.messages import shown

Activation: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]

# Modules of the classes: torch.nn.Tanh is saved as torch.nn.modules.activation.Tanh.
_PLACES = ("torch.nn", "torch.nn.modules.activation", "torch.nn.modules.linear")

_erf = np.vectorize(math.erf, otypes=[np.float64])


def activation_of(name: str) -> Activation:
    """Return the activation with this name in torch. KeyError if it is unsupported."""
    place, _, kind = name.rpartition(".")
    if place not in _PLACES or kind not in ACTIVATIONS:
        raise KeyError(name)
    return partial(_computed, kind)


def checked_activation(path: Path, key: str, name: Any) -> str:
    """Return `name`, the entry `key` of a file; ValueError unless an activation has this name."""
    try:
        activation_of(name)
    except (AttributeError, KeyError):
        raise ValueError(
            f"{path}: {key} must be torch.nn.X, where X is one of {', '.join(ACTIVATIONS)}; got {shown(name)}"
        ) from None
    return str(name)


def _computed(kind: str, x: NDArray[Any]) -> NDArray[Any]:
    """Compute an entry of `ACTIVATIONS`, by a function that can be pickled."""
    return ACTIVATIONS[kind](x)


def _sigmoid(x: NDArray[Any]) -> NDArray[Any]:
    power = np.exp(-np.abs(x))  # at most 1
    result: NDArray[Any] = np.where(x >= 0, 1, power) / (1 + power)
    return result


ACTIVATIONS: dict[str, Activation] = {
    "Identity": lambda x: x,
    "ELU": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "GELU": lambda x: x / 2 * (1 + _erf(x / math.sqrt(2))),
    "Hardtanh": lambda x: np.clip(x, -1, 1),
    "LeakyReLU": lambda x: np.where(x > 0, x, 0.01 * x),
    "Mish": lambda x: x * np.tanh(np.logaddexp(x, 0)),
    "ReLU": lambda x: np.maximum(x, 0),
    "ReLU6": lambda x: np.clip(x, 0, 6),
    "SiLU": lambda x: x * _sigmoid(x),
    "Sigmoid": _sigmoid,
    "Softplus": lambda x: np.logaddexp(x, 0),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Tanh": np.tanh,
}
