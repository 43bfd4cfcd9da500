"""What layers, blocks and stacks hold and refuse: sizes, weights in and out, copies, errors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matrix import ALL, matrix
from random_layers import randomized, rows
from tolerance import assert_same_bits

import mha_native
from mha_native import (
    CausalDecoder,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    MultiHeadAttention,
    RMSNorm,
)

pytestmark = matrix(dtype=ALL)

OTHER = {"num_kv_heads": 2, "head_dim": 5, "activation": "gelu", "norm_first": True, "bias": False, "eps": 1e-3}
RMS = {"norm": "rms_unit_offset", "output_norms": True, "norm_first": True, "final_norm": True, "eps": 1e-6}
MAKERS: dict[str, Callable[..., Any]] = {
    "norm": lambda seed, **more: LayerNorm(24, **more),
    "norm without bias": lambda seed, **more: LayerNorm(24, bias=False, eps=0.5, **more),
    "RMS norm": lambda seed, **more: RMSNorm(24, eps=0.5, **more),
    "RMS norm with a unit offset": lambda seed, **more: RMSNorm(24, unit_offset=True, **more),
    "feed-forward": lambda seed, **more: FeedForward(24, 50, seed=seed, **more),
    "narrow feed-forward": lambda seed, **more: FeedForward(24, 1, bias=False, activation="gelu", seed=seed, **more),
    "gated feed-forward": lambda seed, **more: FeedForward(24, 50, gated=True, bias={"gate"}, seed=seed, **more),
    "encoder layer": lambda seed, **more: EncoderLayer(24, 4, 50, seed=seed, **more),
    "gated encoder layer": lambda seed, **more: EncoderLayer(24, 4, 50, gated=True, seed=seed, **more),
    "other encoder layer": lambda seed, **more: EncoderLayer(24, 4, 50, **OTHER, seed=seed, **more),
    "encoder": lambda seed, **more: Encoder(3, 24, 4, 50, seed=seed, **more),
    "encoder with a norm": lambda seed, **more: Encoder(2, 24, 4, 50, **OTHER, final_norm=True, seed=seed, **more),
    "causal decoder": lambda seed, **more: CausalDecoder(2, 24, 4, 50, norm_first=True, seed=seed, **more),
    "causal decoder of RMS norms": lambda seed, **more: CausalDecoder(2, 24, 4, 50, **RMS, seed=seed, **more),
    "decoder layer": lambda seed, **more: DecoderLayer(24, 4, 50, seed=seed, **more),
    "decoder": lambda seed, **more: Decoder(2, 24, 4, 50, final_norm=True, seed=seed, **more),
    "decoder with output norms": lambda seed, **more: Decoder(2, 24, 4, 50, output_norms=True, seed=seed, **more),
    "decoder of another memory": lambda seed, **more: Decoder(2, 24, 4, 50, memory_dim=17, **OTHER, seed=seed, **more),
}  # fmt: skip
WIDE = {"num_kv_heads": 2, "head_dim": 5, "value_head_dim": 3, "kdim": 7, "vdim": 9, "out_dim": 11}
ADDED = {"add_bias_kv": True, "add_zero_attn": True}


def _attention(**options: Any) -> Callable[..., Any]:
    return lambda seed, **more: MultiHeadAttention(24, 4, **options, seed=seed, **more)


MAKERS |= {
    "attention": _attention(),
    "attention without bias": _attention(bias=False),
    "attention with biases of query and value": _attention(bias={"query", "value"}),
    "attention with a bias of its result": _attention(bias=["out"]),
    "grouped attention": _attention(num_kv_heads=2),
    "attention of another width": _attention(out_dim=3),
    "attention with added keys": _attention(**ADDED),
    "wide attention": _attention(**WIDE),
    "wide attention without bias": _attention(**WIDE, bias=False),
    "wide attention with a bias of the key": _attention(**WIDE, bias=("key",)),
    "wide attention with added keys": _attention(**WIDE, **ADDED),
}
every_module = pytest.mark.parametrize("name", MAKERS)


def _make(name: str, dtype: Any = np.float32, seed: int = 0) -> Any:
    return randomized(MAKERS[name](seed, dtype=dtype), seed=seed + 9)


def _run(module: Any) -> np.ndarray:
    x = rows((2, 5, 24), module.dtype)
    if isinstance(module, MultiHeadAttention):
        return module(x, *(rows((2, 7, features), module.dtype) for features in (module.kdim, module.vdim)))
    if isinstance(module, Decoder | DecoderLayer):
        return module(x, rows((2, 7, module.memory_dim), module.dtype))
    return module(x)


@every_module
def test_round_trip(name: str, dtype: Any) -> None:
    module, other = _make(name, dtype), _make(name, dtype, seed=1)
    state = module.state_dict()
    assert not np.array_equal(_run(other), _run(module)), "seeds differ"
    other.load_state_dict(state)
    assert_same_bits(_run(other), _run(module))
    again = other.state_dict()
    assert list(again) == list(state)
    for which, array in state.items():
        assert array.dtype == dtype
        assert_same_bits(again[which], array, label=which)


@every_module
@pytest.mark.parametrize("how", ["pickle", "copy"])
def test_copies(name: str, how: str, dtype: Any) -> None:
    module = _make(name, dtype)
    other = pickle.loads(pickle.dumps(module)) if how == "pickle" else copy.deepcopy(module)
    assert_same_bits(_run(other), _run(module))
    assert repr(other) == repr(module)
    if isinstance(module, MultiHeadAttention):
        assert other.bias == module.bias
    before = _run(module)
    other.load_state_dict({which: 0 * array for which, array in other.state_dict().items()})
    assert_same_bits(_run(module), before)


@every_module
def test_repr_is_the_call_that_makes_it(name: str, dtype: Any) -> None:
    module = _make(name, dtype)
    other = eval(repr(module), vars(mha_native).copy())
    assert type(other) is type(module)
    assert repr(other) == repr(module)
    other.load_state_dict(module.state_dict())
    assert_same_bits(_run(other), _run(module))


@every_module
def test_a_module_keeps_weights_of_its_own(name: str) -> None:
    module = _make(name)
    before, state = _run(module), module.state_dict()
    module.load_state_dict(state)
    for array in state.values():
        array[...] = np.nan
    assert_same_bits(_run(module), before)


@every_module
def test_strided_weights(name: str) -> None:
    module, other = _make(name), _make(name, seed=1)
    state = {
        which: np.asfortranarray(np.repeat(array, 2, -1))[..., ::2] for which, array in module.state_dict().items()
    }
    for array in state.values():
        array.flags.writeable = False
    other.load_state_dict(state)
    assert_same_bits(_run(other), _run(module))


NAMES_OF_LAYER = [
    "self_attn.in_proj_weight", "self_attn.in_proj_bias", "self_attn.out_proj.weight", "self_attn.out_proj.bias",
    "linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias",
    "norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias",
]  # fmt: skip


def test_names_and_shapes_are_those_of_torch() -> None:
    assert list(EncoderLayer(24, 4, 50).state_dict()) == NAMES_OF_LAYER
    in_a_stack = [f"layers.{i}.{name}" for i in range(2) for name in NAMES_OF_LAYER]
    assert list(Encoder(2, 24, 4, 50).state_dict()) == in_a_stack
    assert list(Encoder(2, 24, 4, 50, final_norm=True).state_dict()) == [*in_a_stack, "norm.weight", "norm.bias"]
    without = DecoderLayer(24, 4, 50, bias=False, memory_dim=17).state_dict()
    assert {name: array.shape for name, array in without.items()} == {
        "self_attn.in_proj_weight": (72, 24),
        "self_attn.out_proj.weight": (24, 24),
        "multihead_attn.q_proj_weight": (24, 24),
        "multihead_attn.k_proj_weight": (24, 17),
        "multihead_attn.v_proj_weight": (24, 17),
        "multihead_attn.out_proj.weight": (24, 24),
        "linear1.weight": (50, 24),
        "linear2.weight": (24, 50),
        "norm1.weight": (24,),
        "norm2.weight": (24,),
        "norm3.weight": (24,),
    }


def test_norms_that_are_there_and_norms_that_are_not() -> None:
    layer = DecoderLayer(24, 4, 50, norm="rms", output_norms=True)
    norms = [name for name in layer.state_dict() if "norm" in name]
    assert norms == [f"{kind}{i}.weight" for kind in ("norm", "output_norm") for i in (1, 2, 3)]
    x, memory = rows((5, 24), np.float32), rows((7, 24), np.float32)
    for name in ("norm1", "norm2", "norm3", "output_norm1", "output_norm2", "output_norm3"):
        before = layer(x, memory)
        setattr(layer, name, None)
        assert not np.array_equal(layer(x, memory), before), name
        norms.remove(f"{name}.weight")
        assert [name for name in layer.state_dict() if "norm" in name] == norms
        for other in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), layer.astype("float32")):
            assert getattr(other, name) is None
            assert_same_bits(other(x, memory), layer(x, memory))
        assert repr(layer).startswith("DecoderLayer(")
    y = x + layer.self_attn(x, is_causal=True)
    y += layer.cross_attn(y, memory, memory)
    np.testing.assert_allclose(layer(x, memory), y + layer.feed_forward(y), atol=1e-5)


def test_a_norm_of_another_size_is_refused() -> None:
    layer = EncoderLayer(24, 4, 50)
    layer.output_norm2 = RMSNorm(23)
    with pytest.raises(ValueError, match=r"EncoderLayer: layer 0: embed_dim of output_norm2 must be 24; got 23"):
        layer(rows((5, 24), np.float32))
    layer.output_norm2, layer.norm3 = None, RMSNorm(24)
    with pytest.raises(ValueError, match=r"EncoderLayer: layer 0: norm3 must not be there without a cross_attention"):
        layer(rows((5, 24), np.float32))


def test_projections_may_be_stacked_or_not() -> None:
    model, other = _make("encoder"), _make("encoder", seed=1)
    state = model.state_dict()
    parts = np.split(state.pop("layers.1.self_attn.in_proj_weight"), 3)
    state |= {f"layers.1.self_attn.{letter}_proj_weight": part for letter, part in zip("qkv", parts, strict=True)}
    other.load_state_dict(state)
    assert_same_bits(_run(other), _run(model))


def test_the_seed_fixes_the_weights() -> None:
    def state(seed: int | None) -> dict[str, np.ndarray]:
        return Encoder(2, 24, 4, 50, seed=seed).state_dict()

    for name, array in state(7).items():
        assert_same_bits(array, state(7)[name], label=name)
    for name in ("self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear2.bias"):
        first, second = f"layers.0.{name}", f"layers.1.{name}"
        assert not np.array_equal(state(7)[first], state(8)[first])
        assert not np.array_equal(state(None)[first], state(None)[first])
        assert not np.array_equal(state(7)[first], state(7)[second])


@pytest.mark.parametrize(("which", "features"), [("linear1", 24), ("linear2", 50)])
def test_initial_weights_follow_the_rule_of_torch(which: str, features: int) -> None:
    state = FeedForward(24, 50, seed=0).state_dict()
    bound = features**-0.5
    for name in ("weight", "bias"):
        largest = np.abs(state[f"{which}.{name}"]).max()
        assert 0.8 * bound < largest <= bound
    norm = LayerNorm(5).state_dict()
    assert norm["weight"].tolist() == [1] * 5
    assert norm["bias"].tolist() == [0] * 5


def _state(**changes: Any) -> dict[str, Any]:
    """That of a decoder, with other arrays; None for one that is left out."""
    state = _make("decoder", seed=1).state_dict() | {name.replace("__", "."): x for name, x in changes.items()}
    return {name: array for name, array in state.items() if array is not None}


F32 = np.float32
STATES: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"norm__weight": None}, ValueError, ["missing: norm.weight"]),
    ({"layers__1__norm3__bias": None}, ValueError, ["missing: layers.1.norm3.bias"]),
    ({"layers__2__norm3__bias": np.ones(24, F32)}, ValueError, ["unexpected: layers.2.norm3.bias"]),
    ({"layers__0__linear1__extra": np.ones(24, F32)}, ValueError, ["unexpected: layers.0.linear1.extra"]),
    (
        {
            "layers__0__linear1__weight": np.ones((50, 25), F32),
            "layers__1__linear2__bias": None,
            "layers__1__multihead_attn__in_proj_weight": np.ones((24, 24), F32),
            "norm__scale": np.ones(24, F32),
        },
        ValueError,
        [
            "missing: layers.1.linear2.bias",
            "unexpected: norm.scale",
            "layers.0.linear1.weight [50, 25] instead of [50, 24]",
            "layers.1.multihead_attn.in_proj_weight [24, 24] instead of [72, 24]",
        ],
    ),
    ({"norm__bias": np.ones(24)}, TypeError, ["norm.bias float64", "float32"]),
    ({"layers__1__norm1__weight": np.ones(24, np.int32)}, TypeError, ["layers.1.norm1.weight int32"]),
    ({"layers__0__linear2__bias": [0.0] * 24}, TypeError, ["layers.0.linear2.bias is a list"]),
]


@pytest.mark.parametrize(("changes", "kind", "words"), STATES, ids=range(len(STATES)))
def test_a_wrong_state_leaves_all_as_it_was(changes: dict[str, Any], kind: type[Exception], words: list[str]) -> None:
    module = _make("decoder")
    before, before_state = _run(module), module.state_dict()
    with pytest.raises(kind) as error:
        module.load_state_dict(_state(**changes))
    message = str(error.value)
    assert message.startswith("Decoder.load_state_dict: ")
    for word in words:
        assert word in message, message
    assert_same_bits(_run(module), before)
    for name, array in module.state_dict().items():
        assert_same_bits(array, before_state[name], label=name)


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: LayerNorm(0), ValueError, ["LayerNorm: embed_dim", "0"]),
        (lambda: LayerNorm(2.0), TypeError, ["LayerNorm: embed_dim", "2.0"]),
        (lambda: LayerNorm(2, eps=-1.0), ValueError, ["LayerNorm", "eps", "-1"]),
        (lambda: LayerNorm(2, eps=float("nan")), ValueError, ["LayerNorm", "eps", "nan"]),
        (lambda: LayerNorm(2, dtype="complex64"), TypeError, ["LayerNorm: dtype", "complex64"]),
        (lambda: RMSNorm(0), ValueError, ["RMSNorm: embed_dim", "0"]),
        (lambda: RMSNorm(2, eps=-1.0), ValueError, ["RMSNorm", "eps", "-1"]),
        (lambda: RMSNorm(2, dtype="complex64"), TypeError, ["RMSNorm: dtype", "complex64"]),
        (lambda: EncoderLayer(24, 4, 50, norm="RMS"), ValueError, ["EncoderLayer: norm", "'rms'", "'RMS'"]),
        (lambda: Decoder(1, 24, 4, 50, norm=None), TypeError, ["Decoder: norm", "'rms'", "None"]),
        (lambda: FeedForward(2, 0), ValueError, ["FeedForward: feedforward_dim", "0"]),
        (lambda: FeedForward(2, True), TypeError, ["FeedForward: feedforward_dim", "True"]),
        (
            lambda: FeedForward(2, 3, activation="swish"),
            ValueError,
            ["activation", "gelu_tanh", "silu", "swish"],
        ),
        (lambda: FeedForward(2, 3, activation="none"), ValueError, ["activation", "relu", "gelu_tanh", "none"]),
        (lambda: FeedForward(2, 3, bias={"gate"}), ValueError, ["FeedForward: bias", "'linear1', 'linear2'", "gate"]),
        (lambda: FeedForward(2, 3, bias="gate"), TypeError, ["FeedForward: bias", "gate"]),
        (lambda: FeedForward(2, 3, gated=1), TypeError, ["FeedForward: gated", "1"]),
        (lambda: EncoderLayer(24, 4, 3, gated="yes"), TypeError, ["EncoderLayer: gated", "yes"]),
        (lambda: FeedForward(2, 3, dtype=int), TypeError, ["FeedForward: dtype", "int64"]),
        (lambda: EncoderLayer(24, 5, 3), ValueError, ["embed_dim", "num_heads", "24", "5"]),
        (lambda: EncoderLayer(24, 4, 0), ValueError, ["feedforward_dim", "0"]),
        (lambda: EncoderLayer(24, 4, 3, num_kv_heads=3), ValueError, ["num_kv_heads", "3"]),
        (lambda: Encoder(0, 24, 4, 3), ValueError, ["Encoder: num_layers", "0"]),
        (lambda: Encoder(1.0, 24, 4, 3), TypeError, ["Encoder: num_layers", "1.0"]),
        (lambda: Decoder(-1, 24, 4, 3), ValueError, ["Decoder: num_layers", "-1"]),
        (lambda: DecoderLayer(24, 4, 3, memory_dim=0), ValueError, ["DecoderLayer: memory_dim", "0"]),
        (lambda: Encoder(1, 24, 4, 3, activation="swish"), ValueError, ["activation", "swish"]),
    ],
)
def test_wrong_sizes(make: Callable[[], Any], kind: type[Exception], words: list[str]) -> None:
    with pytest.raises(kind) as error:
        make()
    for word in words:
        assert word in str(error.value), str(error.value)


def test_sizes_can_be_read() -> None:
    decoder = _make("decoder of another memory")
    assert (decoder.embed_dim, decoder.memory_dim, decoder.dtype) == (24, 17, np.dtype("float32"))
    layer = decoder.layers[0]
    assert (layer.embed_dim, layer.memory_dim, layer.norm_first) == (24, 17, True)
    feed_forward, norm = layer.feed_forward, layer.norm1
    assert (feed_forward.embed_dim, feed_forward.feedforward_dim, feed_forward.activation, feed_forward.bias) == (
        24, 50, "gelu", False,
    )  # fmt: skip
    assert (norm.embed_dim, norm.eps, norm.bias) == (24, 1e-3, False)
    assert (layer.self_attn.num_kv_heads, layer.cross_attn.kdim, layer.cross_attn.vdim) == (2, 17, 17)
