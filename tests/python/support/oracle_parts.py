"""The parts of transformers in float64, one text at a time, by the names of tensors: what all oracles are made of."""

from __future__ import annotations

import math
from collections.abc import Callable
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
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
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


def by_distance(table: Array, length: int, most: int, is_causal: bool = False) -> Array:
    """[H, T, T] from [buckets, H]: a bias for each query and key, by the bucket of T5 for their distance.

    Half of the buckets have one distance each, the others grow up to the distance `most`. Without `is_causal`, a half
    of the table is for keys before a query, and a half for keys after it.
    """
    half, before = len(table) // (1 if is_causal else 2), distances(length)
    distance, exact = np.maximum(before, 0) if is_causal else np.abs(before), half // 2
    far = np.log(np.maximum(distance, 1) / exact) / math.log(most / exact) * (half - exact)
    bucket = np.where(distance < exact, distance, np.minimum(exact + (far + 1e-9).astype(int), half - 1))
    return np.moveaxis(table[bucket if is_causal else bucket + half * (before < 0)], -1, 0)


def attention(
    q: Array, k: Array, v: Array, scale: float | None = None, sees: Any = True, bias: Any = 0,
    softcap: float | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """[T, H D] from [H, T, D], [Hk, S, D] and [Hk, S, D], and the weights [H, T, S]."""
    shared = len(q) // len(k)
    scores = q @ np.repeat(k, shared, 0).swapaxes(1, 2) * (q.shape[-1] ** -0.5 if scale is None else scale) + bias
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    scores = np.where(sees, scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    rows = weights @ np.repeat(v, shared, 0)
    return rows.swapaxes(0, 1).reshape(q.shape[1], -1), weights


def _sublayer(compute: Callable[..., Array]) -> Callable[..., Callable[[Array], Array]]:
    """A function of all arguments of `compute` but the rows, which returns a function of rows."""
    return lambda *arguments, **options: lambda x: compute(x, *arguments, **options)


@_sublayer
def attend(
    x: Array,
    weights: dict[str, Array],
    prefix: str,
    names: str,
    count: int,
    kv_count: int | None = None,
    memory: Array | None = None,
    turn: Callable[[Array, str], Array] = lambda x, name: x,
    product: Callable[..., Array] = linear,
    seen: list[Array] | None = None,
    **options: Any,
) -> Array:
    """Attention of rows [T, E] to themselves or to a memory, with its projections and the options of `attention`.

    `names` are the tensors of query, key, value and output, or of all three and output. `turn` changes queries and
    keys. `seen` gets the weights.
    """
    *inner, out = (prefix + name for name in names.split())
    read = x if memory is None else memory
    if len(inner) == 1:
        parts = np.split(product(x, weights, inner[0]), 3, -1)
    else:
        parts = [product(rows, weights, name) for rows, name in zip((x, read, read), inner, strict=True)]
    counts = (count, kv_count or count, kv_count or count)
    q, k, v = (heads(rows, number) for rows, number in zip(parts, counts, strict=True))
    rows, of_heads = attention(turn(q, "q"), turn(k, "k"), v, **options)
    if seen is not None:
        seen.append(of_heads)
    return product(rows, weights, out)


@_sublayer
def feed(
    x: Array,
    weights: dict[str, Array],
    prefix: str,
    names: str,
    activation: str,
    halves: int = 0,
    product: Callable[..., Array] = linear,
) -> Array:
    """A feed-forward, from the tensors of its products up and down, or gate, up and down.

    `halves` splits the first product into gate and up (1), or up and gate (-1).
    """
    *inner, down = (prefix + name for name in names.split())
    parts = [product(x, weights, name) for name in inner]
    if halves:
        parts = np.split(parts[0], 2, -1)[::halves]
    return product(math.prod(parts[1:], start=ACTIVATIONS[activation](parts[0])), weights, down)


def add(x: Array, sublayer: Any, norm: Any, first: str = "", inner: str = "", last: str = "") -> Array:
    """x + sublayer(x), with norms of these names before the sublayer, behind it and behind the sum."""
    added = sublayer(norm(x, name=first) if first else x)
    result = x + (norm(added, name=inner) if inner else added)
    return norm(result, name=last) if last else result
