"""Weights of float32 in three parts of bfloat16: the split, its errors, rows and weights that have no parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tolerance import assert_same_bits

import mha_native
from mha_native import FeedForward, Linear, MultiHeadAttention

Array = np.ndarray[Any, Any]
F32 = np.float32

TILES = ("amx", "amx_model")

# Features: less than a pair, a tile of 32 and one more, a block of 128 and one more, several blocks.
SHAPES = [
    (1, 1, 1),
    (2, 5, 3),
    (16, 32, 64),
    (33, 33, 70),
    (40, 129, 17),
    (60, 384, 96),
    (40, 513, 65),
    (30, 768, 64),
    (9, 1700, 20),
    (8, 3072, 64),
]


def _linear(weight: Array, bias: Array | None = None, **more: Any) -> Linear:
    layer = Linear(weight.shape[1], weight.shape[0], bias=bias is not None, **more)
    state = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    layer.load_state_dict(state)
    return layer


def _pair(weight: Array, bias: Array | None = None) -> tuple[Linear, Linear]:
    """In float32, and by parts."""
    return _linear(weight, bias), _linear(weight, bias, weight_dtype="bfloat16x3")


def _parts(numbers: Array) -> list[Array]:
    parts, left = [], numbers.copy()
    for _ in range(3):
        parts.append(((left.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(F32))
        left = left - parts[-1]
    return parts


def _by_tiles(x: Array, weight: Array, bias: Array) -> Array:
    """The rule of docs/numerics.md. Chains of exact products are exact in float64 before each rounding, but for double
    rounding of a tie, which the random numbers of the test do not meet."""
    rows, features = x.shape
    xs, ws = (_parts(np.pad(a, ((0, 0), (0, -features % 32)))) for a in (x, weight))
    total = np.zeros((rows, len(weight)), F32)
    out = bias + total
    for block in range(0, features, 128):
        sums = np.zeros_like(total)
        for i, j in ((2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0)):
            for first in range(block, min(block + 128, xs[0].shape[1]), 32):
                chains = []
                for k in (first, first + 1):
                    chain = np.zeros_like(total)
                    for pair in range(0, 32, 2):
                        a, b = xs[i][:, k + pair, None], ws[j][None, :, k + pair]
                        chain = (a.astype(float) * b + chain).astype(F32)
                    chains.append(chain)
                sums = sums + (chains[0] + chains[1])
        total = sums if block % 768 == 0 else total + sums
        if (block + 128) % 768 == 0 or block + 128 >= features:
            out = out + total
    return out


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_tiles_give_is_what_the_rule_says(shape: tuple[int, int, int], isa: str, rng: Any) -> None:
    rows, features, out = shape
    x, weight = (rng.standard_normal((n, features), dtype=F32) for n in (rows, out))
    bias = rng.standard_normal(out, dtype=F32)
    plain, parts = _pair(weight, bias)
    assert_same_bits(parts(x), _by_tiles(x, weight, bias) if isa in TILES else plain(x))


def test_the_split_is_exact(isa: str, rng: Any) -> None:
    """One number times 1: what comes out is the sum of its parts, so any bit that is lost shows. Whatever the bits."""
    bits = rng.integers(0, 2**32, 400_000, dtype=np.uint64).astype(np.uint32)
    ends = np.array([2.0**-64, 2.0**64, 2.0**-36, 2.0**36, 2.0**-126, np.finfo(F32).max, 2.0**-149, 0, np.inf], F32)
    edges = (ends.view(np.uint32)[:, None] + np.arange(-3, 4)).astype(np.uint32).ravel()
    numbers = np.concatenate([bits, edges, edges ^ np.uint32(0x80000000)]).view(F32)
    numbers[np.isnan(numbers)] = np.nan
    one = np.ones((1, 1), F32)
    plain, parts = _pair(one)
    assert_same_bits(parts(numbers[:, None]), plain(numbers[:, None]))
    weights = numbers[-4096:]
    plain, parts = _pair(weights[:, None])
    assert_same_bits(parts(one), plain(one))
    for weight in weights[::16]:  # alone in its panel, so that most are split
        plain, parts = _pair(weight.reshape(1, 1))
        assert_same_bits(parts(one), plain(one))


def _errors(shape: tuple[int, int, int], rng: Any, draw: Any) -> Array:
    """Of float32 and of parts: root mean square and maximum, beside the sum of magnitudes."""
    rows, features, out = shape
    x, weight = draw(rng, (rows, features)), draw(rng, (out, features))
    exact, size = x.astype(float) @ weight.T.astype(float), np.abs(x).astype(float) @ np.abs(weight).T.astype(float)
    errors = [np.abs(layer(x) - exact) / size for layer in _pair(weight)]
    return np.array([(np.sqrt((e**2).mean()), e.max()) for e in errors])


DRAWS = {
    "normal": lambda rng, shape: rng.standard_normal(shape, dtype=F32),
    "positive": lambda rng, shape: rng.uniform(0.5, 1, shape).astype(F32),
    "many sizes": lambda rng, shape: (rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 20, shape)).astype(F32),
    "an outlier": lambda rng, shape: (
        np.where(rng.random(shape) < 0.01, 1000, 1).astype(F32) * rng.standard_normal(shape, dtype=F32)
    ),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_errors_are_no_larger_than_those_of_float32(kind: str, isa: str, rng: Any) -> None:
    shapes = [shape for shape in SHAPES if shape[1] >= 32]
    plain, parts = np.mean([_errors(shape, rng, DRAWS[kind]) for shape in shapes for _ in range(4)], 0)
    assert (parts <= plain).all(), f"(rms, maximum) of float32 {plain}, of parts {parts}"
    assert (isa in TILES) == (parts[0] < 0.9 * plain[0])


SPECIAL = [np.inf, -np.inf, np.nan, np.finfo(F32).max, 1e38, 2.0**64, 2.0**-65, 1e-38, 1e-40, 1e-45]


@pytest.mark.parametrize("number", SPECIAL, ids=str)
def test_a_row_that_has_no_parts_is_one_of_float32(number: float, isa: str, num_threads: int, rng: Any) -> None:
    plain, parts = _pair(*(rng.standard_normal(shape, dtype=F32) for shape in ((150, 200), 150)))
    x = rng.standard_normal((45, 200), dtype=F32)
    expected = parts(x)
    special = [0, 7, 8, 31, 44]
    x[special, rng.integers(0, 200, 5)] = number
    with np.errstate(all="ignore"):
        out = parts(x, num_threads=num_threads)
        assert_same_bits(out[special], plain(x)[special])
    assert_same_bits(np.delete(out, special, 0), np.delete(expected, special, 0))
    for row in (6, 7):
        assert_same_bits(parts(x[row : row + 1]), out[row : row + 1])


@pytest.mark.parametrize("number", [*SPECIAL, 2.0**36, 2.0**-37], ids=str)
def test_a_panel_that_has_no_parts_is_one_of_float32(number: float, isa: str, rng: Any) -> None:
    weight = rng.standard_normal((200, 150), dtype=F32)
    x = rng.standard_normal((20, 150), dtype=F32)
    expected = _pair(weight)[1](x)
    weight[100, 149] = number
    plain, parts = _pair(weight)
    with np.errstate(all="ignore"):
        out = parts(x)
        assert_same_bits(out[:, 64:128], plain(x)[:, 64:128])
    assert_same_bits(np.delete(out, np.s_[64:128], 1), np.delete(expected, np.s_[64:128], 1))


def test_products_of_the_smallest_and_largest_numbers(isa: str, rng: Any) -> None:
    """Nothing that counts is flushed, nothing overflows, at all ends of what is split."""
    for x_size, weight_size in ((-64, -36), (-64, 35), (63, -36), (63, 35)):
        x, weight = (
            np.ldexp(rng.uniform(1, 2, (30, 500)).astype(F32), size) * rng.choice([-1, 1], (30, 500)).astype(F32)
            for size in (x_size, weight_size)
        )
        exact, magnitude = x.astype(float) @ weight.T.astype(float), np.abs(x).astype(float) @ np.abs(weight.T)
        plain, parts = (np.abs(layer(x) - exact) / magnitude for layer in _pair(weight))
        assert np.sqrt((parts**2).mean()) <= np.sqrt((plain**2).mean())


@pytest.mark.parametrize("options", [{"gated": True, "activation": "silu"}, {"activation": "gelu"}], ids=str)
def test_feed_forwards_with_rows_of_either_kind(options: dict[str, Any], isa: str, num_threads: int, rng: Any) -> None:
    plain = FeedForward(70, 130, seed=0, **options)
    parts = plain.quantize("bfloat16x3")
    x = rng.standard_normal((50, 70), dtype=F32)
    x[[3, 17]] = 0
    x[[4, 30], 5] = 1e-30
    out = parts(x, num_threads=num_threads)
    np.testing.assert_allclose(out, plain(x), rtol=1e-5, atol=1e-6)
    for rows in (1, 2, 15, 16, 17, 33):
        assert_same_bits(parts(x[:rows]), out[:rows], label=f"{rows} rows")
    for row in range(50):
        assert_same_bits(parts(x[row]), out[row], label=f"row {row}")


def test_attention_by_parts(isa: str, num_threads: int, rng: Any) -> None:
    plain = MultiHeadAttention(96, 4, seed=0)
    parts = plain.quantize("bfloat16x3")
    x = rng.standard_normal((2, 37, 96), dtype=F32)
    out, expected = parts(x, num_threads=num_threads), plain(x)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    assert np.array_equal(out, expected) == (isa not in TILES)


def test_it_is_never_the_default() -> None:
    assert Linear(4, 5).weight_dtype == "float32"
    assert Linear(4, 5).quantize("float32").weight_dtype == "float32"


def test_the_weights_are_those_of_float32(rng: Any) -> None:
    weight = rng.standard_normal((70, 33), dtype=F32)
    weight[3, 4], weight[5, 6], weight[0, 0] = np.inf, 1e-45, np.finfo(F32).max
    plain, parts = _pair(weight)
    assert_same_bits(parts.state_dict()["weight"], weight)
    for other in (plain.quantize("bfloat16x3"), parts.quantize("float32")):
        assert_same_bits(other.state_dict()["weight"], weight)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_dtypes_have_no_parts(dtype: str) -> None:
    rule = f"Linear: weight_dtype of a layer in {dtype} must be '{dtype}'; got 'bfloat16x3'"
    with pytest.raises(TypeError, match=rule):
        Linear(4, 5, dtype=dtype, weight_dtype="bfloat16x3")


def test_instruction_sets_change_under_a_layer(rng: Any) -> None:
    plain, parts = _pair(rng.standard_normal((70, 130), dtype=F32))
    x = rng.standard_normal((20, 130), dtype=F32)
    for isa in (*mha_native.available_isas(), *mha_native.available_isas()):
        with mha_native.use_isa(isa):
            assert np.array_equal(parts(x), plain(x)) == (isa not in TILES)
