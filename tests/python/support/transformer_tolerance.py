"""The oracle of the blocks around attention, and how far from it a result may be: goes on from tolerance.py.

A block reads x off by dx and gives y off by dy. What it rounds itself has the bounds of tolerance.py. What it carries
on from dx is a sum of errors that behave like independent random variables, as there: bounded one by one at lambda
standard deviations, they add up in quadrature. Added up as if all had one sign they would allow 0.1 after one layer in
float32, and anything after two.

    dy_i = gamma(n + 1) (...) + sqrt(sum_j (dy_i / dx_j)^2 dx_j^2)

Products: sqrt(sum_j W_ij^2 dx_j^2). Sums: x + y rounds once, dx + dy + eps / 2 |x + y|.

In 16 bits sums and products are those of float32, and everything between two steps is rounded once to the type, with
its eps e. That error is a random variable within e / 2 |y| on either side: its standard deviation is e / 2 |y| /
sqrt(3), and lambda = 6 of those are

    r = sqrt(3) e |y|

The intermediates are a projection's result (that of the first product of a feed-forward behind the activation), heads,
weights, a residual sum, and the result of a norm. Such errors are a thousand times those of float32, so that they must
be added up as what they are, independent: r and the dx + dy of a sum in quadrature, too.

Attention
---------
Errors of q, k and v move the scores by e_j, and with the weights w_j the result:

    e_j  = |scale| sqrt(sum_d (dq_d k_jd)^2 + (q_d dk_jd)^2)          a softcap has a slope of at most 1
    dw_j = w_j sqrt(e_j^2 + sum_i w_i^2 e_i^2)
    do   = sqrt(sum_j w_j^2 (e_j^2 (v_j - o)^2 + dv_j^2))

Feed-forward
------------
An activation f has a slope of at most 1 (relu), 1.13 (gelu, where it is steepest, at sqrt(2)) or 1.1 (silu, at 2.4).
Both forms of gelu, and silu, are |h| times a tail made of an exponential and a quotient, 4 eps of |h| in all:
df = slope dh + 4 eps |h|. With a gate g the product f(g) h is off by |f| dh + |h| df + df dh + eps / 2 |f h|.

Layer norm
----------
z off by dz, with E features. The mean is a chain; c is rounded once. In the variance what the mean is off by cancels,
as sum c = 0:

    dm = sqrt(sum dz^2) / E + gamma(E + 1) mean |z|
    dc = dz + dm + eps |c|                                              c = z - m
    dv = 2 sqrt(sum c^2 dz^2) / E + mean dc^2 + gamma(E + 2) v          v = mean c^2

The quotient c / s with s = sqrt(v + e) is of first order in dz only while dv is small against v: rows whose features
hardly differ have no digits to spare, and the constant e is what keeps their quotients bounded. So the change of 1 / s
is taken whole, at the smallest s there may be:

    r  = s / sqrt(max(v - dv, 0) + e) - 1 + 4 eps
    dy = |w| / s (dc + r (|c| + dc)) + eps (2 |w c / s| + |b|)

An error of z is thus multiplied by 1 / s: what a post-LN layer does to the errors of its attention.

RMSNorm is the same without a mean: c = z, dc = dz, and v the mean of the squares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tolerance
from element_types import accumulator_of, is_half, limits
from tolerance import Array, gamma

from mha_native import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    Linear,
    MultiHeadAttention,
    RMSNorm,
)
from mha_native import reference as oracle

STEEPEST = {"relu": 1.0, "gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1, "swiglu_oai": 1.1, "quick_gelu": 1.1}


@dataclass(frozen=True)
class Near:
    """What the oracle says, and how far from it a result may be."""

    out: Array
    bound: Array

    @classmethod
    def exactly(cls, x: Array) -> Near:
        return cls(x.astype(np.float64), np.zeros(x.shape))

    def plus(self, other: Near, dtype: Any) -> Near:
        out = self.out + other.out
        if is_half(dtype):
            return Near(out, np.hypot(self.bound, other.bound)).rounded(dtype)
        return Near(out, self.bound + other.bound + _eps(dtype) / 2 * np.abs(out))

    def rounded(self, dtype: Any) -> Near:
        """To a type of 16 bits; of others the bounds of computing in them are all."""
        if not is_half(dtype):
            return self
        once = np.sqrt(3) * float(limits(dtype).eps) * np.abs(self.out) + float(limits(dtype).smallest_subnormal)
        return Near(self.out, np.hypot(self.bound, once))


def normalized(norm: LayerNorm | RMSNorm | None, x: Near) -> Near:
    """`x` itself, if there is no norm."""
    return x if norm is None else layer_norm(norm, x)


def layer_norm(norm: LayerNorm | RMSNorm, x: Near) -> Near:
    """Of either kind."""
    eps, features, is_rms = _eps(norm.dtype), norm.embed_dim, isinstance(norm, RMSNorm)
    state = {name: array.astype(np.float64) for name, array in norm.state_dict().items()}
    weight, bias = state["weight"] + (is_rms and norm.unit_offset), state.get("bias", np.zeros(features))
    with np.errstate(all="ignore"):
        z, dz = x.out, x.bound
        off_mean = _root(dz**2) / features + gamma(features + 1, eps) * np.abs(z).mean(-1, keepdims=True)
        c = z - z.mean(-1, keepdims=True)
        dc = dz + off_mean + eps * np.abs(c)
        if is_rms:
            c, dc = z, dz
        variance = (c**2).mean(-1, keepdims=True)
        off = 2 * _root((c * dz) ** 2) / features + (dc**2).mean(-1, keepdims=True)
        off = off + gamma(features + 2, eps) * variance
        s = np.sqrt(variance + norm.eps)
        ratio = s / np.sqrt(np.maximum(variance - off, 0) + norm.eps) - 1 + 4 * eps
        slope = np.abs(weight) / s
        bound = slope * (dc + ratio * (np.abs(c) + dc)) + eps * (2 * slope * np.abs(c) + np.abs(bias))
        if is_rms:
            out = oracle.rms_norm(z, state["weight"], eps=norm.eps, unit_offset=norm.unit_offset)
        else:
            out = oracle.layer_norm(z, weight, bias, eps=norm.eps)
        return Near(out, bound).rounded(norm.dtype)


def linear(layer: Linear, x: Near) -> Near:
    state = layer.state_dict()
    with np.errstate(all="ignore"):
        return _product(x, state["weight"], state.get("bias"), layer.dtype)


def feed_forward(layer: FeedForward, x: Near) -> Near:
    dtype, state = layer.dtype, layer.state_dict()
    with np.errstate(all="ignore"):
        h = _product(x, state["linear1.weight"], state.get("linear1.bias"), accumulator_of(dtype))
        gate = h
        if layer.gated:
            gate = _product(x, state["gate.weight"], state.get("gate.bias"), accumulator_of(dtype))
        off = STEEPEST[layer.activation] * gate.bound + 4 * _eps(dtype) * np.abs(gate.out)
        active = Near(oracle.activate(gate.out, layer.activation), off)
        if layer.gated:
            if layer.activation == "swiglu_oai":
                factor = 1 + np.clip(h.out, -7, 7)
                h = Near(factor, h.bound + _eps(dtype) * np.abs(factor))
            out = active.out * h.out
            parts = np.abs(active.out) * h.bound + (np.abs(h.out) + h.bound) * active.bound
            active = Near(out, parts + _eps(dtype) / 2 * np.abs(out))
        active = active.rounded(dtype)
        return _product(active, state["linear2.weight"], state.get("linear2.bias"), dtype)


def attention(layer: MultiHeadAttention, x: Near, memory: Near, options: dict[str, Any]) -> tuple[Near, Near]:
    """Of `x` to `memory`: the result, and the weights of each head."""
    dtype, state, heads = layer.dtype, layer.state_dict(), layer.num_heads
    with np.errstate(all="ignore"):
        q, k, v = (
            _heads(_product(of, weight, bias, dtype), count)
            for of, (weight, bias, count) in zip((x, memory, memory), tolerance.in_projections(layer), strict=True)
        )
        inner = tolerance.attention(q.out, k.out, v.out, options, layer.dtype)
        k, v = (Near(*(np.repeat(y, heads // layer.num_kv_heads, axis=-3) for y in (z.out, z.bound))) for z in (k, v))
        scale = options.get("scale") or layer.head_dim**-0.5
        moved = q.bound**2 @ _turned(k.out**2) + q.out**2 @ _turned(k.bound**2)
        moved = (scale * inner.weights) ** 2 * np.where(inner.weights == 0, 0, moved)  # (w_j e_j)^2
        of_weights = np.sqrt(moved + inner.weights**2 * moved.sum(-1, keepdims=True))
        values, finite = np.where(np.isfinite(v.out), v.out, 0), np.where(np.isfinite(v.bound), v.bound, 0)
        spread = moved @ values**2 - 2 * inner.out * (moved @ values) + inner.out**2 * moved.sum(-1, keepdims=True)
        of_heads = np.sqrt(np.maximum(spread, 0) + inner.weights**2 @ finite**2)
        whole = Near(*map(tolerance.joined_heads, (inner.out, inner.out_bound + of_heads))).rounded(dtype)
        out = _product(whole, state["out_proj.weight"], state.get("out_proj.bias"), dtype)
    return out, Near(inner.weights, inner.weights_bound + of_weights)


def encoder(encoder: Encoder | EncoderLayer, x: Array, options: dict[str, Any]) -> tuple[Near, list[Near]]:
    """The result, and the weights of each layer."""
    weights = []

    def blocks(layer: EncoderLayer) -> list[Any]:
        def attend(y: Near) -> Near:
            out, of_heads = attention(layer.self_attn, y, y, options)
            weights.append(of_heads)
            return out

        return [attend, lambda y: feed_forward(layer.feed_forward, y)]

    return _through(encoder, x, blocks), weights


def decoder(
    decoder: Decoder | DecoderLayer, x: Array, memory: Array | Near, options: dict[str, Any], of_memory: dict[str, Any]
) -> Near:
    """`options` are those of the self-attention, `of_memory` those of the attention to the memory."""
    seen = memory if isinstance(memory, Near) else Near.exactly(memory)

    def blocks(layer: DecoderLayer) -> list[Any]:
        return [
            lambda y: attention(layer.self_attn, y, y, options)[0],
            lambda y: attention(layer.cross_attn, y, seen, of_memory)[0],
            lambda y: feed_forward(layer.feed_forward, y),
        ]

    return _through(decoder, x, blocks)


def _through(stack: Any, x: Array, blocks: Any) -> Near:
    """All layers of a stack, or of one layer."""
    dtype, y = stack.dtype, Near.exactly(x)
    for layer in getattr(stack, "layers", (stack,)):
        for number, block in enumerate(blocks(layer), 1):
            norm = getattr(layer, f"norm{number}")
            before, after = (norm, None) if layer.norm_first else (None, norm)
            added = normalized(getattr(layer, f"output_norm{number}"), block(normalized(before, y)))
            y = normalized(after, y.plus(added, dtype))
    return normalized(getattr(stack, "norm", None), y)


def _eps(dtype: Any) -> float:
    """Of what `dtype` is computed in."""
    return float(limits(accumulator_of(dtype)).eps)


def _product(x: Near, weight: Array, bias: Array | None, dtype: Any) -> Near:
    out, bound = tolerance.projection(x.out, weight, bias, accumulator_of(dtype))
    return Near(out, bound + np.sqrt(x.bound**2 @ weight.T.astype(np.float64) ** 2)).rounded(dtype)


def _root(x: Array) -> Array:
    return np.sqrt(x.sum(-1, keepdims=True))


def _turned(x: Array) -> Array:
    return x.swapaxes(-1, -2)


def _heads(x: Near, count: int) -> Near:
    """[..., T, count * D] -> [..., count, T, D]."""
    return Near(*(tolerance.split_heads(y, count) for y in (x.out, x.bound)))
