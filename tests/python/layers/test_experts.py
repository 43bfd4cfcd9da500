"""Experts: each row goes through the few that its router chooses, and has the same bits wherever it is."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from random_layers import randomized, rows
from tolerance import assert_close, assert_same_bits

from mha_native import (
    CausalDecoder,
    EncoderLayer,
    Experts,
    FeedForward,
    LayerNorm,
    Linear,
    MultiHeadAttention,
    RMSNorm,
    RotaryEmbedding,
    activation,
    activation_gradient,
    reference,
)

Array = np.ndarray[Any, Any]
F32 = np.float32
WIDTH, INNER, COUNT, CHOSEN = 29, 37, 7, 3

OPTIONS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "not normalized": {"normalize": False, "shared_dim": 21, "shared_gate": True},
    "gpt-oss": {"activation": "swiglu_oai", "bias": True, "router_bias": True},
    "sigmoid": {"scores": "sigmoid", "scale": 2.5, "shared_dim": 50},
    "without a gate": {"gated": False, "activation": "gelu", "bias": {"linear2"}},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
every_format = pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16", "int8"])


def _experts(dtype: Any = F32, **options: Any) -> Experts:
    return randomized(Experts(WIDTH, INNER, COUNT, CHOSEN, dtype=dtype, seed=1, **options))


def _logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _by_parts(layer: Experts, x: Array) -> tuple[Array, Array]:
    """The weighted sum of the results of all experts in float64, and the sum of the sizes of its terms."""
    logits = np.asarray(layer.router(x)).astype(np.float64)
    scores = _logistic(logits) if layer.scores == "sigmoid" else np.exp(logits - logits.max(-1, keepdims=True))
    if layer.scores == "softmax":
        scores /= scores.sum(-1, keepdims=True)
    corrected = scores + layer.state_dict().get("correction", np.zeros(1)).astype(np.float64)
    chosen = np.argsort(-corrected, axis=-1, kind="stable")[..., : layer.experts_per_token]
    weights = np.zeros_like(scores)
    np.put_along_axis(weights, chosen, np.take_along_axis(scores, chosen, -1), -1)
    if layer.normalize:
        weights /= weights.sum(-1, keepdims=True)
    terms = [
        layer.scale * weights[..., i, None] * np.asarray(expert(x)).astype(np.float64)
        for i, expert in enumerate(layer.experts)
    ]
    if layer.shared is not None:
        gate = 1.0 if layer.shared_gate is None else _logistic(np.asarray(layer.shared_gate(x)).astype(np.float64))
        terms.append(gate * np.asarray(layer.shared(x)).astype(np.float64))
    return np.sum(terms, axis=0), np.sum(np.abs(terms), axis=0)


@every_option
def test_a_layer_is_the_weighted_sum_of_its_parts(options: Any, isa: str, dtype: Any, num_threads: int) -> None:
    layer = _experts(dtype, **options)
    if layer.scores == "sigmoid":
        state = layer.state_dict() | {"correction": rows((COUNT,), dtype)}
        layer = Experts.from_weights(state, CHOSEN, scores="sigmoid", scale=2.5)
    precision = float(np.finfo(dtype).eps) if np.dtype(dtype).kind == "f" else 2.0**-7
    for count in (1, 5, 150):
        x = rows((count, WIDTH), dtype)
        out = np.full(x.shape, np.nan, x.dtype)
        assert layer(x, out=out, num_threads=num_threads) is out
        expected, size = _by_parts(layer, x)
        assert_close(out.astype(np.float64), expected, (CHOSEN + 3) * precision * size + 1e-30, label=f"{count} rows")


@every_option
def test_against_the_reference(options: Any) -> None:
    layer = _experts(np.float64, **options)
    x = rows((2, 30, WIDTH), np.float64)
    choice = {"scores": layer.scores, "normalize": layer.normalize, "scale": layer.scale}
    expected = reference.experts(x, layer.state_dict(), CHOSEN, activation=layer.activation, **choice)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-12, atol=1e-13)


@every_format
def test_rows_by_themselves(weight_dtype: str, isa: str) -> None:
    layer = _experts(shared_dim=21, shared_gate=True).quantize(weight_dtype)
    x = rows((4200, WIDTH), F32)  # more than are computed at a time
    together = layer(x, num_threads=1)
    assert_same_bits(layer(x, num_threads=3), together)
    for first, last in ((0, 1), (4199, 4200), (3, 9), (1, 300)):
        for threads in (1, 2):
            out = layer(x[first:last], num_threads=threads)
            assert_same_bits(out, together[first:last], label=f"{first}:{last}, {threads} threads")
    assert layer(x, out=x) is x
    assert_same_bits(x, together)


@every_format
def test_one_expert_has_the_bits_of_its_layer(weight_dtype: str, isa: str) -> None:
    layer = randomized(Experts(WIDTH, INNER, COUNT, 1, seed=1)).quantize(weight_dtype)
    x = rows((60, WIDTH), F32)
    chosen = layer.router(x).argmax(-1)
    assert len(set(chosen)) > 3
    assert_same_bits(layer(x), np.stack([layer.experts[i](row) for i, row in zip(chosen, x, strict=True)]))


def test_weights_of_other_experts_are_not_read() -> None:
    layer, x = _experts(), rows((1, WIDTH), F32)
    expected, used = layer(x), set(np.argsort(-layer.router(x)[0])[:CHOSEN])
    for i in set(range(COUNT)) - used:
        broken = {name: np.full_like(array, np.nan) for name, array in layer.experts[i].state_dict().items()}
        layer.experts[i].load_state_dict(broken)
    assert_same_bits(layer(x), expected)


def test_of_equal_scores_the_first_experts_are_chosen() -> None:
    layer, x = _experts(), rows((5, WIDTH), F32)
    layer.router.load_state_dict({"weight": np.zeros((COUNT, WIDTH), F32)})
    expected = sum(expert(x).astype(np.float64) for expert in layer.experts[:CHOSEN]) / CHOSEN
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5, atol=1e-6)


def test_nan_stays_in_its_row(dtype: Any) -> None:
    layer, x = _experts(dtype), rows((40, WIDTH), dtype)
    clean = layer(x)
    x[7, 3] = np.nan
    out = layer(x)
    assert np.isnan(out[7].astype(F32)).all()
    assert_same_bits(np.delete(out, 7, 0), np.delete(clean, 7, 0))


def test_states_copies_and_formats() -> None:
    layer = _experts(shared_dim=21, shared_gate=True, router_bias=True)
    x, state = rows((9, WIDTH), F32), layer.state_dict()
    assert [name for name in state if not name.startswith("experts.")] == [
        "shared.linear1.weight",
        "shared.linear2.weight",
        "shared.gate.weight",
        "router.weight",
        "router.bias",
        "shared_gate.weight",
    ]
    assert layer.weight_dtype == "float32"
    assert (layer.num_experts, layer.experts_per_token, layer.embed_dim) == (COUNT, CHOSEN, WIDTH)
    other = Experts(WIDTH, INNER, COUNT, CHOSEN, shared_dim=21, shared_gate=True, router_bias=True, seed=2)
    assert not np.array_equal(other(x), layer(x))
    other.load_state_dict(state)
    for same in (other, Experts.from_weights(state, CHOSEN), pickle.loads(pickle.dumps(layer))):
        assert_same_bits(same(x), layer(x))
    int8 = layer.quantize("int8")
    assert int8.weight_dtype == "int8"
    assert int8.router.weight_dtype == int8.shared_gate.weight_dtype == "float32"
    assert_same_bits(Experts.from_weights(int8.state_dict(), CHOSEN)(x), int8(x))
    assert_same_bits(layer.astype("float64").astype("float32")(x), layer(x))
    corrected = Experts.from_weights(state | {"correction": np.arange(7.0, dtype=F32)}, 2, scores="sigmoid")
    for copy in (corrected.quantize("int8"), corrected.astype("float64"), pickle.loads(pickle.dumps(corrected))):
        np.testing.assert_array_equal(copy.state_dict()["correction"], np.arange(7.0))
    assert repr(eval(repr(layer))) == repr(layer)


def _layer(experts: Experts, norm: type = RMSNorm, **arguments: Any) -> EncoderLayer:
    rotary = RotaryEmbedding.from_base(6, 130)
    attention = randomized(MultiHeadAttention(WIDTH, 3, head_dim=6, rotary=rotary, seed=3))
    return EncoderLayer.from_parts(attention, experts, norm(WIDTH), norm(WIDTH), **arguments)


@every_format
def test_a_transformer_layer_has_the_bits_of_its_parts(weight_dtype: str, isa: str, num_threads: int) -> None:
    x = rows((2, 130, WIDTH), F32)
    experts = _experts(shared_dim=21)
    before = _layer(experts, norm_first=True, output_norm2=RMSNorm(WIDTH)).quantize(weight_dtype)
    z = x + before.self_attn(before.norm1(x))
    expected = z + before.output_norm2(before.feed_forward(before.norm2(z)))
    assert_same_bits(before(x, num_threads=num_threads), expected)
    after = _layer(experts, LayerNorm).quantize(weight_dtype)
    z = after.norm1(x + after.self_attn(x))
    assert_same_bits(after(x, num_threads=num_threads), after.norm2(z + after.feed_forward(z)))


@every_format
def test_steps_over_a_cache_have_the_bits_of_the_whole(weight_dtype: str, isa: str) -> None:
    layers = [_layer(_experts(), norm_first=True), _layer(_experts(normalize=False), norm_first=True)]
    decoder = CausalDecoder.from_layers(layers, RMSNorm(WIDTH)).quantize(weight_dtype)
    x = rows((2, 40, WIDTH), F32)
    whole, caches = decoder(x), decoder.new_caches(2, 40)
    parts = [decoder(x[:, a:b], caches=caches) for a, b in ((0, 30), (30, 31), (31, 33), (33, 40))]
    assert_same_bits(np.concatenate(parts, 1), whole)
    ragged = decoder(np.concatenate([x[0], x[1, :9]]), cu_seqlens=np.array([0, 40, 49]))
    assert_same_bits(ragged, np.concatenate([whole[0], whole[1, :9]]))
    dense = EncoderLayer(WIDTH, 1, INNER, norm_first=True, seed=4)
    assert decoder.layers[0].feed_forward.num_experts == COUNT
    assert CausalDecoder.from_layers([dense, layers[0]])(x).shape == x.shape  # of both kinds


def test_gradients_are_refused() -> None:
    x = rows((3, WIDTH), F32)
    layer = _layer(_experts(), norm_first=True)
    for module in (layer.feed_forward, layer):
        with pytest.raises(ValueError, match="gradients of experts"):
            module.forward_and_record(x)
    out, _ = layer.feed_forward.forward_and_record(x, wrt=())
    assert_same_bits(out, layer.feed_forward(x))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"experts_per_token": 0}, ValueError, "experts_per_token must be at least 1; got 0"),
        ({"experts_per_token": COUNT + 1}, ValueError, "experts_per_token must be from 1 to 7; got 8"),
        ({"num_experts": 0}, ValueError, "num_experts must be at least 1; got 0"),
        ({"scores": "tanh"}, ValueError, "scores must be 'softmax' or 'sigmoid'; got 'tanh'"),
        ({"scale": 0.0}, ValueError, "scale must be a finite number above 0; got 0"),
        ({"shared_gate": True}, ValueError, "shared_gate must be False without shared_dim; got True"),
        ({"shared_dim": 0}, ValueError, "shared_dim must be at least 1; got 0"),
        ({"normalize": 1}, TypeError, "normalize must be a bool; got 1"),
    ],
)
def test_arguments_are_checked(change: dict[str, Any], error: type[Exception], message: str) -> None:
    sizes = {"embed_dim": WIDTH, "feedforward_dim": INNER, "num_experts": COUNT, "experts_per_token": CHOSEN}
    with pytest.raises(error, match=f"Experts: .*{message}"):
        Experts(**(sizes | change))


def test_weights_are_checked() -> None:
    state = _experts().state_dict()
    for wrong in ({"router.other": state["router.weight"]}, {"shared_gate.bias": state["router.weight"]}):
        with pytest.raises(ValueError, match="must have a weight, and at most a bias; got"):
            Experts.from_weights(state | wrong, 2)
    with pytest.raises(ValueError, match="router must have a weight"):
        Experts.from_weights({name: x for name, x in state.items() if not name.startswith("router")}, 2)
    for name in ("experts.9.linear1.weight", "other", "correctio"):
        with pytest.raises(ValueError, match="names of state_dict"):
            Experts.from_weights(state | {name: state["router.weight"]}, 2)
    wrong = {"experts.2.linear1.weight": rows((INNER + 1, WIDTH), F32)}
    with pytest.raises(ValueError, match=r"experts\.2"):
        Experts.from_weights(state | wrong, 2)
    with pytest.raises(ValueError, match="correction must not be given without is_sigmoid"):
        Experts.from_weights(state | {"correction": np.zeros(COUNT, F32)}, 2)
    with pytest.raises(ValueError, match="embed_dim of experts must be 30; got 29"):
        EncoderLayer.from_parts(MultiHeadAttention(30, 1), _experts())
    with pytest.raises(TypeError, match="feed_forward must be of class FeedForward or Experts"):
        EncoderLayer.from_parts(MultiHeadAttention(30, 1), Linear(30, 30))  # type: ignore[arg-type]


def test_the_clamped_activation(isa: str, dtype: Any) -> None:
    precision = float(np.finfo(dtype).eps) if np.dtype(dtype).kind == "f" else 2.0**-7
    x = np.concatenate([np.linspace(-30, 30, 997), [7, -7, 6.99, np.inf, -np.inf]]).astype(dtype)
    up = np.concatenate([rows((996,), np.float64) * 9, [7, -7, 6.99, -6.99, 0, 1]]).astype(dtype)
    wide, wide_up = x.astype(np.float64), up.astype(np.float64)
    value = reference.activate(wide, "swiglu_oai")
    expected = value * (1 + np.clip(wide_up, -7, 7))
    actual = activation(x, activation="swiglu_oai", up=up).astype(np.float64)
    np.testing.assert_allclose(actual, expected, rtol=40 * precision, atol=40 * precision)
    layer = FeedForward(5, 6, activation="swiglu_oai", gated=True, dtype=np.float64, seed=0)
    data = rows((9, 5), np.float64) * 20
    state = layer.state_dict()
    np.testing.assert_allclose(layer(data), reference.feed_forward(data, state, activation="swiglu_oai"), rtol=1e-12)
    dout = rows(x.shape, dtype)
    found = activation_gradient(x, dout, activation="swiglu_oai", up=up)
    oracle = reference.activation_gradient(wide, dout.astype(np.float64), activation="swiglu_oai", up=wide_up)
    for name, gradient in oracle.items():
        actual = getattr(found, name).astype(np.float64)
        np.testing.assert_allclose(actual, gradient, rtol=100 * precision, atol=100 * precision, err_msg=name)
