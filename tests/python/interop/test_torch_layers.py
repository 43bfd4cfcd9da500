"""Layers of torch that this library computes: results, gradients and weights of the layers of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mha_native.interop.torch import (  # noqa: E402
    MultiHeadAttention,
    TransformerEncoderLayer,
    row_operators,
)

F64 = torch.float64
B, T, S, E, H = 2, 5, 7, 16, 4


def _random(*shape: int) -> Any:
    return torch.randn(*shape, dtype=F64, requires_grad=True)


def _pair(kind: str, **options: Any) -> tuple[Any, Any]:
    """A layer of this library and one of torch, with the same random weights."""
    torch.manual_seed(0)
    ours, theirs = {
        "attention": (MultiHeadAttention, torch.nn.MultiheadAttention),
        "encoder": (TransformerEncoderLayer, torch.nn.TransformerEncoderLayer),
    }[kind]
    made = ours(E, H, **options, dtype=F64), theirs(E, H, **options, dtype=F64)
    with torch.no_grad():
        for x in made[1].parameters():
            x.copy_(torch.randn_like(x) / 3 + (x.ndim == 1))
    made[0].load_state_dict(made[1].state_dict())
    return made


def _compare(pair: tuple[Any, Any], inputs: list[Any], call: Callable[..., Any]) -> None:
    """Check the results and all gradients."""
    found = []
    for layer in pair:
        out = call(layer, *inputs)
        wanted = [*dict.fromkeys(inputs), *layer.parameters()]
        torch.manual_seed(1)
        found.append([out, *torch.autograd.grad((out * torch.randn(out.shape, dtype=F64)).sum(), wanted)])
    for ours, expected in zip(*found, strict=True):
        assert torch.allclose(ours, expected, rtol=1e-10, atol=1e-11)


MASKS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "boolean": lambda: {"attn_mask": torch.ones(T, S, dtype=torch.bool).triu(2)},
    "of each head": lambda: {"attn_mask": torch.randn(B * H, T, S, dtype=F64)},
    "padding": lambda: {"key_padding_mask": torch.arange(S) >= torch.tensor([[S], [4]])},
    "both": lambda: {
        "attn_mask": torch.ones(T, S, dtype=torch.bool).triu(2),
        "key_padding_mask": torch.randn(B, S, dtype=F64),
    },
    "numbers": lambda: {"attn_mask": torch.randn(T, S, dtype=F64), "key_padding_mask": torch.randn(B, S, dtype=F64)},
}


@pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning")
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("options", [{}, {"batch_first": True, "kdim": 6, "vdim": 8}, {"bias": False}], ids=str)
def test_attention_is_that_of_torch(options: dict[str, Any], name: str) -> None:
    pair, masks = _pair("attention", **options), MASKS[name]()
    inputs = [_random(B, T, E), _random(B, S, options.get("kdim", E)), _random(B, S, options.get("vdim", E))]
    if not options.get("batch_first"):
        inputs = [x.transpose(0, 1) for x in inputs]
    _compare(pair, inputs, lambda layer, *x: layer(*x, **masks, need_weights=False)[0])


def test_self_attention_without_a_batch() -> None:
    pair = _pair("attention")
    mask = torch.ones(T, T, dtype=torch.bool).triu(1)
    _compare(pair, [_random(T, E)], lambda layer, x: layer(x, x, x, attn_mask=mask, need_weights=False)[0])
    x = _random(T, E)
    assert torch.equal(pair[0](x, x, x, is_causal=True)[0], pair[0](x, x, x, attn_mask=mask)[0])


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu", torch.tanh])
@pytest.mark.parametrize("norm_first", [True, False])
def test_a_layer_of_an_encoder_is_that_of_torch(norm_first: bool, activation: Any, batch_first: bool) -> None:
    options = {"dim_feedforward": 24, "dropout": 0.0, "norm_first": norm_first, "activation": activation}
    pair = _pair("encoder", **options, batch_first=batch_first)
    padding = torch.arange(T) >= torch.tensor([[T], [4]])
    inputs = [_random(B, T, E) if batch_first else _random(T, B, E)]
    _compare(pair, inputs, lambda layer, x: layer(x, src_key_padding_mask=padding))


def test_a_stack_of_torch_and_its_training() -> None:
    ours, theirs = _pair("encoder", dim_feedforward=24, dropout=0.0, batch_first=True)
    losses = []
    for layer in (ours, theirs):
        stack = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=layer is theirs)
        optimizer = torch.optim.SGD(stack.parameters(), lr=0.05)
        torch.manual_seed(2)
        x, y = torch.randn(2, B, T, E, dtype=F64)
        losses.append([])
        for _ in range(10):
            optimizer.zero_grad()
            loss = (stack(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    with torch.no_grad():  # where torch has another path for its own layers, which are training no more
        assert torch.allclose(*(layer.eval()(x) for layer in (ours, theirs)), rtol=1e-9)
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert losses[0][-1] < losses[0][0]


def test_it_is_part_of_a_compiled_graph() -> None:
    layer, _ = _pair("encoder", dim_feedforward=24, dropout=0.0, batch_first=True)
    x = _random(B, T, E)
    found = []
    for call in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        out = call(x)
        found.append([out, *torch.autograd.grad(out.sum(), [x, *layer.parameters()])])
    for ours, expected in zip(*found, strict=True):
        assert torch.allclose(ours, expected, rtol=1e-12, atol=1e-12)


OPERATORS: dict[str, tuple[Any, ...]] = {
    "apply_linear": ((5, E), (5,)),
    "apply_layer_norm": ((E,), (E,), 1e-5),
    "apply_activation": (None, None, "gelu"),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_pass_the_checks_of_torch(name: str) -> None:
    operator, checks = getattr(row_operators, name), ("test_schema", "test_autograd_registration", "test_faketensor")
    weight, bias, *constants = OPERATORS[name]
    x, weight, bias = (None if shape is None else _random(*shape) for shape in ((B, T, E), weight, bias))
    torch.autograd.gradcheck(lambda *given: operator(*given, *constants), (x, weight, bias))
    torch.autograd.gradcheck(lambda *given: operator._operator(*given, *constants), (x, weight, bias))
    inputs = x, weight, bias, *constants
    assert set(torch.library.opcheck(operator._operator, inputs, test_utils=checks).values()) == {"SUCCESS"}
    given = [x.detach() if isinstance(x, torch.Tensor) else x for x in inputs]
    wrt = [name for name, x in zip(("x", "weight", "bias"), inputs, strict=False) if x is not None]
    given += [torch.randn_like(operator(*given)), wrt]
    assert set(torch.library.opcheck(operator._of_gradient, tuple(given), test_utils=checks).values()) == {"SUCCESS"}


def test_autocast_gives_different_dtypes_one() -> None:
    ours, _ = _pair("encoder", dim_feedforward=24, dropout=0.0, batch_first=True)
    ours, x = ours.float(), _random(B, T, E).detach().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        out = ours(x)
        assert ours(x.float()).dtype == torch.float32
    out.square().mean().backward()
    assert out.dtype == torch.bfloat16
    assert all(parameter.grad.dtype == torch.float32 for parameter in ours.parameters())
    assert torch.equal(out, ours.bfloat16()(x))


def test_dropout_of_attention_in_training() -> None:
    layer, x = MultiHeadAttention(E, H, dropout=0.4, dtype=F64), _random(B, T, E)

    def call(x: Any, seed: int = 3) -> Any:
        torch.manual_seed(seed)
        return layer(x, x, x)[0]

    assert torch.autograd.gradcheck(call, x)
    trained = call(x)
    assert torch.equal(call(x), trained)
    assert not torch.equal(call(x, 4), trained)
    mean = torch.stack([call(x.detach(), seed) for seed in range(400)]).mean(0)
    plain = layer.eval()(x, x, x)[0]
    assert not torch.equal(plain, trained)
    assert (mean - plain).abs().max() < 0.2 * plain.abs().max()


def test_what_is_refused() -> None:
    x = _random(B, T, E)
    layer = MultiHeadAttention(E, H, dtype=F64)
    assert layer(x, x, x)[1] is None
    with pytest.raises(ValueError, match=r"^MultiHeadAttention: need_weights must be False"):
        layer(x, x, x, need_weights=True)
    for option in ("add_bias_kv", "add_zero_attn"):
        with pytest.raises(ValueError, match=r"^MultiHeadAttention: add_bias_kv and add_zero_attn are not supported"):
            MultiHeadAttention(E, H, **{option: True})
    (gradient,) = torch.autograd.grad(layer(x, x, x)[0].sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives are not computed"):
        gradient.sum().backward()
