"""The operator of torch: results of the function, gradients, and a place in compiled graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mha_native  # noqa: E402
from mha_native.functions.options import FUNCTION_OPTIONS  # noqa: E402
from mha_native.interop.torch import operator as operators  # noqa: E402
from mha_native.interop.torch import scaled_dot_product_attention  # noqa: E402

F64 = torch.float64
# Queries, keys and sequences of every call here; heads share keys and values in pairs.
B, H, HK, TQ, TK, D, DV = 2, 4, 2, 5, 7, 6, 3


def _random(*shape: int, dtype: Any = F64) -> Any:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


# The options of a call, made anew for each test: tensors of floating point want a gradient.
OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "causal": lambda: {"is_causal": True},
    "offset": lambda: {"is_causal": True, "query_offset": 2},
    "offsets": lambda: {"is_causal": True, "query_offset": torch.tensor([2, -3])},  # some queries see nothing
    "window": lambda: {"window": (2, 1), "query_offset": 1},
    "lengths": lambda: {"key_lengths": torch.tensor([7, 0])},
    "key mask": lambda: {"key_mask": torch.tensor([[True, False] * 3 + [True]])},
    "block mask": lambda: {"block_mask": torch.tensor([True, False])[:, None, None, None]},
    "boolean mask": lambda: {"attn_mask": torch.rand(H, TQ, TK) < 0.6},
    "additive mask": lambda: {"attn_mask": _random(B, 1, TQ, TK)},
    "scale and cap": lambda: {"scale": 0.7, "softcap": 1.5},
    "biases": lambda: {"alibi_slopes": _random(H), "position_bias": _random(H, 5), "query_offset": 1},
    "slopes of each": lambda: {"alibi_slopes": _random(B, H), "query_offset": torch.tensor([2, -3])},
    "sinks": lambda: {"sinks": _random(H), "key_lengths": torch.tensor([4, 0])},
    "dropout": lambda: {"dropout_p": 0.4, "dropout_seed": 5, "is_causal": True, "query_offset": 1},
    "all": lambda: {
        "attn_mask": _random(1, H, TQ, TK),
        "is_causal": True,
        "query_offset": torch.tensor([2, 1]),
        "key_lengths": torch.tensor([7, 6]),
        "key_mask": torch.rand(B, TK) < 0.8,
        "window": (4, -1),
        "softcap": 2.0,
        "alibi_slopes": _random(H),
        "sinks": _random(H),
    },
}


def _call(name: str) -> tuple[list[Any], dict[str, Any]]:
    torch.manual_seed(0)
    return [_random(B, H, TQ, D), _random(B, HK, TK, D), _random(B, HK, TK, DV)], OPTIONS[name]()


def _floats(options: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in options.items() if isinstance(x, torch.Tensor) and x.is_floating_point()}


@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_results_are_those_of_the_function(name: str, dtype: Any) -> None:
    tensors, options = _call(name)
    wide = F64 if dtype == F64 else torch.float32
    tensors = [x.detach().to(dtype) for x in tensors]
    for option, x in _floats(options).items():
        options[option] = x.detach().to(dtype if option == "attn_mask" else wide)
    before = [x.clone() for x in tensors]
    out, lse = scaled_dot_product_attention(*tensors, **options, return_lse=True)
    expected, expected_lse = mha_native.scaled_dot_product_attention(*tensors, **options, return_lse=True)
    assert torch.equal(out, expected)
    assert torch.equal(lse, expected_lse)
    assert torch.equal(scaled_dot_product_attention(*tensors, **options), expected)
    assert all(map(torch.equal, tensors, before))


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients(name: str) -> None:
    tensors, options = _call(name)
    floats = _floats(options)

    def attend(*arguments: Any) -> Any:
        given = options | dict(zip(floats, arguments[3:], strict=True))
        out, lse = scaled_dot_product_attention(*arguments[:3], **given, return_lse=True)
        return out, lse.masked_fill(lse == -torch.inf, 0)

    torch.autograd.gradcheck(attend, (*tensors, *floats.values()))


def test_every_option_is_among_them() -> None:
    assert {name for make in OPTIONS.values() for name in make()} == FUNCTION_OPTIONS


def test_gradients_are_those_of_the_function_with_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, options = _call("all")
    given: dict[str, Any] = {}

    def watched(*arguments: Any, **named: Any) -> Any:
        given.update(named)
        return mha_native.attention_gradient(*arguments, **named)

    monkeypatch.setattr(operators, "attention_gradient", watched)
    out, lse = scaled_dot_product_attention(*tensors, **options, return_lse=True, num_threads=1)
    dout = torch.ones((), dtype=F64).expand(out.shape)
    wanted = {"key": tensors[1], **_floats(options)}
    found = torch.autograd.grad(out, list(wanted.values()), dout)
    assert (given["num_threads"], given["dlse"]) == (1, None)
    with torch.no_grad():
        expected: Any = mha_native.attention_gradient(*tensors, out, lse, dout, wrt=tuple(wanted), **options)
    for name, gradient in zip(wanted, found, strict=True):
        assert torch.equal(gradient, getattr(expected, name))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch calls it itself
def test_second_derivatives_are_refused() -> None:
    tensors, options = _call("causal")
    words = r"^scaled_dot_product_attention: second derivatives are not computed"
    (gradient,) = torch.autograd.grad(
        scaled_dot_product_attention(*tensors, **options).sum(), tensors[0], create_graph=True
    )
    with pytest.raises(NotImplementedError, match=words):
        gradient.square().sum().backward()
    with pytest.raises(NotImplementedError, match=words):
        torch.func.jacrev(torch.func.grad(lambda query: scaled_dot_product_attention(query, *tensors[1:]).sum()))(
            tensors[0].detach()
        )
    with pytest.raises(RuntimeError, match="derivatives in forward mode are not computed"):
        torch.func.hessian(lambda query: scaled_dot_product_attention(query, *tensors[1:]).sum())(tensors[0].detach())


@pytest.mark.parametrize("vectorize", [False, True])
def test_jacobians_by_a_batch_of_gradients(vectorize: bool) -> None:
    query, key, value = (x.detach()[:1, :2, :3] for x in _call("none")[0])
    expected = torch.func.jacrev(lambda x: scaled_dot_product_attention(x, key, value))(query)
    found = torch.autograd.functional.jacobian(
        lambda x: scaled_dot_product_attention(x, key, value), query, vectorize=vectorize
    )
    assert torch.equal(found, expected)


def test_a_gradient_by_the_lse_alone() -> None:
    tensors, _ = _call("none")
    torch.autograd.gradcheck(
        lambda *given: scaled_dot_product_attention(*given, return_lse=True)[1], [*tensors[:2], tensors[2].detach()]
    )


@pytest.mark.parametrize("rank", [2, 3])
def test_gradients_without_leading_axes(rank: int) -> None:
    tensors = [x.detach()[(0,) * (4 - rank)].requires_grad_() for x in _call("none")[0]]
    torch.autograd.gradcheck(lambda *given: scaled_dot_product_attention(*given, return_lse=True), tensors)


def test_gradients_of_keys_that_all_sequences_read() -> None:
    query, key, value = _call("none")[0]
    torch.autograd.gradcheck(scaled_dot_product_attention, (query, key[:1], value[:1]))


@pytest.mark.parametrize("sizes", [(B, 0, 0, D), (B, H, HK, 0), (0, H, HK, D)], ids=["heads", "width", "batch"])
def test_gradients_of_what_is_empty(sizes: tuple[int, ...]) -> None:
    batch, heads, kv_heads, width = sizes
    query, key = _random(batch, heads, TQ, width), _random(batch, kv_heads, TK, width)
    value = _random(batch, kv_heads, TK, DV)
    scaled_dot_product_attention(query, key, value).sum().backward()
    assert [x.grad.shape for x in (query, key, value)] == [x.shape for x in (query, key, value)]
    if width == 0:  # all scores are 0, and every key has the same weight
        assert torch.allclose(value.grad, torch.tensor(H / HK * TQ / TK, dtype=F64))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch calls it itself
def test_derivatives_in_forward_mode_are_refused() -> None:
    query, key, value = (x.detach() for x in _call("none")[0])
    words = r"^scaled_dot_product_attention: derivatives in forward mode are not computed"
    for i, x in enumerate((query, key, value)):

        def attend(changed: Any, i: int = i) -> Any:
            return scaled_dot_product_attention(*(changed if j == i else y for j, y in enumerate((query, key, value))))

        with pytest.raises(RuntimeError, match=words):
            torch.func.jvp(attend, (x,), (torch.ones_like(x),))
    with torch.autograd.forward_ad.dual_level():
        sinks = torch.autograd.forward_ad.make_dual(torch.zeros(H, dtype=F64), torch.ones(H, dtype=F64))
        with pytest.raises(RuntimeError, match=words):
            scaled_dot_product_attention(query, key, value, sinks=sinks)
        scaled_dot_product_attention(query, key, value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_gradients_have_the_dtype_and_are_close(dtype: Any) -> None:
    exact = _call("causal")[0]
    scaled_dot_product_attention(*exact, is_causal=True).square().sum().backward()
    given = [x.detach().to(dtype).requires_grad_() for x in exact]
    scaled_dot_product_attention(*given, is_causal=True).square().sum().backward()
    for theirs, ours in zip(exact, given, strict=True):
        assert ours.grad.dtype == dtype
        assert torch.allclose(ours.grad.double(), theirs.grad, rtol=0, atol=40 * torch.finfo(dtype).eps)


def test_what_is_behind_a_mask_reaches_no_gradient() -> None:
    query, key, value = (x.detach() for x in _call("none")[0])
    key[1, :, 4:], value[1, :, 4:] = torch.nan, torch.inf
    given = [x.requires_grad_() for x in (query, key, value)]
    scaled_dot_product_attention(*given, key_lengths=torch.tensor([7, 4])).sum().backward()
    assert all(x.grad.isfinite().all() for x in given)
    assert not given[1].grad[1, :, 4:].any()


def test_gradients_of_what_wants_none_are_not_computed() -> None:
    query, key, value = (x.detach() for x in _call("none")[0])
    scaled_dot_product_attention(query, key.requires_grad_(), value).sum().backward()
    assert (query.grad, value.grad) == (None, None)
    assert key.grad is not None
    with torch.no_grad():
        assert not scaled_dot_product_attention(query, key, value).requires_grad


# Of the checks of torch the last takes seconds.
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


@pytest.mark.parametrize("checks", [CHECKS[:3], pytest.param(CHECKS[3:], marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", ["none", "all"])
def test_it_passes_the_checks_of_torch(name: str, checks: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, options = _call(name)
    calls = []
    for name in ("_attend", "_differentiate"):
        kernel = getattr(operators, name)

        def recorded(*arguments: Any, kernel: Any = kernel) -> Any:
            calls.append(arguments)
            return kernel(*arguments)

        monkeypatch.setattr(operators, name, recorded)
    scaled_dot_product_attention(*tensors, **options).sum().backward()
    forward, backward = calls
    backward = [x.detach() if isinstance(x, torch.Tensor) else x for x in backward]
    for operator, arguments in ((operators.operator, forward), (operators.gradient_operator, tuple(backward))):
        results = torch.library.opcheck(operator, arguments, test_utils=checks)
        assert results == dict.fromkeys(checks, "SUCCESS")


@pytest.mark.parametrize("name", ["all", pytest.param("offset", marks=pytest.mark.exhaustive)])
def test_it_is_part_of_a_compiled_graph(name: str) -> None:
    tensors, options = _call(name)
    graphs = []

    def compiler(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def attend(*given: Any) -> Any:
        return scaled_dot_product_attention(*given, **options).tanh().sum()

    expected = torch.autograd.grad(attend(*tensors), tensors)
    compiled = torch.compile(attend, fullgraph=True, backend=compiler)
    assert all(map(torch.equal, torch.autograd.grad(compiled(*tensors), tensors), expected))
    assert len(graphs) == 1
    both_ways = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(torch.autograd.grad(both_ways(*tensors), tensors), expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": (-2, 0)}, "scaled_dot_product_attention: window"),
        ({"key": torch.zeros(B, 3, TK, D, dtype=F64)}, "the heads of query must be a multiple of the heads of key"),
        ({"attn_mask": torch.zeros(3, dtype=F64)}, "scaled_dot_product_attention: attn_mask"),
    ],
)
def test_errors_are_those_of_the_function(change: dict[str, Any], message: str) -> None:
    arguments = dict(zip(("query", "key", "value"), _call("none")[0], strict=True)) | change
    with pytest.raises(ValueError, match=message):
        scaled_dot_product_attention(**arguments)


def _by_torch(query: Any, key: Any, value: Any, window: tuple[int, int], softcap: float) -> Any:
    """Attention in operations of torch, for calls of [..., T, D] with as many heads of keys as of queries."""
    scores = softcap * torch.tanh(query @ key.mT * D**-0.5 / softcap)
    distance = torch.arange(key.shape[-2]) - torch.arange(query.shape[-2])[:, None]
    is_seen = (distance >= -window[0]) & (distance <= window[1])
    return scores.masked_fill(~is_seen, -torch.inf).softmax(-1) @ value


# The nestings of transforms: each makes the result from a function of query, key and value.
TRANSFORMS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "grad": lambda f: torch.func.grad(lambda *x: f(*x).square().sum(), argnums=(0, 1, 2)),
    "vjp called later": lambda f: lambda *x: torch.func.vjp(f, *x)[1](torch.ones(*x[0].shape[:-1], DV, dtype=F64)),
    "vmap": torch.vmap,
    "vmap over queries": lambda f: lambda q, k, v: torch.vmap(f, (0, None, None))(q, k[0], v[0]),
    "vmap over the last axis": lambda f: lambda q, k, v: torch.vmap(f, (0, 0, -1), 1)(q, k, v.movedim(0, -1)),
    "vmap of grad": lambda f: torch.vmap(torch.func.grad(lambda *x: f(*x).square().sum(), argnums=2)),
    "grad of vmap": lambda f: torch.func.grad(lambda *x: torch.vmap(f)(*x).square().sum(), argnums=1),
    "vmap of vmap": lambda f: lambda q, k, v: torch.vmap(torch.vmap(f))(*(x[None] for x in (q, k, v))),
    "jacrev": lambda f: torch.func.jacrev(f, argnums=(0, 2)),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch calls it itself
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_torch(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    tensors = [x.detach()[:, : min(x.shape[1], 2)] for x in _call("none")[0]]
    ours, theirs = (
        TRANSFORMS[name](lambda *x, attend=attend: attend(*x, window=(2, 1), softcap=1.5))(*tensors)
        for attend in (scaled_dot_product_attention, _by_torch)
    )
    for mine, expected in zip(*((x if isinstance(x, tuple) else (x,)) for x in (ours, theirs)), strict=True):
        assert torch.allclose(mine, expected, rtol=1e-11, atol=1e-11)
    assert capfd.readouterr().err == ""


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_vmap_of_the_operator_has_a_rule_and_gradients(capfd: pytest.CaptureFixture[str]) -> None:
    tensors = _call("none")[0]
    out, _ = torch.vmap(lambda *x: operators.operator(*x, *[None] * 8, False, 0, *[None] * 3, 0.0, 0, None))(*tensors)
    assert torch.equal(out, torch.vmap(scaled_dot_product_attention)(*tensors))
    found = torch.autograd.grad(out.square().sum(), tensors)
    expected = torch.autograd.grad(scaled_dot_product_attention(*tensors).square().sum(), tensors)
    assert all(map(torch.allclose, found, expected))
    assert capfd.readouterr().err == ""


def test_autocast_gives_different_dtypes_one() -> None:
    query, key, value = (x.detach().float().requires_grad_() for x in _call("none")[0])
    mask = _random(TQ, TK, dtype=torch.float32)
    half = [x.bfloat16() for x in (query, key, value, mask)]
    with torch.autocast("cpu", torch.bfloat16):
        outs = [
            scaled_dot_product_attention(half[0], key, value, mask),
            scaled_dot_product_attention(query, half[1], half[2], mask),
            scaled_dot_product_attention(*half[:3], mask),
        ]
        assert scaled_dot_product_attention(query, key, value, mask).dtype == torch.float32
        with pytest.raises(TypeError, match="key must be of the dtype of query"):
            scaled_dot_product_attention(query.double(), key, value)
    expected = scaled_dot_product_attention(*half[:3], attn_mask=half[3])
    assert all(torch.equal(out, expected) for out in outs)
    outs[0].sum().backward()
    assert [x.grad.dtype for x in (query, key, value, mask)] == 4 * [torch.float32]
    with pytest.raises(TypeError, match="key must be of the dtype of query"):
        scaled_dot_product_attention(half[0], key, value)
