"""Gradients of the parts of a transformer that treat each row by itself, as closed forms in NumPy and float64.

Each function returns gradients by the names of the arguments, with their shapes. E is the number of features of a row.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._errors import named
from .transformer import activate, gated_factor, logistic

Array = NDArray[np.float64]


@named
def layer_norm_gradient(
    x: ArrayLike, weight: ArrayLike | None, dout: ArrayLike, *, eps: float = 1e-5
) -> dict[str, Array]:
    """Gradients by `x` [..., E], `weight` [E] and the bias [E] of `layer_norm`, from `dout` [..., E]."""
    x = np.asarray(x, np.float64)
    centred = x - x.mean(-1, keepdims=True)
    root = np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    normal, g, do = centred / root, _scaled(dout, weight, False), np.asarray(dout, np.float64)
    found = {"x": (g - g.mean(-1, keepdims=True) - normal * (g * normal).mean(-1, keepdims=True)) / root}
    if weight is not None:
        found["weight"] = _over_rows(do * normal)
    return found | {"bias": _over_rows(do)}


@named
def rms_norm_gradient(
    x: ArrayLike, weight: ArrayLike | None, dout: ArrayLike, *, eps: float = 1e-6, unit_offset: bool = False
) -> dict[str, Array]:
    """Gradients by `x` [..., E] and `weight` [E] of `rms_norm`, from `dout` [..., E]."""
    x = np.asarray(x, np.float64)
    root = np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    normal, g = x / root, _scaled(dout, weight, unit_offset)
    found = {"x": (g - normal * (g * normal).mean(-1, keepdims=True)) / root}
    if weight is not None:
        found["weight"] = _over_rows(np.asarray(dout, np.float64) * normal)
    return found


@named
def activation_gradient(
    x: ArrayLike, dout: ArrayLike, *, activation: str, up: ArrayLike | None = None
) -> dict[str, Array]:
    """Gradients by `x` and `up` of ``activate(x, activation) * up``, from `dout`; without `up` the factor is 1."""
    x, do = np.asarray(x, np.float64), np.asarray(dout, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        rising = np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))  # the logistic function
        falling = np.exp(np.minimum(-x, 0)) / (1 + np.exp(-np.abs(x)))
        if activation == "relu":
            slope = np.where(x <= 0, 0.0, 1.0)
        elif activation == "gelu":
            density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
            slope = np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2)) / 2 + x * density
        elif activation == "gelu_tanh":
            inner = math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)
            rising, falling = (np.exp(np.minimum(y, 0)) / (1 + np.exp(-np.abs(y))) for y in (inner, -inner))
            slope = rising * (1 + x * math.sqrt(8 / math.pi) * (1 + 3 * 0.044715 * x**2) * falling)
        elif activation == "silu":
            slope = rising * (1 + x * falling)
        elif activation in ("swiglu_oai", "quick_gelu"):
            rising, falling = logistic(1.702 * x), logistic(-1.702 * x)
            is_clamped = (x > 7) & (activation == "swiglu_oai")
            slope = np.where(is_clamped, 0, rising * (1 + 1.702 * x * falling))
        else:
            known = "'relu', 'gelu', 'gelu_tanh', 'silu', 'swiglu_oai' or 'quick_gelu'"
            raise ValueError(f"activation must be {known}; got {activation!r}")
        slope = np.where(np.isinf(x), (x > 0) & (activation != "swiglu_oai"), slope)
    if up is None:
        return {"x": do * slope}
    factor = np.asarray(up, np.float64)
    reached = np.abs(factor) <= 7 if activation == "swiglu_oai" else 1
    return {"x": do * gated_factor(factor, activation) * slope, "up": do * activate(x, activation) * reached}


@named
def embedding_gradient(ids: ArrayLike, dout: ArrayLike, num_embeddings: int) -> Array:
    """The gradient by a table [V, E], V = `num_embeddings`, of its rows `ids` [...], from `dout` [..., E]."""
    do = np.asarray(dout, np.float64)
    gradient: Array = np.zeros((num_embeddings, do.shape[-1]))
    np.add.at(gradient, np.asarray(ids), do)
    return gradient


@named
def cross_entropy(
    x: ArrayLike,
    weight: ArrayLike,
    targets: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> dict[str, Array]:
    """``loss`` of ``softmax(x W^T + b)`` for `targets` [...], and gradients by `x`, `weight` and `bias`.

    The loss of a row with the logits z is ``log sum exp z - sum_j q_j z_j``: q is `label_smoothing` spread evenly, and
    the rest on the target.
    """
    rows, matrix, ids = np.asarray(x, np.float64), np.asarray(weight, np.float64), np.asarray(targets)
    logits = rows @ matrix.T + (0 if bias is None else np.asarray(bias, np.float64))
    counts = ids != ignore_index
    lse = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    share = np.full(logits.shape, label_smoothing / len(matrix))
    share[counts, ids[counts]] += 1 - label_smoothing
    losses = np.where(counts, lse - (share * logits).sum(-1), 0)
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none'; got {reduction!r}")
    divisor = max(counts.sum(), 1) if reduction == "mean" else 1
    slopes = np.where(counts[..., None], np.exp(logits - lse[..., None]) - share, 0) / divisor
    flat = slopes.reshape(-1, len(matrix))
    loss = losses if reduction == "none" else np.asarray(losses.sum() / divisor)
    if reduction == "mean" and not counts.any():
        loss = np.asarray(np.nan)
    found = {"loss": loss, "x": slopes @ matrix, "weight": flat.T @ rows.reshape(-1, rows.shape[-1])}
    return found if bias is None else found | {"bias": flat.sum(0)}


def _scaled(dout: ArrayLike, weight: ArrayLike | None, unit_offset: bool) -> Array:
    """Return the gradient by the normal row."""
    do = np.asarray(dout, np.float64)
    return do if weight is None else do * (np.asarray(weight, np.float64) + unit_offset)


def _over_rows(products: Array) -> Array:
    total: Array = products.reshape(-1, products.shape[-1]).sum(0)
    return total
