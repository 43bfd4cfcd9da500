"""The bounds of transformer_tolerance let the textbook computation through, and little else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import transformer_tolerance
from matrix import ALL, WIDE, matrix
from random_layers import STACKS, decoder, encoder, oracle_options, rows
from tolerance import assert_close

from mha_native import reference

pytestmark = matrix(dtype=ALL)

Array = np.ndarray[Any, np.dtype[Any]]


def _softmax(scores: Array) -> Array:
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def _unfused_encoder(x: Array, model: Any, norm: Callable[..., Array], activate: Callable[..., Array]) -> Array:
    """An encoder in the dtype of x, as one writes it in NumPy; multi-head attention without masks or groups."""
    for layer in model.layers:
        state, heads = layer.state_dict(), layer.self_attn.num_heads

        def attend(y: Array, state: Any = state, heads: int = heads) -> Array:
            parts = np.split(y @ state["self_attn.in_proj_weight"].T + state["self_attn.in_proj_bias"], 3, -1)
            q, k, v = (part.reshape(*part.shape[:-1], heads, -1).swapaxes(-3, -2) for part in parts)
            scale = y.dtype.type(q.shape[-1] ** -0.5)
            out = (_softmax(scale * (q @ k.swapaxes(-1, -2))) @ v).swapaxes(-3, -2)
            joined = out.reshape(*out.shape[:-2], -1)
            return joined @ state["self_attn.out_proj.weight"].T + state["self_attn.out_proj.bias"]

        def feed(y: Array, state: Any = state, name: str = layer.feed_forward.activation) -> Array:
            h = y @ state["linear1.weight"].T + state["linear1.bias"]
            return activate(h, name) @ state["linear2.weight"].T + state["linear2.bias"]

        for block, which in ((attend, layer.norm1), (feed, layer.norm2)):
            x = x + block(norm(x, which)) if layer.norm_first else norm(x + block(x), which)
    return x if model.norm is None else norm(x, model.norm)


def _norm(x: Array, which: Any) -> Array:
    c = x - x.mean(-1, keepdims=True)
    state = which.state_dict()
    return c / np.sqrt((c * c).mean(-1, keepdims=True) + x.dtype.type(which.eps)) * state["weight"] + state["bias"]


def _one_pass_norm(x: Array, which: Any) -> Array:
    mean = x.mean(-1, keepdims=True)
    state, variance = which.state_dict(), (x * x).mean(-1, keepdims=True) - mean * mean
    return (x - mean) / np.sqrt(variance + x.dtype.type(which.eps)) * state["weight"] + state["bias"]


def _sample_norm(x: Array, which: Any) -> Array:
    state = which.state_dict()
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True, ddof=1) + x.dtype.type(which.eps))
    return normal * state["weight"] + state["bias"]


def _activate(h: Array, name: str) -> Array:
    return reference.activate(h, name).astype(h.dtype)


def _check(name: str, dtype: Any, length: int, norm: Any = _norm, activate: Any = _activate, **settings: Any) -> None:
    model = encoder(name, dtype)
    x = rows((2, length, model.embed_dim), dtype)
    expected, _ = transformer_tolerance.encoder(model, x, {})
    out = _unfused_encoder(x, model, norm, activate)
    assert out.dtype == dtype
    assert_close(out, expected.out, expected.bound, label=name)


@matrix(dtype=WIDE)
@pytest.mark.parametrize("length", [1, 40])
@pytest.mark.parametrize("name", ["usual", "pre-LN", "one wide", "narrow", "large eps"])
def test_the_textbook_computation_is_within_bounds(name: str, length: int, dtype: Any) -> None:
    _check(name, dtype, length)


WRONG: dict[str, dict[str, Any]] = {
    "the variance of a sample": {"norm": _sample_norm},
    "the other gelu": {"activate": lambda h, name: _activate(h, "gelu_tanh" if name == "gelu" else "gelu")},
    "no activation": {"activate": lambda h, name: h},
    "a norm without its bias": {"norm": lambda x, which: _norm(x, which) - which.state_dict()["bias"]},
    "a norm of 1 % less": {"norm": lambda x, which: _norm(x, which) * x.dtype.type(0.99)},
}


@matrix(dtype=WIDE)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", ["pre-LN", "one wide"])
def test_a_wrong_result_is_outside(name: str, wrong: str, dtype: Any) -> None:
    with pytest.raises(AssertionError, match="elements are off"):
        _check(name, dtype, 20, **WRONG[wrong])


def test_a_variance_by_cancellation_is_outside() -> None:
    norm = encoder("usual", np.float32).layers[0].norm1
    x = rows((9, 64), np.float32) + np.float32(300)
    expected = transformer_tolerance.layer_norm(norm, transformer_tolerance.Near.exactly(x))
    assert_close(_norm(x, norm), expected.out, expected.bound, label="two passes")
    with pytest.raises(AssertionError, match="elements are off"):
        assert_close(_one_pass_norm(x, norm), expected.out, expected.bound, label="one pass")


def test_a_float32_result_is_not_a_float64_result() -> None:
    model = encoder("pre-LN", np.float64)
    x = rows((2, 20, 48), np.float64)
    expected, _ = transformer_tolerance.encoder(model, x, {})
    out = _unfused_encoder(x, model, _norm, lambda h, name: _activate(h.astype(np.float32), name).astype(np.float64))
    with pytest.raises(AssertionError, match="elements are off"):
        assert_close(out, expected.out, expected.bound, label="float32 in between")


# A norm of one feature gives its bias, whatever it reads, and one of six does not say much more.
@pytest.mark.parametrize("name", [name for name in STACKS if name not in ("one feature", "narrow")])
def test_options_that_are_forgotten_are_outside(name: str, dtype: Any) -> None:
    model = decoder(name, dtype)
    x, memory = rows((2, 20, model.embed_dim), dtype), rows((2, 9, model.embed_dim), dtype, seed=8)
    expected = transformer_tolerance.decoder(model, x, memory, {"is_causal": True}, {"key_lengths": np.array([9, 4])})
    for wrong in ({"is_causal": False, "memory_lengths": [9, 4]}, {"memory_lengths": [9, 5]}, {}):
        out = reference.decoder(x, memory, model.state_dict(), **oracle_options(model), **wrong).astype(dtype)
        with pytest.raises(AssertionError, match="elements are off"):
            assert_close(out, expected.out, expected.bound, label=str(wrong))
