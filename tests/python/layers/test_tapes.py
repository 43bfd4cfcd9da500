"""Recorded calls of all layers: their gradients are differences of the layer, and the gradients of torch.

A difference of the forward pass in float64 along a random direction of one array has an error near 1e-10, and it knows
every option that the forward pass knows.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import mha_native as mha
from mha_native.functions.options import ATTENTION_OPTIONS
from mha_native.layers._head_steps import QK_NORMS
from mha_native.layers._layer_call import MEMORY_OPTIONS
from mha_native.layers._tape import OPTIONS_WITH_GRADIENTS, RECOMPUTE

E, H, F, B, T, S = 12, 4, 20, 2, 7, 5
STEP = 1e-5

rng = np.random.default_rng


def numbers(*shape: int, seed: int = 0) -> Any:
    return rng(seed).standard_normal(shape)


def rotary(dim: int = 2) -> mha.RotaryEmbedding:
    return mha.RotaryEmbedding.from_base(dim, 32, dtype="float64")


def shaken(layer: Any, seed: int = 5) -> Any:
    """Return the layer with weights that are neither 0 nor 1 anywhere."""
    state = layer.state_dict()
    layer.load_state_dict({name: x + 0.2 * numbers(*x.shape, seed=seed) for name, x in state.items()})
    return layer


class Case:
    """A layer in float64, and the arguments of a call."""

    def __init__(self, layer: Any, *inputs: Any, **options: Any) -> None:
        self.layer, self.inputs, self.options = shaken(layer), inputs, options

    def names(self) -> list[str]:
        known = ("query", "key", "value") if isinstance(self.layer, mha.MultiHeadAttention) else ("x", "memory")
        return list(known[: len(self.inputs)])

    def value(self, arrays: Mapping[str, Any], state: Mapping[str, Any] | None, dout: Any) -> float:
        """Return sum(dout * layer(...)) with other arrays for inputs, options and weights."""
        layer = self.layer
        if state is not None:
            layer = copy.deepcopy(layer)
            layer.load_state_dict(state)
        inputs = [arrays.get(name, x) for name, x in zip(self.names(), self.inputs, strict=True)]
        options = {name: arrays.get(name, x) for name, x in self.options.items()}
        return float((layer(*inputs, **options) * dout).sum())

    def check(self) -> None:
        wanted = [x for x in OPTIONS_WITH_GRADIENTS if np.asarray(self.options.get(x, False)).dtype == np.float64]
        names = list(self.layer.state_dict())
        leaves = dict.fromkeys(name.split(".")[0] for name in names)
        wrt = (*leaves, *self.names(), *wanted)
        plain = self.layer(*self.inputs, **self.options)
        dout = numbers(*plain.shape, seed=9)
        results = []
        for recompute in RECOMPUTE:
            for num_threads in (1, 2):
                out, tape = self.layer.forward_and_record(
                    *self.inputs, recompute=recompute, wrt=wrt, num_threads=num_threads, **self.options
                )
                assert np.array_equal(out, plain), "the result must have the bits of the call"
                results.append(tape.backward(dout))
        found = results[0]
        for other in results[1:]:
            assert other.weights.keys() == found.weights.keys()
            for name, gradient in (found.weights | found.inputs).items():
                assert np.array_equal((other.weights | other.inputs)[name], gradient), name
        assert list(found.weights) == names
        assert list(found.inputs) == [*self.names(), *wanted]
        state = self.layer.state_dict()
        for name, gradient in (found.weights | found.inputs).items():
            own = state.get(name)
            array = own if own is not None else dict(zip(self.names(), self.inputs, strict=True)) | self.options
            array = array if own is not None else array[name]
            assert gradient.shape == array.shape, name
            assert gradient.dtype == array.dtype, name
            finite = np.isfinite(array)
            direction = np.where(finite, numbers(*array.shape, seed=3), 0)
            moved = [np.where(finite, array + sign * STEP * direction, array) for sign in (1, -1)]
            values = [
                self.value({name: x}, None, dout) if own is None else self.value({}, state | {name: x}, dout)
                for x in moved
            ]
            expected = (values[0] - values[1]) / (2 * STEP)
            scale = max(abs(expected), float(np.abs(gradient * direction).max()), 1e-3)
            assert abs((gradient * direction).sum() - expected) < 1e-6 * scale, name


x, memory = numbers(B, T, E), numbers(B, S, E, seed=1)
ragged, offsets = numbers(11, E, seed=2), np.array([0, 4, 4, 11])
F64: dict[str, Any] = {"dtype": "float64", "seed": 0}


def attention(**arguments: Any) -> mha.MultiHeadAttention:
    return mha.MultiHeadAttention(E, H, **F64, **arguments)


# For each option of attention the arguments of a call with it.
OPTIONS: dict[str, dict[str, Any]] = {
    "attn_mask": {"attn_mask": np.where(rng(4).random((B, 1, T, T)) < 0.2, -np.inf, numbers(B, 1, T, T, seed=4))},
    "key_mask": {"key_mask": np.arange(T)[None] < np.array([[T], [3]])},
    "is_causal": {"is_causal": True},
    "query_offset": {"query_offset": np.array([2, 0]), "is_causal": True},
    "key_lengths": {"key_lengths": np.array([T, 4])},
    "block_mask": {"block_mask": rng(6).random((1, H, 1, 1)) < 0.7},
    "window": {"window": (2, 1)},
    "scale": {"scale": 0.9},
    "softcap": {"softcap": 1.5},
    "alibi_slopes": {"alibi_slopes": np.array([0.5, 0.2, 0.1, 0.4])},
    "position_bias": {"position_bias": numbers(H, 7, seed=7)},
    "sinks": {"sinks": numbers(H, seed=8)},
    "positions": {"positions": np.array([[3, 4, 9, 10, 11, 1, 2], [0, 1, 2, 3, 4, 5, 6]])},
}
MEMORY: dict[str, Any] = {
    "memory_attn_mask": numbers(B, 1, T, S, seed=4),
    "memory_key_mask": np.arange(S)[None] < np.array([[S], [3]]),
    "memory_lengths": np.array([S, 2]),
    "memory_scale": 0.8,
}
norms = {"layer": {}, "rms": {"norm": "rms"}, "offset": {"norm": "rms_unit_offset", "output_norms": True}}
of_head = {"qk_norm": "layer", "rotary": rotary(), "num_kv_heads": 2, "head_dim": 4}
added = {"add_bias_kv": True, "add_zero_attn": True}

CASES: dict[str, Case] = {
    "linear": Case(mha.Linear(E, 5, **F64), x),
    "linear without a bias": Case(mha.Linear(E, 5, bias=False, **F64), x[0]),
    "layer norm": Case(mha.LayerNorm(E, dtype="float64"), x),
    "layer norm without a bias": Case(mha.LayerNorm(E, bias=False, dtype="float64"), x),
    "rms norm": Case(mha.RMSNorm(E, dtype="float64"), x),
    "rms norm with an offset": Case(mha.RMSNorm(E, unit_offset=True, dtype="float64"), x),
    **{
        f"feed-forward {kind} {'gated' * gated}": Case(
            mha.FeedForward(E, F, activation=kind, gated=gated, bias=("linear1",) if gated else True, **F64), x
        )
        for kind in ("relu", "gelu", "gelu_tanh", "silu", "quick_gelu")
        for gated in (False, True)
    },
    "attention": Case(attention(), x),
    "attention without a batch": Case(attention(), x[0], is_causal=True),
    "attention in strided memory": Case(attention(), np.asfortranarray(x)),
    "attention to a memory": Case(attention(), x, memory),
    "attention to key and value": Case(attention(), x, memory, numbers(B, S, E, seed=2)),
    "attention to other features": Case(
        attention(kdim=9, vdim=5, bias=("query", "value")), x, numbers(B, S, 9), numbers(B, S, 5)
    ),
    "grouped heads": Case(attention(num_kv_heads=2, head_dim=5, value_head_dim=3, out_dim=8, bias=False), x),
    "a few biases": Case(attention(bias=("key", "out")), x, is_causal=True),
    "added keys": Case(attention(**added), x, **OPTIONS["key_lengths"]),
    "added keys, all options": Case(
        attention(**added, num_kv_heads=1), x, memory, scale=0.7, softcap=2.0, **OPTIONS["sinks"], is_causal=True
    ),
    "added zeros": Case(attention(add_zero_attn=True), x, window=(1, 1)),
    "added keys, ragged": Case(attention(add_bias_kv=True), ragged, cu_seqlens_q=offsets),
    **{f"norm of heads {kind}": Case(attention(qk_norm=kind), x) for kind in QK_NORMS},
    "rotary": Case(attention(rotary=rotary(), num_kv_heads=2), x, is_causal=True),
    "rotary with offsets": Case(attention(**of_head), x, **OPTIONS["query_offset"]),
    "rotary, ragged": Case(attention(**of_head), ragged, cu_seqlens_q=offsets, is_causal=True),
    "ragged": Case(
        attention(num_kv_heads=2), ragged, numbers(9, E), cu_seqlens_q=offsets, cu_seqlens_k=np.array([0, 2, 5, 9])
    ),
    "ragged with a mask": Case(
        attention(), ragged, cu_seqlens_q=offsets, attn_mask=numbers(H, 11, 7), key_mask=rng(1).random(11) < 0.8
    ),
    **{
        f"option {name}": Case(
            attention(num_kv_heads=2, **({"rotary": rotary()} if name == "positions" else {})), x, **options
        )
        for name, options in OPTIONS.items()
    },
    **{
        f"encoder layer {kind}, norm_first {first}": Case(
            mha.EncoderLayer(E, H, F, norm_first=first, activation="gelu", **norms[kind], **F64), x
        )
        for kind in norms
        for first in (False, True)
    },
    "encoder layer without norms": Case(
        mha.EncoderLayer.from_parts(attention(), mha.FeedForward(E, F, activation="silu", **F64)), x
    ),
    "encoder layer with one norm": Case(
        mha.EncoderLayer.from_parts(
            attention(), mha.FeedForward(E, F, **F64), None, mha.LayerNorm(E, dtype="float64"), norm_first=True
        ),
        x,
        **OPTIONS["attn_mask"],
    ),
    "encoder layer, everything": Case(
        mha.EncoderLayer(
            E, H, F, gated=True, activation="silu", norm_first=True, bias=False, norm="rms", **of_head, **F64
        ),
        x,
        is_causal=True,
        sinks=numbers(H),
    ),
    "encoder layer, ragged": Case(
        mha.EncoderLayer(E, H, F, **of_head, **F64), ragged, cu_seqlens=offsets, alibi_slopes=numbers(H)
    ),
    **{
        f"decoder layer, norm_first {first}": Case(
            mha.DecoderLayer(E, H, F, memory_dim=9, norm_first=first, output_norms=first, activation="gelu", **F64),
            x,
            numbers(B, S, 9),
        )
        for first in (False, True)
    },
    **{
        f"option {name}": Case(mha.DecoderLayer(E, H, F, num_kv_heads=2, **F64), x, memory, **{name: MEMORY[name]})
        for name in MEMORY
    },
    "encoder": Case(mha.Encoder(3, E, H, F, final_norm=True, activation="gelu", **F64), x, **OPTIONS["attn_mask"]),
    "encoder without a batch": Case(mha.Encoder(2, E, H, F, norm_first=True, **F64), x[0]),
    "encoder with options of layers": Case(
        mha.Encoder(2, E, H, F, layer_options=[{"window": (1, 1)}, {"sinks": numbers(H), "scale": 0.4}], **F64), x
    ),
    "encoder, ragged": Case(
        mha.Encoder(2, E, H, F, rotary=rotary(), **F64), ragged, cu_seqlens=offsets, position_bias=numbers(H, 5)
    ),
    "decoder": Case(
        mha.Decoder(3, E, H, F, norm_first=True, final_norm=True, **F64), x, memory, memory_lengths=np.array([S, 2])
    ),
    "causal decoder": Case(
        mha.CausalDecoder(2, E, H, F, norm_first=True, norm="rms", final_norm=True, gated=True, **of_head, **F64), x
    ),
}


def test_every_option_has_a_case() -> None:
    assert OPTIONS.keys() == ATTENTION_OPTIONS
    assert all(name in options for name, options in OPTIONS.items())
    assert MEMORY.keys() == MEMORY_OPTIONS.keys()


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_differences_of_the_call(case: str) -> None:
    CASES[case].check()


def torch_modules(torch: Any) -> dict[str, tuple[Any, Any, tuple[Any, ...], dict[str, Any], dict[str, Any]]]:
    """Return modules, classes of this library, inputs, and the options of both calls, by name."""
    nn, batch = torch.nn, {"batch_first": True}
    square = {"tgt_mask": nn.Transformer.generate_square_subsequent_mask(T), "tgt_is_causal": True}
    layer = nn.TransformerEncoderLayer(E, H, F, 0.0, "gelu", **batch)
    pre = nn.TransformerDecoderLayer(E, H, F, 0.0, norm_first=True, **batch)
    return {
        "Linear": (nn.Linear(E, 5), mha.Linear, (x,), {}, {}),
        "LayerNorm": (nn.LayerNorm(E), mha.LayerNorm, (x,), {}, {}),
        "RMSNorm": (nn.RMSNorm(E), mha.RMSNorm, (x,), {}, {}),
        "attention": (nn.MultiheadAttention(E, H, kdim=9, vdim=5, add_bias_kv=True, add_zero_attn=True, **batch),
                      mha.MultiHeadAttention, (x, numbers(B, S, 9), numbers(B, S, 5)), {}, {}),
        "encoder layer": (layer, mha.EncoderLayer, (x,), {}, {}),
        "decoder layer": (pre, mha.DecoderLayer, (x, memory), square, {}),
        "encoder": (nn.TransformerEncoder(layer, 2, nn.LayerNorm(E)), mha.Encoder, (x,), {}, {}),
        "causal decoder": (nn.TransformerEncoder(layer, 2), mha.CausalDecoder, (x,),
                           {"mask": square["tgt_mask"], "is_causal": True}, {}),
        "decoder": (nn.TransformerDecoder(pre, 2), mha.Decoder, (x, memory), square, {}),
    }  # fmt: skip


NAMES = ["Linear", "LayerNorm", "RMSNorm", "attention", "encoder layer", "decoder layer", "encoder", "causal decoder"]


@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-10), ("float32", 2e-5)])
@pytest.mark.parametrize("name", [*NAMES, "decoder"])
def test_gradients_are_those_of_torch(name: str, dtype: str, bound: float) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module, kind, inputs, theirs, ours = torch_modules(torch)[name]
    module = module.to(getattr(torch, dtype))
    theirs = {key: y.to(module_dtype(module)) if hasattr(y, "to") else y for key, y in theirs.items()}
    arrays = [array.astype(dtype) for array in inputs]
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    out = module(*tensors, **theirs)
    out = out[0] if isinstance(out, tuple) else out
    dout = numbers(*out.shape, seed=3).astype(dtype)
    out.backward(torch.from_numpy(dout))
    y, tape = kind.from_torch(module).forward_and_record(*(torch.from_numpy(array) for array in arrays), **ours)
    assert isinstance(y, torch.Tensor)
    found = tape.backward(torch.from_numpy(dout))
    expected = {key: parameter.grad.numpy() for key, parameter in module.named_parameters()}
    assert found.weights.keys() == expected.keys()
    pairs = [(found.weights[key], expected[key]) for key in expected]
    pairs += [(mine.numpy(), tensor.grad.numpy()) for mine, tensor in zip(found.inputs.values(), tensors, strict=True)]
    assert len(found.inputs) == len(tensors)
    for mine, other in pairs:
        assert np.abs(mine - other).max() <= bound * max(1, float(np.abs(other).max()))


def module_dtype(module: Any) -> Any:
    return next(module.parameters()).dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_of_16_bits(dtype: str) -> None:
    """The result has the bits of the call in every mode, and gradients are near those in float64."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    layer = shaken(mha.EncoderLayer(32, 4, 48, activation="gelu", norm_first=True, qk_norm="rms", **F64))
    narrow = layer.astype(dtype)
    given, dout = numbers(2, 9, 32), numbers(2, 9, 32, seed=1)
    mine = given.astype(narrow.dtype)
    results = []
    for recompute in RECOMPUTE:
        y, tape = narrow.forward_and_record(mine, recompute=recompute)
        assert np.array_equal(y, narrow(mine))
        results.append(tape.backward(dout.astype(narrow.dtype)))
    _, tape = layer.forward_and_record(given)
    exact = tape.backward(dout)
    for name, gradient in exact.weights.items():
        of_mode = [found.weights[name] for found in results]
        assert all(np.array_equal(of_mode[0], other) for other in of_mode[1:]), name
        assert of_mode[0].dtype == narrow.dtype
        error = np.abs(of_mode[0].astype(np.float64) - gradient).max()
        assert error < {"float16": 0.01, "bfloat16": 0.08}[dtype] * np.abs(gradient).max(), name


def test_frozen_parts_cost_nothing() -> None:
    """Only what is asked for is computed, and only what that needs is kept."""
    encoder = shaken(mha.Encoder(3, E, H, F, **F64))
    y, whole = encoder.forward_and_record(x)
    everything = whole.backward(y)
    for wrt in (("layers.2",), ("layers.1.linear2.weight",), ("x",), ("layers.0.norm1", "layers.2.self_attn"), ()):
        out, tape = encoder.forward_and_record(x, wrt=wrt)
        assert np.array_equal(out, y)
        found = tape.backward(y)
        expected = [name for name in everything.weights if any(f"{name}.".startswith(f"{each}.") for each in wrt)]
        assert list(found.weights) == expected
        assert found.inputs.keys() == {"x"} & set(wrt)
        for name in expected:
            assert np.array_equal(found.weights[name], everything.weights[name]), name
        if "x" in wrt:
            assert np.array_equal(found.inputs["x"], everything.inputs["x"])
    of_linear: list[tuple[str, ...]] = []
    linear_gradient = mha.layers._tape.linear_gradient

    def counted(*arguments: Any, wrt: tuple[str, ...], **options: Any) -> Any:
        of_linear.append(wrt)
        return linear_gradient(*arguments, wrt=wrt, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mha.layers._tape, "linear_gradient", counted)
        patch.setattr(mha.layers._attention_tape, "linear_gradient", counted)
        _, tape = encoder.forward_and_record(x, wrt=("layers.1.linear2",))
        tape.backward(y)
    # Of the last layer, without weights, four maps: the two of the feed-forward, the heads and the projection.
    assert of_linear == [("x",)] * 4 + [("weight", "bias")]


def test_a_tape_holds_the_weights_of_its_call_and_is_used_once() -> None:
    layer = shaken(mha.Linear(E, 5, **F64))
    y, tape = layer.forward_and_record(x)
    before = layer.state_dict()
    layer.load_state_dict({name: 0 * array for name, array in before.items()})
    unaligned = np.zeros(y.nbytes + 1, np.uint8)[1:].view(y.dtype).reshape(y.shape)
    for wrong, error, message in (
        (
            y[0],
            ValueError,
            r"^Tape\.backward: dout must have the shape of the result, \[2, 7, 5\]; got \[7, 5\]$",
        ),
        (
            y.astype(np.float32),
            TypeError,
            r"^Tape\.backward: dout must be float64, as the result; got float32$",
        ),
        (1.0, TypeError, r"^Tape\.backward: dout must be an array of the shape of the result; got float$"),
        (unaligned, TypeError, r"^Tape\.backward: dout must be aligned in memory$"),
    ):
        with pytest.raises(error, match=message):
            tape.backward(wrong)
    found = tape.backward(y)
    assert np.allclose(found.inputs["x"], y @ before["weight"])
    with pytest.raises(RuntimeError, match=r"^Tape\.backward: a tape can be used once; record the call again$"):
        tape.backward(y)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ({"cache": None}, TypeError, "got an unexpected keyword argument 'cache'"),
        ({"need_weights": True}, TypeError, "got an unexpected keyword argument 'need_weights'"),
        ({"recompute": "all"}, ValueError, "recompute must be one of 'none', 'attention', 'layer'; got 'all'"),
        ({"wrt": "x"}, TypeError, "wrt must be a tuple of names; got 'x'"),
        (
            {"wrt": ("self",)},
            ValueError,
            "wrt must name weights, parts with weights, or given inputs (x); got 'self'",
        ),
        ({"memory": x}, TypeError, "memory is for a decoder; got ndarray"),
        ({"x": x}, TypeError, "x must be of the dtype of the layer, float32; got x float64"),
        ({"key_lengths": np.array([8, 9])}, ValueError, "key_lengths must lie in [0, Tk] = [0, 7]; got 8"),
    ],
)
def test_what_cannot_be_recorded_is_refused_by_name(call: dict[str, Any], error: Any, message: str) -> None:
    layer = mha.EncoderLayer(E, H, F, seed=0)
    with pytest.raises(error) as raised:
        layer.forward_and_record(**{"x": x.astype(np.float32), **call})
    assert str(raised.value).startswith(f"EncoderLayer.forward_and_record: {message}"), str(raised.value)


def test_calls_of_other_layers_are_refused_by_name() -> None:
    rows = x.astype(np.float32)
    stored = "weight_dtype must be 'float32', the dtype of the layer, to have gradients; got 'int8' in"
    with pytest.raises(TypeError, match=f"^Encoder.forward_and_record: {stored} layers.0.self_attn$"):
        mha.Encoder(1, E, H, F, weight_dtype="int8").forward_and_record(rows)
    with pytest.raises(TypeError, match=f"^Linear.forward_and_record: {stored} the layer$"):
        mha.Linear(E, 5, weight_dtype="int8").forward_and_record(rows)
    with pytest.raises(TypeError, match=f"^Linear.forward_and_record: {stored.replace('int8', 'int4')} the layer$"):
        mha.Linear(E, 5, weight_dtype="int4").forward_and_record(rows)
    decoder, attend = mha.DecoderLayer(E, H, F), mha.MultiHeadAttention(E, H)
    with pytest.raises(TypeError, match=r"^DecoderLayer\.forward_and_record: memory must be given$"):
        decoder.forward_and_record(rows)
    with pytest.raises(ValueError, match=r"^DecoderLayer\.forward_and_record: memory must have 12 features"):
        decoder.forward_and_record(rows, rows[..., :5])
    with pytest.raises(ValueError, match=r"^DecoderLayer\.forward_and_record: cu_seqlens cannot be combined"):
        decoder.forward_and_record(rows[0], rows[0], cu_seqlens=np.array([0, 7]))
    with pytest.raises(TypeError, match=r"^MultiHeadAttention\.forward_and_record: got an unexpected .* 'cache'$"):
        attend.forward_and_record(rows, cache=attend.new_cache(2, 9))
    with pytest.raises(ValueError, match=r"^MultiHeadAttention\.forward_and_record: cu_seqlens_q must be given if"):
        attend.forward_and_record(rows, cu_seqlens_k=np.array([0, 7]))
