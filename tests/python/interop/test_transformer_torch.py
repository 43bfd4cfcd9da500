"""The blocks as PyTorch has them: the same numbers from the same weights, and modules that cannot be taken over."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import transformer_tolerance
from random_layers import rows
from tolerance import Array, assert_close, assert_no_further_off, assert_same_bits

from mha_native import Decoder, DecoderLayer, Encoder, EncoderLayer, LayerNorm, MultiHeadAttention, RMSNorm

torch = pytest.importorskip("torch")
from module_mutations import mutations  # noqa: E402

nn = torch.nn
prune = pytest.importorskip("torch.nn.utils.prune")
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")


def _randomized(module: Any) -> Any:
    torch.manual_seed(0)
    for name, parameter in module.named_parameters():
        nn.init.normal_(parameter, mean=float("norm" in name and name.endswith("weight")), std=0.2)
    return module


def _kind(dtype: Any) -> Any:
    return torch.from_numpy(np.ones(1, dtype)).dtype


def _tensor(shape: tuple[int, ...], dtype: Any, seed: int = 5) -> Any:
    return torch.from_numpy(rows(shape, dtype, seed))


def _both_within(ours: Any, theirs: Any, expected: Array, bound: Array) -> None:
    """Each is close to the oracle, so they are close to each other."""
    assert type(ours) is torch.Tensor
    assert_close(ours.numpy(), expected, bound, label="ours")
    assert_close(theirs.detach().numpy(), expected, 4 * bound, label="torch")  # its kernels may sum in another order


ACTIVATIONS = {
    "relu": ("relu", "relu"),
    "gelu": ("gelu", "gelu"),
    "function of relu": (nn.functional.relu, "relu"),
    "torch.relu": (torch.relu, "relu"),
    "module of relu": (nn.ReLU(), "relu"),
    "function of gelu": (nn.functional.gelu, "gelu"),
    "module of gelu": (nn.GELU(), "gelu"),
    "module of gelu by tanh": (nn.GELU(approximate="tanh"), "gelu_tanh"),
    "gelu by tanh": (functools.partial(nn.functional.gelu, approximate="tanh"), "gelu_tanh"),
    "function of silu": (nn.functional.silu, "silu"),
    "module of silu": (nn.SiLU(), "silu"),
}


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"elementwise_affine": False}], ids=str)
def test_layer_norm(options: dict[str, bool], isa: str) -> None:
    module = _randomized(nn.LayerNorm(37, eps=1e-3, **options))
    norm, x = LayerNorm.from_torch(module), _tensor((4, 37), np.float32)
    expected = transformer_tolerance.layer_norm(norm, transformer_tolerance.Near.exactly(x.numpy()))
    _both_within(norm(x), module(x), expected.out, expected.bound)


@pytest.mark.parametrize("options", [{}, {"eps": 1e-3}, {"elementwise_affine": False}], ids=str)
def test_rms_norm(options: dict[str, Any], isa: str, dtype: Any) -> None:
    is_plain = options.get("elementwise_affine", True)
    module = _randomized(nn.RMSNorm(37, dtype=_kind(dtype), **options))
    norm, x = RMSNorm.from_torch(module), _tensor((4, 37), dtype if is_plain else np.float32) * 1e-3
    assert norm.eps == options.get("eps", np.finfo(x.numpy().dtype).eps)
    expected = transformer_tolerance.layer_norm(norm, transformer_tolerance.Near.exactly(x.numpy()))
    _both_within(norm(x), module(x), expected.out, expected.bound)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch-first", "time-first"])
@pytest.mark.parametrize("norm_first", [True, False], ids=["pre-LN", "post-LN"])
def test_encoder_layer(activation: str, batch_first: bool, norm_first: bool, isa: str, dtype: Any) -> None:
    function, name = ACTIVATIONS[activation]
    module = nn.TransformerEncoderLayer(
        32, 4, 60, activation=function, norm_first=norm_first, batch_first=batch_first, layer_norm_eps=1e-3,
        bias=activation != "torch.relu", dtype=_kind(dtype),
    )  # fmt: skip
    layer = EncoderLayer.from_torch(_randomized(module))  # in training mode: there is no dropout all the same
    assert layer.feed_forward.activation == name
    assert list(layer.state_dict()) == list(module.state_dict())
    x, key_mask = _tensor((2, 9, 32), dtype), np.arange(9) < np.array([[9], [5]])
    ours = layer(x, key_mask=torch.from_numpy(key_mask))
    padding = ~torch.from_numpy(key_mask)
    theirs = module.eval()(x if batch_first else x.transpose(0, 1), src_key_padding_mask=padding)
    theirs = theirs if batch_first else theirs.transpose(0, 1)
    expected, _ = transformer_tolerance.encoder(layer, x.numpy(), {"key_mask": key_mask})
    real = key_mask[..., None] & np.ones(32, bool)  # torch may leave out rows of padding
    _both_within(ours[real], theirs[real], expected.out[real], expected.bound[real])


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("final_norm", [True, False])
def test_encoder(nested: bool, final_norm: bool, isa: str, dtype: Any) -> None:
    one = nn.TransformerEncoderLayer(
        32, 4, 60, activation="gelu", norm_first=final_norm, batch_first=True, dtype=_kind(dtype)
    )
    norm = nn.LayerNorm(32, eps=1e-4, bias=False, dtype=_kind(dtype)) if final_norm else None
    module = _randomized(nn.TransformerEncoder(one, 3, norm, enable_nested_tensor=nested))
    encoder = Encoder.from_torch(module)
    assert list(encoder.state_dict()) == list(module.state_dict())
    x, mask = _tensor((2, 9, 32), dtype), nn.Transformer.generate_square_subsequent_mask(9, dtype=_kind(dtype))
    expected, _ = transformer_tolerance.encoder(encoder, x.numpy(), {"is_causal": True})
    ours = encoder(x, is_causal=True)
    _both_within(ours, module.eval()(x, mask=mask), expected.out, expected.bound)
    assert_close(encoder(x, attn_mask=mask).numpy(), expected.out, expected.bound, label="as a mask")


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu by tanh", "function of silu"])
@pytest.mark.parametrize("norm_first", [True, False], ids=["pre-LN", "post-LN"])
def test_decoder(activation: str, norm_first: bool, isa: str, dtype: Any) -> None:
    function, _ = ACTIVATIONS[activation]
    one = nn.TransformerDecoderLayer(
        32, 4, 60, activation=function, norm_first=norm_first, batch_first=True, dtype=_kind(dtype)
    )
    module = _randomized(nn.TransformerDecoder(one, 2, nn.LayerNorm(32, dtype=_kind(dtype)) if norm_first else None))
    decoder = Decoder.from_torch(module)
    assert list(decoder.state_dict()) == list(module.state_dict())
    x, memory = _tensor((2, 9, 32), dtype), _tensor((2, 13, 32), dtype, seed=8)
    memory_mask = np.arange(13) < np.array([[13], [6]])
    mask = nn.Transformer.generate_square_subsequent_mask(9, dtype=_kind(dtype))
    theirs = module.eval()(x, memory, tgt_mask=mask, memory_key_padding_mask=~torch.from_numpy(memory_mask))
    ours = decoder(x, memory, memory_key_mask=torch.from_numpy(memory_mask))
    expected = transformer_tolerance.decoder(
        decoder, x.numpy(), memory.numpy(), {"is_causal": True}, {"key_mask": memory_mask}
    )
    _both_within(ours, theirs, expected.out, expected.bound)
    layer = DecoderLayer.from_torch(module.layers[1])
    assert_same_bits(layer(x, memory).numpy(), decoder.layers[1](x, memory).numpy())


def test_a_decoder_without_a_mask(isa: str) -> None:
    """Torch's is causal if it is told so, ours unless it is told otherwise."""
    module = _randomized(nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 60, batch_first=True), 2)).eval()
    decoder, layer = Decoder.from_torch(module), DecoderLayer.from_torch(module.layers[0])
    x, memory = _tensor((2, 9, 32), np.float32), _tensor((2, 13, 32), np.float32, seed=8)
    with torch.no_grad():
        of_stack, of_layer = module(x, memory), module.layers[0](x, memory)
    expected = transformer_tolerance.decoder(decoder, x.numpy(), memory.numpy(), {}, {})
    _both_within(decoder(x, memory, is_causal=False), of_stack, expected.out, expected.bound)
    ours = layer(x, memory, is_causal=False)
    assert torch.allclose(ours, of_layer, rtol=0, atol=1e-4)
    assert not torch.allclose(layer(x, memory), of_layer, rtol=0, atol=1e-4)


def test_a_whole_transformer(isa: str) -> None:
    module = _randomized(nn.Transformer(32, 4, 2, 2, 60, batch_first=True)).eval()
    encoder, decoder = Encoder.from_torch(module.encoder), Decoder.from_torch(module.decoder)
    source, target = _tensor((2, 7, 32), np.float32), _tensor((2, 5, 32), np.float32, seed=6)
    theirs = module(source, target, tgt_mask=module.generate_square_subsequent_mask(5))
    ours = decoder(target, encoder(source))
    memory, _ = transformer_tolerance.encoder(encoder, source.numpy(), {})
    expected = transformer_tolerance.decoder(decoder, target.numpy(), memory, {"is_causal": True}, {})
    _both_within(ours, theirs, expected.out, expected.bound)


def test_state_dicts_are_exchanged() -> None:
    module = _randomized(nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 60), 2))
    encoder = Encoder(2, 32, 4, 60, seed=5)
    encoder.load_state_dict(module.state_dict())
    back = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 60), 2)
    back.load_state_dict({name: torch.from_numpy(array) for name, array in encoder.state_dict().items()})
    for name, tensor in back.state_dict().items():
        assert_same_bits(module.state_dict()[name].numpy(), tensor.numpy(), label=name)


def test_from_torch_takes_a_copy() -> None:
    module = nn.TransformerEncoderLayer(32, 4, 60)
    layer = EncoderLayer.from_torch(module)
    before = layer.state_dict()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    for name, array in layer.state_dict().items():
        assert_same_bits(array, before[name], label=name)


class Derived(nn.TransformerEncoderLayer):
    def _ff_block(self, x: Any) -> Any:
        return x


def _with(**parts: Any) -> Any:
    module = copy.deepcopy(nn.TransformerEncoderLayer(32, 4, 60))
    for name, part in parts.items():
        setattr(module, name, part)
    return module


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
def test_a_module_in_16_bits(half: torch.dtype) -> None:
    """No further from the same layer in float32 than torch is, and a unit in the last place."""
    module = nn.TransformerEncoderLayer(32, 4, 60, batch_first=True, dtype=half).eval()
    layer = EncoderLayer.from_torch(module)
    x = torch.randn(3, 17, 32).to(half)
    out = layer(x)
    assert out.dtype == half
    exact = layer.astype("float32")(x.float())
    with torch.no_grad():
        theirs = module(x)
    assert_no_further_off(*(result.float().numpy() for result in (out, theirs, exact)), torch.finfo(half).eps)


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: nn.TransformerEncoderLayer(32, 4, 60, activation=torch.tanh), ValueError, ["activation", "tanh"]),
        (lambda: nn.TransformerEncoderLayer(32, 4, 60, activation=lambda x: x), ValueError, ["activation", "lambda"]),
        (lambda: nn.TransformerEncoderLayer(32, 4, 60, activation=nn.Mish()), ValueError, ["activation", "Mish"]),
        (lambda: nn.TransformerEncoderLayer(32, 4, 60, device="meta"), TypeError, ["meta"]),
        (lambda: Derived(32, 4, 60), TypeError, ["torch.nn.TransformerEncoderLayer", "Derived"]),
        (lambda: nn.TransformerDecoderLayer(32, 4, 60), TypeError, ["TransformerEncoderLayer", "TransformerDecoder"]),
        (lambda: nn.Linear(3, 3), TypeError, ["torch.nn.TransformerEncoderLayer", "Linear"]),
        (lambda: "layer", TypeError, ["torch.nn.TransformerEncoderLayer", "str"]),
        (lambda: _with(norm1=nn.RMSNorm(32)), TypeError, ["torch.nn.LayerNorm", "RMSNorm"]),
        (lambda: _with(norm2=nn.LayerNorm((9, 32))), ValueError, ["normalized_shape", "[9, 32]"]),
        (lambda: _with(linear1=nn.Identity()), TypeError, ["torch.nn.Linear", "Identity"]),
        (lambda: _with(linear2=nn.Linear(60, 31)), ValueError, ["linear2.weight", "[31, 60]", "[32, 60]"]),
        (lambda: _with(linear2=nn.Linear(60, 32, bias=False)), ValueError, ["missing: linear2.bias"]),
        (lambda: _with(norm1=nn.LayerNorm(31)), ValueError, ["31", "32"]),
        (lambda: _with(norm1=nn.LayerNorm(32, dtype=torch.float64)), TypeError, ["float64", "float32"]),
        (lambda: _with(self_attn=nn.Linear(32, 32)), TypeError, ["MultiheadAttention", "Linear"]),
    ],
)
def test_modules_that_are_refused(make: Any, kind: type[Exception], words: list[str]) -> None:
    with pytest.raises(kind) as error:
        EncoderLayer.from_torch(make())
    for word in words:
        assert word in str(error.value), str(error.value)


def test_stacks_that_are_refused() -> None:
    with pytest.raises(TypeError, match=r"Encoder.from_torch: .*torch.nn.TransformerEncoder; got .*EncoderLayer"):
        Encoder.from_torch(nn.TransformerEncoderLayer(32, 4, 60))
    stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 60), 2)
    stack.norm = nn.RMSNorm(32)
    with pytest.raises(TypeError, match=r"Encoder.from_torch: .*LayerNorm; got .*RMSNorm"):
        Encoder.from_torch(stack)
    stack.norm = None
    stack.layers[1] = nn.TransformerEncoderLayer(16, 4, 60)
    with pytest.raises(ValueError, match="16"):
        Encoder.from_torch(stack)
    with pytest.raises(TypeError, match=r"Decoder.from_torch: .*TransformerDecoder"):
        Decoder.from_torch(stack)


def _nothing(*arguments: Any) -> None:
    return None


@contextlib.contextmanager
def _hooked(add: Callable[[Any], Any], module: Any) -> Iterator[Any]:
    handle = add(module)
    try:
        yield module
    finally:
        handle.remove()


HOOKS: dict[str, Callable[[Any], Any]] = {
    "forward": lambda module: module.register_forward_hook(_nothing),
    "forward with keywords": lambda module: module.register_forward_hook(lambda *x: None, with_kwargs=True),
    "forward pre": lambda module: module.register_forward_pre_hook(_nothing),
    "all forward": lambda _: nn.modules.module.register_module_forward_hook(_nothing),
    "all forward pre": lambda _: nn.modules.module.register_module_forward_pre_hook(_nothing),
}
# A module of torch, what is made of it, and the names of its parts that count; "" is the module itself.
PARTS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], list[str]]] = {
    "LayerNorm": (lambda: nn.LayerNorm(32), LayerNorm.from_torch, [""]),
    "RMSNorm": (lambda: nn.RMSNorm(32), RMSNorm.from_torch, [""]),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(32, 4), MultiHeadAttention.from_torch, ["", "out_proj"]),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(32, 4, 60, activation=nn.GELU()),
        EncoderLayer.from_torch,
        ["", "self_attn", "self_attn.out_proj", "linear1", "dropout", "linear2", "norm1", "activation"],
    ),
    "TransformerDecoder": (
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 60), 2, nn.LayerNorm(32)),
        Decoder.from_torch,
        ["", "layers", "layers.1", "layers.1.multihead_attn", "layers.1.linear2", "norm"],
    ),
}
PARTS_OF_MODULES = [(kind, part) for kind, (_, _, parts) in PARTS.items() for part in parts]


@pytest.mark.parametrize(("kind", "part"), PARTS_OF_MODULES, ids=str)
@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_are_refused(hook: str, kind: str, part: str) -> None:
    make, from_torch, _ = PARTS[kind]
    module = make()
    with _hooked(HOOKS[hook], module.get_submodule(part)):
        with pytest.raises(ValueError, match=r"\.from_torch: .*forward hooks.*remove them first") as error:
            from_torch(module)
        assert hook.startswith("all") or (f"its {part} has" if part else "; it has") in str(error.value)
    from_torch(module)


@pytest.mark.parametrize(("kind", "part"), PARTS_OF_MODULES, ids=str)
def test_a_forward_of_its_own_is_refused(kind: str, part: str) -> None:
    make, from_torch, _ = PARTS[kind]
    module = make()
    module.get_submodule(part).forward = _nothing
    with pytest.raises(ValueError, match=r"\.from_torch: .* has a forward of its own.*delete"):
        from_torch(module)


def test_hooks_that_change_no_result_are_taken() -> None:
    module = nn.TransformerEncoderLayer(32, 4, 60)
    module.linear1.register_full_backward_hook(_nothing)
    module.register_load_state_dict_post_hook(_nothing)
    EncoderLayer.from_torch(module)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(
    "change",
    [
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
        lambda linear: prune.l1_unstructured(linear, "weight", 0.5),
    ],
    ids=["weight_norm", "spectral_norm", "prune"],
)
@pytest.mark.parametrize("part", ["self_attn.out_proj", "linear2"])
def test_weights_that_hooks_compute_are_refused(part: str, change: Any) -> None:
    module = nn.TransformerEncoderLayer(32, 4, 60)
    change(module.get_submodule(part))
    with pytest.raises(ValueError, match=rf"EncoderLayer.from_torch: .*its {part} has forward hooks"):
        EncoderLayer.from_torch(module)


@pytest.mark.parametrize(
    ("part", "weight"),
    [("linear1", "weight"), ("norm2", "bias"), ("self_attn", "in_proj_weight"), ("self_attn.out_proj", "weight")],
)
def test_parametrizations_are_refused(part: str, weight: str) -> None:
    module = nn.TransformerEncoderLayer(32, 4, 60)
    nn.utils.parametrize.register_parametrization(module.get_submodule(part), weight, nn.Tanh(), unsafe=True)
    with pytest.raises(TypeError, match=rf"^EncoderLayer.from_torch: .*its {part} .*remove_parametrizations"):
        EncoderLayer.from_torch(module)
    nn.utils.parametrize.remove_parametrizations(module.get_submodule(part), weight)
    EncoderLayer.from_torch(module)


def test_what_an_attention_layer_is_not_made_of() -> None:
    class DerivedAttention(nn.MultiheadAttention):
        pass

    with pytest.raises(TypeError, match=r"MultiHeadAttention.from_torch: .*torch.nn.MultiheadAttention; got .*Derived"):
        MultiHeadAttention.from_torch(DerivedAttention(32, 4))
    module = nn.MultiheadAttention(32, 4)
    nn.utils.parametrize.register_parametrization(module, "in_proj_weight", nn.Tanh())
    with pytest.raises(TypeError, match=r"torch.nn.MultiheadAttention; got .*remove_parametrizations"):
        MultiHeadAttention.from_torch(module)
    module = nn.MultiheadAttention(32, 4)
    module.out_proj = nn.Identity()
    with pytest.raises(TypeError, match=r"expected a plain torch.nn.MultiheadAttention; its out_proj is a Identity"):
        MultiHeadAttention.from_torch(module)


BLOCKS: dict[str, tuple[Callable[[], Any], Any]] = {
    "MultiheadAttention": (lambda: nn.MultiheadAttention(32, 4, batch_first=True), MultiHeadAttention),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(32, 4, 60, activation=nn.GELU(), batch_first=True),
        EncoderLayer,
    ),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(32, 4, 60, batch_first=True), DecoderLayer),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, 60, batch_first=True), 2, nn.LayerNorm(32), enable_nested_tensor=False
        ),
        Encoder,
    ),
    "TransformerDecoder": (
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 60, batch_first=True), 2),
        Decoder,
    ),
}


def _of_torch(module: Any) -> Any:
    """The rows of a block of torch, batch-first, or None if it fails."""
    x = _tensor((2, 9, 32), np.float32)
    first = next(part for part in module.modules() if isinstance(part, nn.MultiheadAttention))
    given = x if first.batch_first else x.transpose(0, 1)
    given = (given,) * (1 if "Encoder" in type(module).__name__ else 2 if "Decoder" in type(module).__name__ else 3)
    torch.manual_seed(3)
    try:
        with torch.no_grad():
            out = module(*given)
    except Exception:  # of whatever kind: then torch has no result
        return None
    out = out[0] if isinstance(out, tuple) else out
    return out if first.batch_first else out.transpose(0, 1)


def _refusal(ours: Any, module: Any) -> tuple[str, Any]:
    """The message with which `from_torch` refuses a module, or "" and the layer."""
    try:
        return "", ours.from_torch(module)
    except (TypeError, ValueError) as error:
        return str(error), None


@pytest.mark.parametrize("kind", BLOCKS)
def test_changed_modules_are_equal_or_refused(kind: str) -> None:
    make, ours = BLOCKS[kind]
    plain = _randomized(make()).eval()
    x, unchanged = _tensor((2, 9, 32), np.float32), _of_torch(plain)
    options = {"is_causal": False} if "Decoder" in kind else {}
    counts = {"changing": 0, "refused": 0}
    for mutation in mutations(plain):
        undo = mutation.apply(plain)
        expected = _of_torch(plain)
        error, layer = _refusal(ours, plain)
        if error:
            counts["refused"] += 1
            assert ".from_torch: " in error
            assert mutation.name in error or mutation.part in error
        elif mutation.name != "training" and expected is not None:  # dropout is never applied
            memory = (x,) if "Decoder" in kind else ()
            assert torch.allclose(layer(x, *memory, **options), expected, rtol=0, atol=1e-4), str(mutation)
        undo()
        counts["changing"] += expected is None or not torch.allclose(expected, unchanged, rtol=0, atol=1e-4)
    assert counts["changing"] > 2
    assert counts["refused"] > 2
    ours.from_torch(plain)


def _exchange(name: str, of: Any = None) -> Callable[[Any], Any]:
    """Let a method give what a function of its input gives."""
    return lambda module: setattr(of or module, name, lambda x, *arguments, **named: 2 * x)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_exchange("_sa_block"), "it has a _sa_block of its own"),
        (_exchange("_ff_block"), "it has a _ff_block of its own"),
        (lambda module: setattr(module, "dropout1", nn.Tanh()), "its dropout1 is a Tanh, and not a torch.nn.Dropout"),
        (lambda module: setattr(module, "activation", nn.functional.gelu), "activation_relu_or_gelu is 1, and not 2"),
        (lambda module: setattr(module.self_attn, "num_heads", 8), "its self_attn.head_dim is 8, and not 4"),
        (lambda module: setattr(module.self_attn, "num_heads", 5), "must be divisible"),
    ],
)
def test_changes_that_are_refused(change: Callable[[Any], Any], words: str) -> None:
    module = nn.TransformerEncoderLayer(32, 4, 60)
    change(module)
    with pytest.raises((TypeError, ValueError), match=rf"^EncoderLayer\.from_torch: .*{words}"):
        EncoderLayer.from_torch(module)


def test_attentions_that_disagree_in_batch_first_are_refused() -> None:
    module = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 60, batch_first=True), 2)
    module.layers[1].multihead_attn.batch_first = False
    with pytest.raises(ValueError, match=r"batch_first is True in its layers.0.self_attn and False in its layers.1.mu"):
        Decoder.from_torch(module)


def test_a_method_that_other_code_put_into_a_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 60), 1, enable_nested_tensor=False)
    monkeypatch.setattr(nn.TransformerEncoderLayer, "_ff_block", lambda self, x: x)
    with pytest.raises(ValueError, match=r"the _ff_block of the class of its layers.0 is not torch's"):
        Encoder.from_torch(module)


def test_parts_that_drop_nothing_and_norms_of_other_eps_are_taken() -> None:
    module = _randomized(nn.TransformerEncoderLayer(32, 4, 60, batch_first=True)).eval()
    module.dropout, module.dropout1.p, module.norm2.eps = nn.Identity(), 0.7, 0.5
    module.compile(backend="eager")
    x = _tensor((2, 9, 32), np.float32)
    with torch.no_grad():
        expected = module.forward(x)
    assert torch.allclose(EncoderLayer.from_torch(module)(x), expected, rtol=0, atol=1e-4)
