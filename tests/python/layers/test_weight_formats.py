"""Weights in bfloat16, int8 and int4: results against what the weights stand for, bit for bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from int8_oracle import most_outliers, outlier_limit, projection, weights
from tolerance import assert_same_bits

import mha_native
from mha_native import Decoder, Encoder, FeedForward, Linear, MultiHeadAttention, scaled_dot_product_attention

Array = np.ndarray[Any, Any]
F32 = np.float32

# Features of 1 to 3 are less than a word of a panel; 129 and 257 go beyond a chain of sums, 769 beyond a block of them.
SIZES = [(1, 1), (3, 5), (29, 64), (64, 29), (129, 17), (257, 3), (769, 70)]
WIDE = {"num_kv_heads": 2, "head_dim": 5, "value_head_dim": 3, "kdim": 7, "vdim": 9, "out_dim": 11}
ATTENTIONS: list[dict[str, Any]] = [
    {"embed_dim": 64, "num_heads": 4},
    {"embed_dim": 30, "num_heads": 6, "bias": False},
    {"embed_dim": 24, "num_heads": 4, "add_bias_kv": True, "add_zero_attn": True},
    {"embed_dim": 24, "num_heads": 4, **WIDE},
    {"embed_dim": 514, "num_heads": 2, "head_dim": 80},
]
every_size = pytest.mark.parametrize("sizes", SIZES, ids=str)
every_attention = pytest.mark.parametrize("options", ATTENTIONS, ids=lambda o: "-".join(map(str, o.values())))
every_format = pytest.mark.parametrize("weight_dtype", ["bfloat16", "int8", "int4"])


def _randomized(module: Any) -> Any:
    """With biases that are not zero."""
    rng = np.random.default_rng(3)
    module.load_state_dict(
        {name: x + rng.normal(0, 0.1, x.shape).astype(x.dtype) for name, x in module.state_dict().items()}
    )
    return module


def _attention(options: dict[str, Any], **more: Any) -> MultiHeadAttention:
    layer = _randomized(MultiHeadAttention(**options, seed=0))
    return layer.quantize(**more) if more else layer


def _inputs(layer: MultiHeadAttention, rows: int = 5) -> list[Array]:
    rng = np.random.default_rng(1)
    shapes = ((2, rows, layer.embed_dim), (2, rows + 2, layer.kdim), (2, rows + 2, layer.vdim))
    return [rng.standard_normal(shape, dtype=F32) for shape in shapes]


@every_size
def test_bfloat16_weights_have_the_bits_of_rounded_ones(sizes: tuple[int, int], isa: str, rng: Any) -> None:
    layer = _randomized(FeedForward(*sizes, activation="gelu", seed=0)).quantize("bfloat16")
    rounded = layer.quantize("float32")
    for rows in (1, 2, 7, 150):
        x = rng.standard_normal((rows, sizes[0]), dtype=F32)
        out = np.full_like(x, np.nan)
        layer(x, out=out)
        assert_same_bits(out, rounded(x), label=f"{rows} rows")


@every_attention
def test_attention_with_bfloat16_weights(options: dict[str, Any], isa: str, num_threads: int) -> None:
    layer = _attention(options, weight_dtype="bfloat16")
    inputs = _inputs(layer, 40)
    out, of_heads = layer(*inputs, need_weights=True, num_threads=num_threads)
    expected, expected_weights = layer.quantize("float32")(*inputs, need_weights=True)
    assert_same_bits(out, expected)
    assert_same_bits(of_heads, expected_weights)


def test_rounding_to_bfloat16_is_to_nearest_even() -> None:
    ties = np.arange(0x3F808000, 0x3F908000, 0x10000, dtype=np.uint32).view(F32)
    special = np.array([0, -0.0, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-40, -1e-45, 1.5], F32)
    values = np.concatenate([ties, np.nextafter(ties, F32(9)), np.nextafter(ties, F32(0)), special])
    layer = FeedForward(values.size, 1, bias=False)
    state = layer.state_dict() | {"linear1.weight": values[None]}
    layer.load_state_dict(state)
    with np.errstate(over="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).astype(F32)
    assert_same_bits(layer.quantize("bfloat16").state_dict()["linear1.weight"][0], expected)
    assert len(set(expected.tolist())) < len(set(values.tolist())), "nothing was rounded"


def test_a_weight_of_nan_stays_one() -> None:
    bits = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000], np.uint32)  # the first two would round to something else
    layer = FeedForward(3, 1, bias=False)
    layer.load_state_dict(layer.state_dict() | {"linear1.weight": bits.view(F32)[None]})
    assert np.isnan(layer.quantize("bfloat16").state_dict()["linear1.weight"]).all()


@every_size
def test_int8_weights_give_what_the_rule_says(sizes: tuple[int, int], isa: str, num_threads: int, rng: Any) -> None:
    plain = _randomized(FeedForward(*sizes, seed=0))
    layer, state = plain.quantize("int8"), plain.state_dict()
    (w1, s1), (w2, s2) = (weights(state[f"{name}.weight"]) for name in ("linear1", "linear2"))
    stored = layer.state_dict()
    for name, integers, scale in (("linear1", w1, s1), ("linear2", w2, s2)):
        assert_same_bits(stored[f"{name}.weight"], integers)
        assert_same_bits(stored[f"{name}.weight_scale"], scale)
    for rows in (1, 2, 7, 150):
        x = rng.standard_normal((rows, sizes[0]), dtype=F32) * rng.uniform(0.01, 100, (rows, 1)).astype(F32)
        out = np.full_like(x, np.nan)
        layer(x, out=out, num_threads=num_threads)
        hidden = np.maximum(projection(x, w1, s1, state["linear1.bias"]), 0)
        assert_same_bits(out, projection(hidden, w2, s2, state["linear2.bias"]), label=f"{rows} rows")


def _rows_with_outliers(features: int, rng: Any) -> Array:
    """Rows [n, features], with a few features that are up to 1000 times as large as others."""
    most = most_outliers(features)
    rows = []
    for count in {1, (most + 1) // 2, most, most + 1, 4 * most}:
        for factor in (1.5, 4, 60, 127, 129, 1000):
            row = rng.uniform(-1, 1, features)
            outliers = rng.permutation(features)[:count]
            row[outliers] *= np.sort(rng.uniform(1, factor, count)) / np.abs(row[outliers])
            row[outliers[-1]] = rng.choice([-factor, factor])
            rows += [row, np.abs(row), -np.abs(row)]
    return np.array(rows, F32)


@pytest.mark.parametrize("features", [64, 130, 257, 900])
def test_outliers_of_a_row_have_more_digits(features: int, isa: str, num_threads: int, rng: Any) -> None:
    layer = Linear(features, 70, seed=0, weight_dtype="int8")
    state = layer.state_dict()
    state["weight"][::2] = rng.choice([-128, 127], (35, features))
    layer.load_state_dict(state)
    x = _rows_with_outliers(features, rng)
    beyond = (np.abs(x) > outlier_limit(x)).sum(-1)
    assert beyond.min() == 0
    assert beyond.max() == most_outliers(features)
    for rows in (x, x[:1], x[:, ::-1], np.asfortranarray(x)):
        expected = projection(rows, state["weight"], state["weight_scale"], state["bias"])
        assert_same_bits(layer(rows, num_threads=num_threads), expected)


def test_outliers_cost_others_no_digits(rng: Any) -> None:
    layer = Linear(640, 50, seed=0).quantize("int8").quantize("float32")  # so that only rows are rounded
    x = rng.uniform(-1, 1, (9, 640)).astype(F32)
    few = x.copy()
    few[:, rng.permutation(640)[:10]] *= 100
    errors = [np.abs(layer.quantize("int8")(rows) - layer(rows)).max() for rows in (x, few)]
    assert errors[1] < 3 * errors[0]  # 100 with one scale for all


@every_attention
def test_attention_with_int8_weights(options: dict[str, Any], isa: str, num_threads: int) -> None:
    layer = _attention({name: x for name, x in options.items() if not name.startswith("add_")}, weight_dtype="int8")
    (*in_proj, (weight, bias, scale)), _ = layer._core.weights()
    inputs = _inputs(layer, 40)
    heads = layer.num_heads, layer.num_kv_heads, layer.num_kv_heads
    q, k, v = (
        projection(x, w, s, b).reshape(2, x.shape[1], count, -1).swapaxes(1, 2)
        for x, (w, b, s), count in zip(inputs, in_proj, heads, strict=True)
    )
    z = scaled_dot_product_attention(*(np.ascontiguousarray(x) for x in (q, k, v)))
    joined = z.swapaxes(1, 2).reshape(2, z.shape[2], -1)
    out = layer(*inputs, num_threads=num_threads)
    assert_same_bits(out, projection(joined, weight, scale, bias))


def test_added_keys_stay_as_they_are() -> None:
    layer = _attention(ATTENTIONS[2])
    state = layer.state_dict()
    for name in ("bias_k", "bias_v"):
        assert_same_bits(layer.quantize("int8").state_dict()[name], state[name])


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf], ids=str)
def test_what_is_not_finite_stays_in_its_row(number: float, isa: str, rng: Any) -> None:
    layer = _randomized(FeedForward(37, 50, seed=0)).quantize("int8")
    x = rng.standard_normal((9, 37), dtype=F32)
    expected = layer(x)
    x[4, 36] = number
    out = layer(x)
    assert np.isnan(out[4]).all()
    assert_same_bits(np.delete(out, 4, 0), np.delete(expected, 4, 0))


@pytest.mark.parametrize("number", [np.nan, np.inf], ids=str)
def test_a_weight_that_is_not_finite_spoils_its_feature(number: float, isa: str, rng: Any) -> None:
    layer = FeedForward(20, 6, seed=0, bias=False)
    state = layer.state_dict()
    expected = layer.quantize("int8")
    state["linear2.weight"][7, 2] = number
    layer.load_state_dict(state)
    x = rng.standard_normal((3, 20), dtype=F32)
    out = layer.quantize("int8")(x)
    assert np.isnan(out[:, 7]).all()
    assert_same_bits(np.delete(out, 7, 1), np.delete(expected(x), 7, 1))


@pytest.mark.parametrize("size", [0, 1e-45, 1e-38, 1e-31, 7e-31, 1e-20, 1e30, 3e38], ids=str)
def test_rows_of_any_size(size: float, isa: str, rng: Any) -> None:
    layer = _randomized(FeedForward(40, 8, seed=0)).quantize("int8")
    state = layer.state_dict()
    x = (rng.uniform(-1, 1, (3, 40)) * size).astype(F32)
    with np.errstate(over="ignore", invalid="ignore"):
        hidden = projection(x, state["linear1.weight"], state["linear1.weight_scale"], state["linear1.bias"])
        hidden = np.maximum(hidden, 0)
        second = state["linear2.weight"], state["linear2.weight_scale"], state["linear2.bias"]
        assert_same_bits(layer(x), projection(hidden, *second))
    if size == 0:
        assert_same_bits(hidden, np.maximum(np.broadcast_to(state["linear1.bias"], hidden.shape), 0))


def test_all_instruction_sets_agree_in_every_bit(rng: Any) -> None:
    layer = _randomized(FeedForward(300, 200, seed=0)).quantize("int8")
    x = rng.standard_normal((70, 300), dtype=F32)
    results = []
    for isa in mha_native.available_isas():
        with mha_native.use_isa(isa):
            results.append(layer(x))
    for result in results[1:]:
        assert_same_bits(result, results[0])


def test_the_least_number_has_no_partner(isa: str, rng: Any) -> None:
    """-128 is never made by rounding, but weights from elsewhere may have it."""
    layer = FeedForward(50, 20, seed=0, weight_dtype="int8")
    state = layer.state_dict()
    state["linear1.weight"][:] = rng.integers(-128, 128, (20, 50))
    state["linear1.weight"][3] = -128
    layer.load_state_dict(state)
    x = rng.standard_normal((6, 50), dtype=F32)
    x[2] = 1
    first = state["linear1.weight"], state["linear1.weight_scale"], state["linear1.bias"]
    hidden = np.maximum(projection(x, *first), 0)
    second = state["linear2.weight"], state["linear2.weight_scale"], state["linear2.bias"]
    assert_same_bits(layer(x), projection(hidden, *second))


def test_the_most_features_and_one_more(isa: str) -> None:
    most = (2**31 - 1) // (128 * 254)
    with pytest.raises(ValueError, match=f"at most {most} input features"):
        FeedForward(most + 1, 1, weight_dtype="int8")
    layer = FeedForward(most, 1, bias=False, weight_dtype="int8")
    state = layer.state_dict()
    state["linear1.weight"][:] = -128
    state["linear1.weight_scale"][:] = 1
    layer.load_state_dict(state)
    hidden = F32(most * 128 * 254) * (F32(0.5) / F32(127))
    weight, scale = state["linear2.weight"], state["linear2.weight_scale"]
    expected = projection(np.array([[hidden]], F32), weight, scale, None)
    assert_same_bits(layer(np.full((1, most), -1, F32)), expected)


@every_format
def test_views(weight_dtype: str, isa: str, rng: Any) -> None:
    layer = _attention({"embed_dim": 30, "num_heads": 3}, weight_dtype=weight_dtype)
    x = rng.standard_normal((3, 9, 30), dtype=F32)
    expected = layer(x)
    wide = np.full((9, 3, 61), np.nan, F32)
    view = wide[:, :, ::2][..., :30].swapaxes(0, 1)
    view[...] = x
    view.flags.writeable = False
    assert_same_bits(layer(view), expected)
    out = np.full((3, 30, 9), np.nan, F32).swapaxes(1, 2)
    layer(x[:, ::-1][:, ::-1], out=out)
    assert_same_bits(np.ascontiguousarray(out), expected)


@every_format
def test_a_row_has_the_same_bits_in_any_company(weight_dtype: str, isa: str, num_threads: int, rng: Any) -> None:
    encoder = Encoder(2, 48, 3, 100, activation="gelu", norm_first=True, seed=0, weight_dtype=weight_dtype)
    x = rng.standard_normal((300, 48), dtype=F32)
    expected = encoder(x, is_causal=True)
    cu_seqlens = np.array([0, 300, 450])
    ragged = encoder(np.concatenate([x, x[:150]]), cu_seqlens=cu_seqlens, is_causal=True, num_threads=num_threads)
    assert_same_bits(ragged[:300], expected)
    assert_same_bits(ragged[300:], expected[:150])
    caches = encoder.new_caches(1, 300)
    steps = [
        encoder(rows, is_causal=True, caches=caches, num_threads=num_threads)
        for rows in np.split(x, [200, 201, 202, 209])
    ]
    assert_same_bits(np.concatenate(steps), expected)


@every_format
def test_steps_of_a_batch_of_decoders(weight_dtype: str, isa: str, rng: Any) -> None:
    decoder = Decoder(2, 32, 2, 50, memory_dim=20, seed=0, weight_dtype=weight_dtype)
    x = rng.standard_normal((3, 6, 32), dtype=F32)
    memory = rng.standard_normal((3, 4, 20), dtype=F32)
    caches, memory_caches = decoder.new_caches(3, 6), decoder.project_memory(memory)
    steps = [decoder(x[:, t : t + 1], caches=caches, memory_caches=memory_caches) for t in range(6)]
    assert_same_bits(np.concatenate(steps, 1), decoder(x, memory))
