"""Hypothesis strategies: random calls of attention, and random mixtures of its options."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import mha_native

PROPERTY = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

isas = st.sampled_from(mha_native.available_isas())
lengths = st.one_of(st.integers(1, 12), st.sampled_from((31, 32, 33, 63, 64, 65, 95, 96, 97, 130, 193)))
widths = st.one_of(st.integers(1, 20), st.sampled_from((31, 32, 33, 64, 80)))


@st.composite
def calls(draw: st.DrawFn, group: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.random.Generator]:
    """Query, key and value of one dtype, with weights from uniform to one key takes all; and the generator."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = draw(st.sampled_from((np.float32, np.float64)))
    batch, kv_heads = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    heads = kv_heads * (draw(st.integers(1, 4)) if group is None else group)
    queries, keys, width, value_width = draw(lengths), draw(lengths), draw(widths), draw(widths)
    magnitude = 10.0 ** draw(st.integers(-3, 2))
    query = magnitude * rng.standard_normal((batch, heads, queries, width))
    key = rng.standard_normal((batch, kv_heads, keys, width))
    value = rng.standard_normal((batch, kv_heads, keys, value_width))
    return query.astype(dtype), key.astype(dtype), value.astype(dtype), rng


@st.composite
def restrictions(draw: st.DrawFn, query: np.ndarray, key: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
    """Any mixture of masks and of changes of the scores."""
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    options: dict[str, Any] = {"is_causal": draw(st.booleans())}
    if draw(st.booleans()):
        options["query_offset"] = rng.integers(-queries, keys + 1, batch)
    if draw(st.booleans()):
        options["key_lengths"] = rng.integers(0, keys + 1, batch)
    if draw(st.booleans()):
        options["window"] = (draw(st.integers(-1, keys)), draw(st.integers(-1, keys)))
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from((-1.0, 0.0, 0.1, 1.0)))
    if draw(st.booleans()):
        options["softcap"] = draw(st.sampled_from((0.5, 3.0, 50.0)))
    if draw(st.booleans()):
        options["alibi_slopes"] = (rng.random(heads) / 4).astype(query.dtype)
    if draw(st.booleans()):
        options["sinks"] = (5 * rng.standard_normal(heads)).astype(query.dtype)
    if draw(st.booleans()):
        options["position_bias"] = rng.standard_normal((heads, 2 * draw(st.integers(0, 99)) + 1)).astype(query.dtype)
    kind = draw(st.sampled_from(("none", "boolean", "additive")))
    shape = [1 if draw(st.booleans()) else n for n in (batch, heads, queries, keys)][draw(st.integers(0, 3)) :]
    if kind == "boolean":
        options["attn_mask"] = rng.random(shape) < 0.7
    elif kind == "additive":
        mask = rng.standard_normal(shape).astype(query.dtype)
        mask[rng.random(shape) < 0.3] = -np.inf
        options["attn_mask"] = mask
    return options
