"""Bits do not depend on the floating-point state of the caller, nor does the caller find another one afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import floating_point
import numpy as np
import pytest
from element_types import BFLOAT16, accumulator_of
from tolerance import assert_same_bits

import mha_native
from mha_native import _core

Array = np.ndarray[Any, np.dtype[Any]]
Calls = dict[str, Callable[[int], list[Array]]]

pytestmark = pytest.mark.skipif(not floating_point.can_be_set(), reason="the layout of fenv_t is not known here")

DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": BFLOAT16}


def _attention_calls() -> Calls:
    """Large enough for three threads, with weights and values down to subnormal numbers."""
    rng = np.random.default_rng(0)
    calls: Calls = {}
    tokens = np.random.default_rng(3).standard_normal((170, 33), dtype=np.float32)
    tokens[::2] *= np.float32(1e-38)  # scales and scores down to subnormal numbers
    for name, dtype in DTYPES.items():
        least = float(np.finfo(accumulator_of(dtype)).tiny)
        query, key, value = (rng.standard_normal((1, 4, 150, 32)).astype(dtype) for _ in range(3))
        query *= dtype(20)
        value[..., ::3] *= dtype(least)
        step, keys = query[:, :, :1], rng.standard_normal((2, 1, 1, 2100, 32)).astype(dtype)
        rows, offsets = query[0].swapaxes(0, 1), np.array([0, 40, 41, 150])
        slopes, sinks, wide = np.linspace(0.1, 9, 4), np.linspace(-3, 3, 4), accumulator_of(dtype)
        lses = [x[..., 0].astype(wide) for x in (query, key, value)]
        options = {
            "attn_mask": rng.standard_normal((150, 150)).astype(dtype), "softcap": 30.0, "is_causal": True,
            "alibi_slopes": slopes.astype(wide), "sinks": sinks.astype(wide),
        }  # fmt: skip
        calls |= {
            f"attention {name}": lambda n, a=(query, key, value): [
                *mha_native.scaled_dot_product_attention(*a, return_lse=True, num_threads=n)
            ],
            f"options {name}": lambda n, a=(query, key, value), o=options: [
                mha_native.scaled_dot_product_attention(*a, num_threads=n, **o)
            ],
            f"decode {name}": lambda n, a=(step, *keys): [mha_native.scaled_dot_product_attention(*a, num_threads=n)],
            f"varlen {name}": lambda n, a=(rows, offsets): [
                mha_native.scaled_dot_product_attention_varlen(a[0], a[0], a[0], a[1], a[1], num_threads=n)
            ],
            f"weights {name}": lambda n, a=(query, key): [mha_native.attention_weights(*a, num_threads=n)],
            f"statistics {name}": lambda n, a=(query, key): [
                np.asarray(x) for x in mha_native.attention_statistics(*a, num_threads=n)
            ],
            f"gradient {name}": lambda n, a=(query, key, value, query, lses[0], query): [
                x for x in mha_native.attention_gradient(*a, num_threads=n) if x is not None
            ],
            f"maxsim {name}": lambda n, a=(rows[:, 0], value[0, 1], offsets): [
                mha_native.maxsim(a[0], a[1], cu_seqlens_q=a[2], cu_seqlens_k=a[2], num_threads=n)
            ],
            f"merge {name}": lambda n, a=([query, key, value], lses): [*mha_native.merge_attention(*a, num_threads=n)],
        }

    def of_integers(n: int) -> list[Array]:
        integers, scale = mha_native.quantize_tokens(tokens, num_threads=n)
        scores = mha_native.maxsim(
            [integers], [integers[:90], integers[90:]], query_scale=scale, document_scale=scale, num_threads=n
        )
        return [integers, scale, scores]

    return calls | {"maxsim int8": of_integers}


def _layer_calls() -> Calls:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 70, 96), dtype=np.float32)
    plain = mha_native.MultiHeadAttention(96, 4, seed=0)
    state = plain.state_dict()
    encoder = mha_native.Encoder(2, 96, 4, 200, activation="gelu", seed=0)
    layers = {
        "layer": plain, "layer in bf16": plain.astype("bfloat16"), "layer of int8": plain.quantize("int8"),
        "layer of int4": plain.quantize("int4"),
        "layer of bf16": plain.quantize("bfloat16"), "encoder": encoder, "encoder of int8": encoder.quantize("int8"),
        "feed-forward": encoder.layers[0].feed_forward, "norm": encoder.layers[0].norm1,
    }  # fmt: skip

    def packing(dtype: str) -> Callable[[int], list[Array]]:
        layer = plain.quantize(dtype)

        def pack(_: int) -> list[Array]:
            layer.load_state_dict(state)
            return [*layer.state_dict().values()]

        return pack

    def step(n: int) -> list[Array]:
        cache = plain.new_cache(2, 80)
        return [plain(x[:, :60], cache=cache, num_threads=n), plain(x[:, 60:61], cache=cache, num_threads=n)]

    def of_layer(layer: Any) -> Callable[[int], list[Array]]:
        rows = x.astype(layer.dtype)
        return lambda n: [layer(rows, num_threads=n)]

    calls = {name: of_layer(layer) for name, layer in layers.items()}
    calls["step"] = step
    tokens, texts = rng.integers(0, 50, 3000), np.array([0, 70, 70, 3000])
    words, pooled = rng.standard_normal((2, 3000, 96), dtype=np.float32)
    calls["embedding"] = lambda n: [
        _core.embed_tokens(tokens, None, texts, words[:50], words, None, None, 1e-5, None, n),
        _core.mean_pool(pooled, texts, True, None, n),
    ]
    calls["positions"] = lambda _: [mha_native.sinusoidal_positions(50, 33, first_position=1000)]
    return calls | {f"packing in {dtype}": packing(dtype) for dtype in ("int8", "int4", "bfloat16")}


def _training_calls() -> Calls:
    """With elements down to subnormal numbers."""
    rng = np.random.default_rng(2)
    calls: Calls = {}
    for name, dtype in DTYPES.items():
        x, dout, up = (rng.standard_normal((900, 96)).astype(dtype) for _ in range(3))
        dout[:, ::3] *= dtype(float(np.finfo(accumulator_of(dtype)).tiny))
        weight, ids = rng.standard_normal((500, 96)).astype(dtype), rng.integers(0, 500, 900)
        rotary = mha_native.RotaryEmbedding.from_base(32, 900, dtype=accumulator_of(dtype))

        def step(n: int, x: Array = x, dout: Array = dout) -> list[Array]:
            optimizer = mha_native.optim.AdamW({"w": x}, lr=0.1, max_grad_norm=1.0)
            optimizer.step({"w": dout}, num_threads=n)
            return [*optimizer.state_dict().values()]

        calls |= {
            f"layer norm {name}": lambda n, a=(x, weight[0], dout): [
                *mha_native.layer_norm_gradient(*a, num_threads=n)
            ],
            f"RMSNorm {name}": lambda n, a=(x, weight[0], dout): [*mha_native.rms_norm_gradient(*a, num_threads=n)[:2]],
            f"activation {name}": lambda n, x=x, dout=dout, up=up: [
                mha_native.activation(x, activation="gelu", up=up, num_threads=n),
                *mha_native.activation_gradient(x, dout, activation="silu", up=up, num_threads=n),
            ],
            f"table {name}": lambda n, ids=ids, dout=dout: [
                mha_native.embedding_gradient(ids, dout, 500, num_threads=n)
            ],
            f"rotation {name}": lambda n, rotary=rotary, dout=dout: [rotary.gradient(dout, num_threads=n)],
            f"cross-entropy {name}": lambda n, a=(x, weight, ids): [
                *mha_native.cross_entropy(*a, wrt=("x", "weight"), num_threads=n)[:3]
            ],
            f"AdamW {name}": step,
        }
    return calls


CALLS = {"attention": _attention_calls, "layers": _layer_calls, "training": _training_calls}


def check(state: str, part: str) -> None:
    """Compares results in a state with those in the usual one, on one thread and on several."""
    for name, call in CALLS[part]().items():
        expected = call(1)
        for threads in (1, 2, 3):
            before = floating_point.control()
            with floating_point.state(state):
                results = call(threads)
                after = floating_point.control()
            for result, same in zip(results, expected, strict=True):
                assert_same_bits(result, same, label=f"{name}, {threads} threads, {state}")
            assert after == floating_point.STATES[state], f"{name}: the caller's state has changed to {after:#x}"
            assert floating_point.control() == before


@pytest.mark.parametrize(
    "state",
    [
        "flushing",
        "upwards",
        *(pytest.param(x, marks=pytest.mark.exhaustive) for x in ("usual", "downwards", "to zero")),
    ],
)
@pytest.mark.parametrize("part", CALLS)
def test_bits_do_not_depend_on_the_state_of_the_caller(part: str, state: str, isa: str) -> None:
    check(state, part)


@pytest.mark.parametrize("isa", mha_native.available_isas())  # not the fixture: another process computes
@pytest.mark.parametrize("part", CALLS)
def test_no_signal_is_raised_where_exceptions_trap(part: str, isa: str) -> None:
    # In a process of its own, which the signal would end.
    code = f"import test_floating_point_state as test; test.check('trapping', {part!r})"
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = os.environ | {"PYTHONPATH": paths, "MHA_NATIVE_ISA": isa}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_handler_of_signals_keeps_subnormal_numbers() -> None:
    """Python runs it in the middle of a call."""
    seen, least = [], np.full(4, 5e-324)
    query = np.ones((1, 8, 3000, 64), np.float32)
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append((is_inside[0], (least + least)[0])))
    is_inside = [True]
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        mha_native.scaled_dot_product_attention(query, query, query, num_threads=1)
        is_inside[0] = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen == [(True, 1e-323)]


def test_subnormal_numbers_count_as_zero(isa: str, dtype: Any) -> None:
    """As operands and as results, on every instruction set alike."""
    tiny = np.finfo(dtype).tiny
    value = np.array([[tiny / 2, tiny, 2 * tiny, 1]], dtype)
    one = np.ones((1, 2), dtype)
    for rows in (1, 20):  # by either kernel
        query = np.ones((rows, 2), dtype)
        out = mha_native.scaled_dot_product_attention(query, one, value)
        assert (out == np.array([0, tiny, 2 * tiny, 1], dtype)).all()
        # Scores of 0 and of -bits: weights of 1 and 2^-bits.
        for bits, is_zero in ((-np.log2(tiny) - 1, False), (-np.log2(tiny) + 1, True)):
            key = np.array([[0, 0], [-bits * np.log(2), 0]], dtype)
            weights = mha_native.attention_weights(query, key, scale=1.0)
            assert ((weights[:, 1] == 0) == is_zero).all()
            assert (weights[:, 0] == 1).all()
