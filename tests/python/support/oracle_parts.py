"""The parts of transformers in float64, one text at a time, by the names of tensors: what all oracles are made of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_erf = np.frompyfunc(math.erf, 1, 1)


def _gelu_tanh(x: Array) -> Array:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x / 2 * (1 + _erf(x / math.sqrt(2)).astype(np.float64)),
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "silu": _silu,
    "swish": _silu,
}


def linear(x: Array, weights: dict[str, Array], name: str) -> Array:
    """[T, out] from [T, in]."""
    return x @ weights[f"{name}.weight"].astype(np.float64).T + weights.get(f"{name}.bias", 0)


def layer_norm(x: Array, weights: dict[str, Array], name: str, eps: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + eps)
    return scaled * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0)


def rms_norm(x: Array, weights: dict[str, Array], name: str, eps: float, offset: float = 0) -> Array:
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps) * (weights[f"{name}.weight"] + offset)


def heads(x: Array, count: int) -> Array:
    """[H, T, D] from [T, H D]."""
    return x.reshape(len(x), count, -1).swapaxes(0, 1)


def rotated(x: Array, base: float) -> Array:
    """[H, T, D]: feature i of the first half of a head is turned with feature i of the second half."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] * base ** (-np.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    parts = first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)
    return np.concatenate(parts, -1)


def distances(count: int) -> Array:
    """[T, T]: how far each key lies before each query."""
    return np.arange(count)[:, None] - np.arange(count)


def attention(
    q: Array, k: Array, v: Array, scale: float, sees: Any = True, bias: Any = 0, softcap: float | None = None
) -> Array:
    """[T, H D] from [H, T, D], [Hk, S, D] and [Hk, S, D]."""
    shared = len(q) // len(k)
    scores = q @ np.repeat(k, shared, 0).swapaxes(1, 2) * scale + bias
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    scores = np.where(sees, scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    rows = powers / powers.sum(-1, keepdims=True) @ np.repeat(v, shared, 0)
    return rows.swapaxes(0, 1).reshape(q.shape[1], -1)
