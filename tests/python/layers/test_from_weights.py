"""Layers of given weights, layers of given parts, and stacks of given layers, against the seeded ones."""

from __future__ import annotations

import copy
import doctest
import importlib
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from element_types import BFLOAT16
from random_layers import LAYERS, STACKS, attention_layer, causal_decoder, decoder, encoder, randomized, rows, views
from tolerance import assert_same_bits

from mha_native import (
    CausalDecoder,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    Linear,
    MultiHeadAttention,
    RMSNorm,
    RotaryEmbedding,
)

F32 = np.float32
DTYPES = [np.float32, np.float64, np.float16, BFLOAT16]
FORMATS = ["float32", "bfloat16", "int8", "int4"]
State = Mapping[str, Any]

# One of each dtype, and one of each format in which matrices of float32 are stored.
STORED = [(dtype, None) for dtype in DTYPES] + [(F32, name) for name in FORMATS[1:]]
stored = pytest.mark.parametrize(("kind", "weight_dtype"), STORED, ids=str)


def _assert_same(actual: Any, expected: Any) -> None:
    """The same sizes and options, and the same bits of the weights and of a result."""
    assert repr(actual) == repr(expected)
    ours, theirs = actual.state_dict(), expected.state_dict()
    assert list(ours) == list(theirs)
    for name, array in theirs.items():
        assert_same_bits(ours[name], array, label=name)
    features = expected.in_features if isinstance(expected, Linear) else expected.embed_dim
    arguments = [rows((5, features), expected.dtype)]
    if isinstance(expected, MultiHeadAttention):
        arguments += [rows((7, expected.kdim), expected.dtype), rows((7, expected.vdim), expected.dtype)]
    if isinstance(expected, DecoderLayer | Decoder):
        arguments.append(rows((7, expected.memory_dim), expected.dtype))
    result = expected(*arguments)
    assert np.isfinite(result.astype(np.float64)).all()
    assert_same_bits(actual(*arguments), result)


def _attention_like(layer: MultiHeadAttention, state: State, **more: Any) -> MultiHeadAttention:
    given: dict[str, Any] = {"num_kv_heads": layer.num_kv_heads, "add_zero_attn": layer.add_zero_attn}
    given |= {"qk_norm": layer.qk_norm, "rotary": layer.rotary, "weight_dtype": layer.weight_dtype, **more}
    return MultiHeadAttention.from_weights(state, layer.num_heads, **given)


def _feed_forward_like(layer: FeedForward, state: State, **more: Any) -> FeedForward:
    given = {"activation": layer.activation, "weight_dtype": layer.weight_dtype, **more}
    return FeedForward.from_weights(state, **given)


def _norm_like(norm: Any, state: State, **more: Any) -> Any:
    own = {"unit_offset": norm.unit_offset} if isinstance(norm, RMSNorm) else {}
    return type(norm).from_weights(**state, eps=norm.eps, **own, **more)


def _like(layer: Any, state: State, **more: Any) -> Any:
    """A layer of `state` with the options of `layer`."""
    if isinstance(layer, MultiHeadAttention):
        return _attention_like(layer, state, **more)
    if isinstance(layer, FeedForward):
        return _feed_forward_like(layer, state, **more)
    if isinstance(layer, Linear):
        return Linear.from_weights(**state, **({"weight_dtype": layer.weight_dtype} | more))
    return _norm_like(layer, state, **more)


ATTENTIONS: dict[str, dict[str, Any]] = {
    **LAYERS,
    "added keys": {"embed_dim": 24, "num_heads": 3, "add_bias_kv": True, "add_zero_attn": True},
    "norms": {"embed_dim": 24, "num_heads": 3, "qk_norm": "layer"},
    "offset norms": {"embed_dim": 24, "num_heads": 4, "num_kv_heads": 2, "qk_norm": "rms_unit_offset", "bias": False},
}
FEED_FORWARDS: dict[str, dict[str, Any]] = {
    "usual": {},
    "gelu": {"activation": "gelu", "bias": False},
    "gated": {"activation": "silu", "gated": True},
    "one bias": {"bias": {"linear2"}},
    "bias of the gate": {"gated": True, "bias": {"gate", "linear2"}},
}
NORMS: dict[str, Callable[..., Any]] = {
    "LayerNorm": lambda **more: LayerNorm(23, eps=1e-3, **more),
    "LayerNorm without bias": lambda **more: LayerNorm(23, bias=False, **more),
    "RMSNorm": lambda **more: RMSNorm(23, **more),
    "RMSNorm with an offset": lambda **more: RMSNorm(23, eps=1e-2, unit_offset=True, **more),
}


@pytest.mark.parametrize("name", ATTENTIONS)
@stored
def test_attention(name: str, kind: Any, weight_dtype: str | None) -> None:
    seeded: Any = MultiHeadAttention(**ATTENTIONS[name], dtype=kind, weight_dtype=weight_dtype, seed=1)
    layer: Any = randomized(seeded)
    _assert_same(_attention_like(layer, layer.state_dict()), layer)


@pytest.mark.parametrize("name", FEED_FORWARDS)
@stored
def test_feed_forward(name: str, kind: Any, weight_dtype: str | None) -> None:
    layer = randomized(FeedForward(23, 37, **FEED_FORWARDS[name], dtype=kind, weight_dtype=weight_dtype, seed=1))
    _assert_same(_feed_forward_like(layer, layer.state_dict()), layer)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@stored
def test_linear(bias: bool, kind: Any, weight_dtype: str | None) -> None:
    layer = randomized(Linear(23, 37, bias=bias, dtype=kind, weight_dtype=weight_dtype, seed=1))
    _assert_same(_like(layer, layer.state_dict()), layer)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("kind", DTYPES, ids=str)
def test_norm(name: str, kind: Any) -> None:
    norm = randomized(NORMS[name](dtype=kind))
    _assert_same(_norm_like(norm, norm.state_dict()), norm)


def test_projections_in_parts() -> None:
    layer = attention_layer("grouped")
    state = layer.state_dict()
    ends = [layer.num_heads * layer.head_dim, (layer.num_heads + layer.num_kv_heads) * layer.head_dim]
    for kind in ("weight", "bias"):
        parts = np.split(state.pop(f"in_proj_{kind}"), ends)
        state |= {f"{letter}_proj_{kind}": part for letter, part in zip("qkv", parts, strict=True)}
    _assert_same(_attention_like(layer, state), layer)


def test_rotary_and_eps_of_norms() -> None:
    rotary = RotaryEmbedding.from_base(6, 64)
    layer = MultiHeadAttention(24, 4, rotary=rotary, qk_norm="rms", qk_norm_eps=0.25, seed=1)
    other = _attention_like(layer, layer.state_dict(), qk_norm_eps=layer.qk_norm_eps)
    assert other.rotary is rotary
    _assert_same(other, layer)


LEAVES: dict[str, Callable[..., Any]] = {
    "attention": lambda **more: MultiHeadAttention(24, 4, num_kv_heads=2, add_bias_kv=True, seed=1, **more),
    "feed-forward": lambda **more: FeedForward(24, 50, gated=True, activation="gelu", seed=1, **more),
    "linear": lambda **more: Linear(24, 50, seed=1, **more),
    **NORMS,
}
leaves = pytest.mark.parametrize("name", LEAVES)


@leaves
@pytest.mark.parametrize("kind", DTYPES, ids=str)
@pytest.mark.parametrize("given", DTYPES, ids=str)
def test_weights_in_another_dtype(name: str, kind: Any, given: Any) -> None:
    """They are rounded once, as `astype` does."""
    layer = randomized(LEAVES[name](dtype=given))
    _assert_same(_like(layer, layer.state_dict(), dtype=kind, **_own_format(layer, kind)), layer.astype(kind))


def _own_format(layer: Any, kind: Any) -> dict[str, Any]:
    return {} if isinstance(layer, LayerNorm | RMSNorm) else {"weight_dtype": np.dtype(kind).name}


@pytest.mark.parametrize("name", ["attention", "feed-forward", "linear"])
@pytest.mark.parametrize("given", DTYPES, ids=str)
@pytest.mark.parametrize("weight_dtype", FORMATS)
def test_weights_in_another_format(name: str, given: Any, weight_dtype: str) -> None:
    layer = randomized(LEAVES[name](dtype=given))
    other = _like(layer, layer.state_dict(), dtype="float32", weight_dtype=weight_dtype)
    _assert_same(other, layer.astype("float32").quantize(weight_dtype))


@pytest.mark.parametrize("name", ["attention", "feed-forward", "linear"])
def test_integers_and_scales(name: str) -> None:
    """Weights that are int8 already are stored as they are, and say so themselves."""
    layer = randomized(LEAVES[name]()).quantize("int8")
    _assert_same(_like(layer, layer.state_dict(), weight_dtype=None), layer)


@leaves
def test_views(name: str) -> None:
    """Weights with any strides, which must not be written to."""
    layer = randomized(LEAVES[name]())
    state = layer.state_dict()
    for i in range(3):
        _assert_same(_like(layer, {key: views(array)[i] for key, array in state.items()}), layer)


@leaves
def test_weights_are_copied(name: str) -> None:
    layer = randomized(LEAVES[name]())
    state = layer.state_dict()
    other = _like(layer, state)
    for array in state.values():
        array.fill(np.nan)
    _assert_same(other, layer)


@leaves
def test_copies_pickles_and_new_weights(name: str) -> None:
    layer = randomized(LEAVES[name]())
    given = _like(layer, layer.state_dict())
    for other in (pickle.loads(pickle.dumps(given)), copy.copy(given), copy.deepcopy(given), given.astype("float32")):
        _assert_same(other, layer)
    state = {key: 2 * array for key, array in layer.state_dict().items()}
    given.load_state_dict(state)
    layer.load_state_dict(state)
    _assert_same(given, layer)


def test_classes_of_a_user() -> None:
    class Own(Linear):
        pass

    layer = Own.from_weights(np.ones((3, 4), F32))
    assert type(layer) is Own
    with pytest.raises(ValueError, match=r"^Own\.from_weights: missing: weight$"):
        Own.from_weights(None)


W, B = np.ones((3, 4), F32), np.ones(3, F32)
ATTENTION = MultiHeadAttention(16, 4, seed=0).state_dict()
PRODUCTS = {"linear1.weight": W, "linear2.weight": W.T}
WITHOUT = {name: array for name, array in ATTENTION.items() if name != "in_proj_weight"}
INTEGERS = np.ones((3, 4), np.int8)


def _attention(state: Any = ATTENTION, num_heads: Any = 4, **more: Any) -> Callable[[], Any]:
    return lambda: MultiHeadAttention.from_weights(state, num_heads, **more)


def _linear(*arrays: Any, **more: Any) -> Callable[[], Any]:
    return lambda: Linear.from_weights(*arrays, **more)


def _products(state: Any, **more: Any) -> Callable[[], Any]:
    return lambda: FeedForward.from_weights(state, **more)


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (_linear([1, 2]), TypeError, "Linear: expected arrays; weight is a list"),
    (_linear(np.ma.masked_array(W)), TypeError, "Linear: weight is a numpy.ma.MaskedArray"),
    (_linear(B), ValueError, "Linear: weight must be [out_features, in_features], not empty; got [3]"),
    (_linear(np.ones((0, 3), F32)), ValueError, "Linear: weight must be [out_features, in_features], not empty"),
    (_linear(W, np.ones(4, F32)), ValueError, "Linear: of the wrong shape: bias [4] instead of [3]"),
    (_linear(W, B.astype(np.float64)), TypeError, "Linear: weights must have one dtype unless you give dtype; got"),
    (_linear(W.astype(np.int64)), TypeError, "Linear: weights must be float32 or .*; got weight int64"),
    (_linear(INTEGERS), TypeError, "Linear: weights must be float32 or .*; got weight int8"),
    (_linear(W, dtype="int8"), TypeError, "Linear: dtype must be float32 or .*; got int8"),
    (_linear(W, weight_dtype="int2"), TypeError, "Linear: weight_dtype of a layer in float32 .*; got 'int2'"),
    (_linear(W, dtype="float16", weight_dtype="int8"), TypeError, "Linear: weight_dtype of a layer in float16"),
    (_linear(W, weight_scale=B), ValueError, "Linear: unexpected: weight_scale"),
    (_linear(INTEGERS, weight_scale=B, weight_dtype="float32"), ValueError, "Linear: unexpected: weight_scale"),
    (_linear(INTEGERS, weight_scale=B[:2]), ValueError, "Linear: of the wrong shape: weight_scale [2] instead of [3]"),
    (_attention(3), TypeError, "MultiHeadAttention: weights must be a mapping of names to arrays; got int"),
    (_attention({**ATTENTION, 3: W}), TypeError, "MultiHeadAttention: names of weights must be strings; got 3"),
    (_attention({}), ValueError, "MultiHeadAttention: missing: out_proj.weight"),
    (_attention(WITHOUT), ValueError, "MultiHeadAttention: missing: in_proj_weight"),
    (_attention(WITHOUT | {"q_proj_weight": W}), ValueError, "MultiHeadAttention: missing: k_proj_weight"),
    (_attention(ATTENTION | {"x": W}), ValueError, "MultiHeadAttention: unexpected: x"),
    (_attention(ATTENTION | {"in_proj_bias": B}), ValueError, "MultiHeadAttention: of the wrong shape: in_proj_bias"),
    (_attention(ATTENTION | {"bias_v": np.ones((1, 1, 16), F32)}), ValueError, "MultiHeadAttention: missing: bias_k"),
    (
        _attention(ATTENTION | {"out_proj.weight": B}),
        ValueError,
        "MultiHeadAttention: out_proj.weight must be [out",
    ),
    (
        _attention(num_heads=5),
        ValueError,
        "MultiHeadAttention: out_proj.weight must have H Dv columns for num_heads",
    ),
    (_attention(num_heads=0), ValueError, "MultiHeadAttention: num_heads must be at least 1; got 0"),
    (_attention(num_heads="4"), TypeError, "MultiHeadAttention: num_heads must be an integer; got '4'"),
    (_attention(num_kv_heads=2), ValueError, "MultiHeadAttention: in_proj_weight must have H D .* and num_kv_heads, 2"),
    (_attention(num_kv_heads=0), ValueError, "MultiHeadAttention: num_kv_heads must be at least 1; got 0"),
    (_attention(add_zero_attn=2), TypeError, "MultiHeadAttention: add_zero_attn must be a bool; got 2"),
    (_attention(qk_norm="rms"), ValueError, "MultiHeadAttention: missing: q_norm.weight, k_norm.weight"),
    (_attention(qk_norm="batch"), ValueError, "MultiHeadAttention: qk_norm must be None or one of .*; got 'batch'"),
    (_attention(qk_norm_eps=-1), ValueError, "MultiHeadAttention: qk_norm_eps must be at least 0; got -1"),
    (_attention(rotary=3), TypeError, "MultiHeadAttention: rotary must be a RotaryEmbedding or None; got int"),
    (_products([W, W]), TypeError, "FeedForward: weights must be a mapping of names to arrays; got list"),
    (_products({"linear1.weight": W}), ValueError, "FeedForward: missing: linear2.weight"),
    (_products(PRODUCTS | {"gate.bias": B}), ValueError, "FeedForward: missing: gate.weight"),
    (_products(PRODUCTS | {"linear2.bias": B}), ValueError, "FeedForward: of the wrong shape: linear2.bias [3]"),
    (_products(PRODUCTS | {"linear3.weight": W}), ValueError, "FeedForward: unexpected: linear3.weight"),
    (_products(PRODUCTS, activation="tanh"), ValueError, "FeedForward: activation must be 'relu', .*; got 'tanh'"),
    (_products(PRODUCTS, activation=3), TypeError, "FeedForward: activation must be 'relu', .*; got 3"),
    (lambda: LayerNorm.from_weights(W), ValueError, "LayerNorm: weight must be [embed_dim], not empty; got [3, 4]"),
    (lambda: LayerNorm.from_weights(B, B[:2]), ValueError, "LayerNorm: of the wrong shape: bias [2] instead of [3]"),
    (lambda: LayerNorm.from_weights(B, eps=-1.0), ValueError, "LayerNorm: eps must be a finite number of at least 0"),
    (lambda: LayerNorm.from_weights(B, eps="1"), TypeError, "LayerNorm: eps must be .*a real number; got '1'"),
    (lambda: RMSNorm.from_weights(np.ones(0, F32)), ValueError, "RMSNorm: weight must be [embed_dim], not empty"),
    (lambda: RMSNorm.from_weights(B, unit_offset=2), TypeError, "RMSNorm: unit_offset must be a bool; got 2"),
    (lambda: RMSNorm.from_weights(B, dtype="float8"), TypeError, "RMSNorm: dtype must be float32 or .*; got "),
]


def _assert_refused(make: Callable[[], Any], kind: type[Exception], words: str, method: str) -> None:
    name, _, rule = words.partition(": ")
    rule = rule.replace("[", r"\[").replace("]", r"\]")
    with pytest.raises(kind, match=rf"^{name}\.{method}: {rule}") as error:
        make()
    assert len(str(error.value)) <= 500


@pytest.mark.parametrize(("make", "kind", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_refused_weights(make: Callable[[], Any], kind: type[Exception], words: str) -> None:
    _assert_refused(make, kind, words, "from_weights")


def _parts(layer: Any) -> dict[str, Any]:
    """The parts of a layer, each of them made anew of its weights."""
    names = ["self_attn", "cross_attn", "feed_forward"]
    names += [f"{prefix}{i}" for prefix in ("norm", "output_norm") for i in (1, 2, 3)]
    found = {name: getattr(layer, name) for name in names if getattr(layer, name) is not None}
    return {name: _like(part, part.state_dict()) for name, part in found.items()} | {"norm_first": layer.norm_first}


STACKS_OF_TWO: dict[str, Callable[[str, Any], Any]] = {"Encoder": encoder, "CausalDecoder": causal_decoder}
STACKS_OF_TWO["Decoder"] = lambda name, dtype: decoder(name, dtype, 19)


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("stack", STACKS_OF_TWO)
@pytest.mark.parametrize("kind", [np.float32, BFLOAT16], ids=str)
def test_a_model_of_parts(name: str, stack: str, kind: Any) -> None:
    """Two layers made by hand are the seeded ones."""
    seeded = STACKS_OF_TWO[stack](name, kind)
    layers = [type(layer).from_parts(**_parts(layer)) for layer in seeded.layers]
    for made, layer in zip(layers, seeded.layers, strict=True):
        _assert_same(made, layer)
    norm = None if seeded.norm is None else _norm_like(seeded.norm, seeded.norm.state_dict())
    made = type(seeded).from_layers(layers, norm)
    _assert_same(made, seeded)
    assert made.layers == tuple(layers)
    _assert_same(pickle.loads(pickle.dumps(made)), seeded)


def test_layer_options_of_a_stack() -> None:
    options: Any = [{"window": (2, 0)}, {}]
    seeded = CausalDecoder(2, 16, 2, 24, layer_options=options, seed=0)
    made = CausalDecoder.from_layers(seeded.layers, layer_options=options)
    assert made.layer_options == seeded.layer_options
    _assert_same(made, seeded)


def test_parts_are_shared() -> None:
    attention, hidden, norm = MultiHeadAttention(16, 4, seed=0), FeedForward(16, 24, seed=1), LayerNorm(16)
    layers = [EncoderLayer.from_parts(attention, hidden, norm1=norm) for _ in range(2)]
    made, x = Encoder.from_layers(layers), rows((5, 16), F32)
    before = made(x)
    assert layers[0].self_attn is layers[1].self_attn is attention
    assert layers[0].norm2 is None
    attention.load_state_dict(MultiHeadAttention(16, 4, seed=9).state_dict())
    after = made(x)
    assert not np.array_equal(before, after)
    assert_same_bits(after, layers[1](layers[0](x)))


ATTN, HIDDEN, NORM = MultiHeadAttention(16, 4, seed=0), FeedForward(16, 24, seed=0), LayerNorm(16)
LAYER, OTHER = EncoderLayer(16, 4, 24, seed=0), DecoderLayer(16, 4, 24, seed=0)


def _layer(*parts: Any, **more: Any) -> Callable[[], Any]:
    return lambda: EncoderLayer.from_parts(*parts, **more)


REFUSED_PARTS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (_layer(HIDDEN, HIDDEN), TypeError, "EncoderLayer: self_attn must be of class MultiHeadAttention; got FeedForward"),
    (_layer(ATTN, ATTN), TypeError, "EncoderLayer: feed_forward must be of class FeedForward or Experts; got Multi"),
    (_layer(ATTN, HIDDEN, HIDDEN), TypeError, "EncoderLayer: norm1 must be of class LayerNorm or RMSNorm; got FeedFo"),
    (_layer(ATTN, HIDDEN, output_norm2=3), TypeError, "EncoderLayer: output_norm2 must be of class LayerNorm or"),
    (_layer(ATTN, HIDDEN, norm_first=1), TypeError, "EncoderLayer: norm_first must be a bool; got 1"),
    (_layer(ATTN, FeedForward(8, 4)), ValueError, "EncoderLayer: layer 0: embed_dim of feed_forward must be 16; got 8"),
    (_layer(ATTN, HIDDEN, LayerNorm(8)), ValueError, "EncoderLayer: layer 0: embed_dim of norm1 must be 16; got 8"),
    (_layer(ATTN, HIDDEN.astype("float16")), TypeError, "EncoderLayer: layer 0: dtype of feed_forward must be float32"),
    (_layer(MultiHeadAttention(16, 4, kdim=3), HIDDEN), ValueError, "EncoderLayer: layer 0: kdim of self_attn must be"),
    (lambda: DecoderLayer.from_parts(ATTN, None, HIDDEN), TypeError, "DecoderLayer: cross_attn must be of class Multi"),
    (
        lambda: DecoderLayer.from_parts(ATTN, MultiHeadAttention(8, 4), HIDDEN),
        ValueError,
        "DecoderLayer: layer 0: embed_dim of cross_attn must be 16; got 8",
    ),
]
REFUSED_LAYERS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: Encoder.from_layers([]), ValueError, "Encoder: layers must have at least one layer; got none"),
    (lambda: Encoder.from_layers(3), TypeError, "Encoder: layers must be a sequence of layers; got int"),
    (lambda: Encoder.from_layers([OTHER]), TypeError, r"Encoder: layers[0] must be of class EncoderLayer; got Decoder"),
    (
        lambda: Decoder.from_layers([OTHER, LAYER]),
        TypeError,
        r"Decoder: layers[1] must be of class DecoderLayer; got",
    ),
    (lambda: Encoder.from_layers([LAYER], HIDDEN), TypeError, "Encoder: norm must be of class LayerNorm or RMSNorm"),
    (lambda: Encoder.from_layers([LAYER], LayerNorm(8)), ValueError, "Encoder: norm must be of 16 features in float32"),
    (
        lambda: CausalDecoder.from_layers([LAYER, EncoderLayer(8, 2, 4)]),
        ValueError,
        "CausalDecoder: layer 1: embed_dim must be 16; got 8",
    ),
    (
        lambda: Encoder.from_layers([LAYER], layer_options=[{}, {}]),
        ValueError,
        "Encoder: layer_options must have an entry for each of layers, 1; got 2",
    ),
]


@pytest.mark.parametrize(("make", "kind", "words"), REFUSED_PARTS, ids=[words for _, _, words in REFUSED_PARTS])
def test_refused_parts(make: Callable[[], Any], kind: type[Exception], words: str) -> None:
    _assert_refused(make, kind, words, "from_parts")


@pytest.mark.parametrize(("make", "kind", "words"), REFUSED_LAYERS, ids=[words for _, _, words in REFUSED_LAYERS])
def test_refused_layers(make: Callable[[], Any], kind: type[Exception], words: str) -> None:
    _assert_refused(make, kind, words, "from_layers")


EPS = {"layer": 1e-5, "rms": 1e-6, "rms_unit_offset": 1e-6}


@pytest.mark.parametrize("norm", EPS)
def test_default_eps_is_of_the_kind_of_norm(norm: str) -> None:
    stacks: list[Any] = [kind(1, 16, 2, 24, norm=norm, final_norm=True) for kind in (Encoder, CausalDecoder, Decoder)]
    for stack in stacks:
        assert stack.norm.eps == stack.layers[0].norm1.eps == stack.layers[0].norm2.eps == EPS[norm]
    assert EncoderLayer(16, 2, 24, norm=norm, eps=0.5).norm1.eps == 0.5
    layer = EncoderLayer(16, 2, 24, qk_norm=norm)
    assert layer.self_attn.qk_norm_eps == MultiHeadAttention(16, 2, qk_norm=norm).qk_norm_eps == EPS[norm]


def test_storage_format_of_a_norm() -> None:
    """A norm has no matrix: it stays in its dtype, as the norms of a quantized layer do."""
    norm = randomized(LayerNorm(8))
    for weight_dtype in FORMATS:
        other = norm.quantize(weight_dtype)
        assert other is not norm
        assert other.weight_dtype == "float32"
        _assert_same(other, norm)
    assert EncoderLayer(8, 2, 4).quantize("int8").norm1.weight_dtype == "float32"
    assert norm.astype("float16").weight_dtype == "float16"


# Classes inherit methods of these modules, whose examples no test of a class finds.
INHERITED = ("layers._layer_state", "layers.transformer", "functions.token_cache")


@pytest.mark.parametrize("module", INHERITED)
def test_examples_are_true(module: str) -> None:
    results = doctest.testmod(importlib.import_module(f"mha_native.{module}"))
    assert results.attempted > 0
    assert results.failed == 0
