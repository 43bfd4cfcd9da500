"""The parts of a transformer as in its papers, in NumPy and float64.

A `state` is the state dict of the layer of the same name, or of its module in torch; it may hold anything array-like.
Axes: B batch, T tokens, S tokens of the memory, E features, F features between the two products of the feed-forward.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._errors import named
from .attention import multi_head_attention
from .norms import normalize

Array = NDArray[np.float64]
State = Mapping[str, ArrayLike]
Block = Callable[[Array], Array]


@named
def linear(x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> Array:
    """``x W^T + b``: [..., features of the rows of `weight`]."""
    product: Array = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
    return product if bias is None else product + np.asarray(bias, np.float64)


@named
def linear_gradient(x: ArrayLike, weight: ArrayLike, dout: ArrayLike) -> dict[str, Array]:
    """Gradients by the arguments of `linear`, from its gradient by the result: ``dout W``, ``dout^T x``, and the column
    sums of `dout`."""
    d = np.asarray(dout, np.float64)
    rows, of_rows = (np.reshape(a, (-1, a.shape[-1])) for a in (np.asarray(x, np.float64), d))
    return {"x": d @ np.asarray(weight, np.float64), "weight": of_rows.T @ rows, "bias": of_rows.sum(0)}


def logistic(x: Array) -> Array:
    """``1 / (1 + exp(-x))``."""
    result: Array = np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))
    return result


def gated_factor(up: Array, activation: str) -> Array:
    """The factor of a gated activation: `up`, or for "swiglu_oai" ``1 + clip(up, -7, 7)``."""
    return 1 + np.clip(up, -7, 7) if activation == "swiglu_oai" else up


@named
def activate(x: ArrayLike, name: str) -> Array:
    """``max(x, 0)``, ``x P(X <= x)`` with X from the standard normal distribution, its approximation by tanh,
    ``x / (1 + exp(-x))``, ``x / (1 + exp(-1.702 x))``, or the last one of ``min(x, 7)``.

    All are 0 in the limit of minus infinity.
    """
    x = np.asarray(x, np.float64)
    functions: dict[str, Callable[[], Array]] = {
        "relu": lambda: np.maximum(x, 0),
        "gelu": lambda: x / 2 * np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2)),
        "gelu_tanh": lambda: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "silu": lambda: x * logistic(x),
        "swiglu_oai": lambda: np.minimum(x, 7) * logistic(1.702 * np.minimum(x, 7)),
        "quick_gelu": lambda: x * logistic(1.702 * x),
    }
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(x == -np.inf, 0, functions[name]())


@named
def feed_forward(x: ArrayLike, state: State, *, activation: str = "relu") -> Array:
    """``activation(x W_1^T + b_1) W_2^T + b_2``: [..., E]. With ``gate.weight`` in the state
    ``(activation(x W_g^T + b_g) * (x W_1^T + b_1)) W_2^T + b_2``."""
    hidden = _linear(x, state, "linear1")
    if "gate.weight" in state:
        hidden = activate(_linear(x, state, "gate"), activation) * gated_factor(hidden, activation)
    else:
        hidden = activate(hidden, activation)
    return _linear(hidden, state, "linear2")


@named
def experts(
    x: ArrayLike,
    state: State,
    experts_per_token: int,
    *,
    activation: str = "silu",
    scores: str = "softmax",
    normalize: bool = True,
    scale: float = 1.0,
) -> Array:
    """The sum of the experts with the largest scores, weighted by their scores, and of the shared expert: [..., E].

    Scores are the softmax or the logistic function of the logits of the router. With `normalize` the chosen scores are
    divided by their sum.
    """
    x = np.asarray(x, np.float64)
    logits = _linear(x, state, "router")
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    values = powers / powers.sum(-1, keepdims=True) if scores == "softmax" else logistic(logits)
    order = np.argsort(-(values + np.asarray(state.get("correction", 0), np.float64)), axis=-1, kind="stable")
    chosen = order[..., :experts_per_token]
    weights = np.take_along_axis(values, chosen, -1)
    if normalize:
        weights = weights / weights.sum(-1, keepdims=True)
    total = np.zeros_like(x)
    for expert in range(logits.shape[-1]):
        weight = (weights * (chosen == expert)).sum(-1, keepdims=True) * scale
        total += weight * feed_forward(x, _part(state, f"experts.{expert}."), activation=activation)
    if "shared.linear1.weight" in state:
        gate = logistic(_linear(x, state, "shared_gate")) if "shared_gate.weight" in state else 1.0
        total += gate * feed_forward(x, _part(state, "shared."), activation=activation)
    return total


@named
def encoder_layer(
    x: ArrayLike,
    state: State,
    num_heads: int,
    *,
    num_kv_heads: int | None = None,
    activation: str = "relu",
    experts_per_token: int | None = None,
    norm_first: bool = False,
    parallel: bool = False,
    norm: str = "layer",
    eps: float | None = None,
    **options: Any,
) -> Array:
    """Self-attention and feed-forward, or with `experts_per_token` `experts`, each added to its input: [B, T, E].

    With `parallel` both read ``x``.

    `norm` is "layer", "rms" or "rms_unit_offset": `layer_norm`, or `rms_norm` without or with a unit offset. `eps` is
    by default the default of these functions. A norm is skipped if `state` has no weight for it. `options` are options
    of `multi_head_attention`.
    """

    def attend(y: Array) -> Any:
        weights = _part(state, "self_attn.")
        return multi_head_attention(y, y, y, weights, num_heads, num_kv_heads=num_kv_heads, **options)

    last = partial(feed_forward, state=state, activation=activation)
    if experts_per_token is not None:
        last = partial(experts, state=state, experts_per_token=experts_per_token, activation=activation)
    blocks: list[Block] = [attend, last]
    return (_in_parallel if parallel else _around)(x, blocks, state, norm_first, norm, eps)


@named
def decoder_layer(
    x: ArrayLike,
    memory: ArrayLike,
    state: State,
    num_heads: int,
    *,
    num_kv_heads: int | None = None,
    activation: str = "relu",
    norm_first: bool = False,
    norm: str = "layer",
    eps: float | None = None,
    is_causal: bool = True,
    memory_attn_mask: ArrayLike | None = None,
    memory_key_mask: ArrayLike | None = None,
    memory_lengths: ArrayLike | None = None,
    memory_scale: float | None = None,
    **options: Any,
) -> Array:
    """Self-attention, attention to `memory` [B, S, E_memory], and feed-forward: [B, T, E].

    `norm` and `eps` are as for `encoder_layer`. `options` are options of `multi_head_attention`, for self-attention.
    """

    def attend(y: Array) -> Any:
        weights = _part(state, "self_attn.")
        return multi_head_attention(
            y, y, y, weights, num_heads, num_kv_heads=num_kv_heads, is_causal=is_causal, **options
        )

    def attend_to_memory(y: Array) -> Any:
        masks: dict[str, Any] = {
            "attn_mask": memory_attn_mask,
            "key_mask": memory_key_mask,
            "key_lengths": memory_lengths,
            "scale": memory_scale,
        }
        weights = _part(state, "multihead_attn.")
        return multi_head_attention(y, memory, memory, weights, num_heads, num_kv_heads=num_kv_heads, **masks)

    blocks: list[Block] = [attend, attend_to_memory, partial(feed_forward, state=state, activation=activation)]
    return _around(x, blocks, state, norm_first, norm, eps)


@named
def encoder(
    x: ArrayLike, state: State, num_heads: int, *, norm: str = "layer", eps: float | None = None, **options: Any
) -> Array:
    """One encoder layer after another, and ``norm`` if `state` has one: [B, T, E].

    `options` are options of `encoder_layer`, the same for all layers.
    """
    for layer in _layers(state):
        x = encoder_layer(x, layer, num_heads, norm=norm, eps=eps, **options)
    return normalize(np.asarray(x, np.float64), state, "norm", norm, eps)


@named
def decoder(
    x: ArrayLike,
    memory: ArrayLike,
    state: State,
    num_heads: int,
    *,
    norm: str = "layer",
    eps: float | None = None,
    **options: Any,
) -> Array:
    """One decoder layer after another, all over the same `memory`, and ``norm`` if `state` has one: [B, T, E].

    `options` are options of `decoder_layer`, the same for all layers.
    """
    for layer in _layers(state):
        x = decoder_layer(x, memory, layer, num_heads, norm=norm, eps=eps, **options)
    return normalize(np.asarray(x, np.float64), state, "norm", norm, eps)


def _around(
    x: ArrayLike, blocks: Sequence[Block], state: State, norm_first: bool, norm: str, eps: float | None
) -> Array:
    """``norm(x + output_norm(block(x)))`` of each block in turn (post-LN), or with `norm_first`
    ``x + output_norm(block(norm(x)))`` (pre-LN)."""
    x = np.asarray(x, np.float64)
    for number, block in enumerate(blocks, 1):
        own, of_output = (
            partial(normalize, state=state, name=f"{name}{number}", norm=norm, eps=eps)
            for name in ("norm", "output_norm")
        )
        x = x + of_output(block(own(x))) if norm_first else own(x + of_output(block(x)))
    return x


def _in_parallel(
    x: ArrayLike, blocks: Sequence[Block], state: State, norm_first: bool, norm: str, eps: float | None
) -> Array:
    """``x + output_norm(block(norm(x)))`` with the results of all blocks; ``norm1`` is the default of further norms."""
    if not norm_first:
        raise ValueError("parallel must be False without norm_first")
    x = np.asarray(x, np.float64)
    of_kind: Any = {"state": state, "norm": norm, "eps": eps}
    total = x
    for number, block in enumerate(blocks, 1):
        own = f"norm{number}" if f"norm{number}.weight" in state else "norm1"
        total = total + normalize(block(normalize(x, name=own, **of_kind)), name=f"output_norm{number}", **of_kind)
    return total


def _linear(x: ArrayLike, state: State, name: str) -> Array:
    return linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))


def _layers(state: State) -> list[State]:
    count = len({name.split(".")[1] for name in state if name.startswith("layers.")})
    return [_part(state, f"layers.{i}.") for i in range(count)]


def _part(state: State, prefix: str) -> State:
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
