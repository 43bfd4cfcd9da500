"""A third opinion: the same numbers as PyTorch, through its own tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tolerance
from element_types import BFLOAT16
from tolerance import assert_close, assert_no_further_off, assert_same_bits

from mha_native import MultiHeadAttention, attention_weights, scaled_dot_product_attention

torch = pytest.importorskip("torch")
functional = torch.nn.functional


def _tensors(*shapes: tuple[int, ...], dtype: Any) -> list[Any]:
    rng = np.random.default_rng(0)
    return [torch.from_numpy(rng.standard_normal(shape).astype(dtype)) for shape in shapes]


def _both_within(ours: Any, theirs: Any, expected: np.ndarray, bound: np.ndarray) -> None:
    """Each is close to the oracle, so they are close to each other."""
    assert_close(ours.numpy(), expected, bound, label="ours")
    assert_close(theirs.detach().numpy(), expected, 4 * bound, label="torch")  # its kernels may sum in another order


@pytest.mark.parametrize(
    ("heads", "kv_heads", "queries", "keys", "options"),
    [
        (4, 4, 20, 20, {}),
        (4, 4, 70, 130, {}),
        (4, 4, 33, 33, {"is_causal": True}),
        (4, 4, 20, 50, {"is_causal": True}),
        (4, 4, 50, 20, {"is_causal": True}),
        (4, 4, 20, 50, {"scale": 0.3}),
        (8, 2, 20, 50, {}),
        (4, 4, 20, 50, {"attn_mask": "boolean"}),
        (4, 4, 20, 50, {"attn_mask": "additive"}),
    ],
)
def test_scaled_dot_product_attention(
    heads: int, kv_heads: int, queries: int, keys: int, options: dict[str, Any], isa: str, dtype: Any
) -> None:
    query, key, value, bias = _tensors(
        (2, heads, queries, 32), (2, kv_heads, keys, 32), (2, kv_heads, keys, 32), (heads, queries, keys), dtype=dtype
    )
    if options.get("attn_mask") == "boolean":
        options = {"attn_mask": bias < 0.5}
    elif options.get("attn_mask") == "additive":
        options = {"attn_mask": bias}
    ours = scaled_dot_product_attention(query, key, value, **options)
    theirs = functional.scaled_dot_product_attention(query, key, value, enable_gqa=heads != kv_heads, **options)
    assert type(ours) is torch.Tensor
    assert ours.dtype == query.dtype
    as_arrays = {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    expected = tolerance.attention(query.numpy(), key.numpy(), value.numpy(), as_arrays)
    _both_within(ours, theirs, expected.out, expected.out_bound)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("features", [{}, {"kdim": 20, "vdim": 12}], ids=["stacked", "separate"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_multi_head_attention(bias: bool, features: dict[str, int], batch_first: bool, isa: str, dtype: Any) -> None:
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(
        32, 4, bias=bias, batch_first=batch_first, dtype=torch.from_numpy(np.ones(1, dtype)).dtype, **features
    ).eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    layer = MultiHeadAttention.from_torch(module)
    query, key, value = _tensors(
        (2, 9, 32), (2, 15, features.get("kdim", 32)), (2, 15, features.get("vdim", 32)), dtype=dtype
    )
    takes_part = torch.from_numpy(np.random.default_rng(1).random((9, 15)) < 0.7)
    key_mask = torch.from_numpy(np.arange(15) < np.array([[15], [11]]))
    ours, our_weights = layer(query, key, value, attn_mask=takes_part, key_mask=key_mask, need_weights=True)
    inputs = (query, key, value) if batch_first else (x.transpose(0, 1) for x in (query, key, value))
    theirs, their_weights = module(
        *inputs, attn_mask=~takes_part, key_padding_mask=~key_mask, average_attn_weights=False
    )
    theirs = theirs if batch_first else theirs.transpose(0, 1)
    arrays = {"attn_mask": takes_part.numpy(), "key_mask": key_mask.numpy()}
    expected = tolerance.layer(layer, query.numpy(), key.numpy(), value.numpy(), arrays)
    _both_within(ours, theirs, expected.out, expected.out_bound)
    _both_within(our_weights, their_weights, expected.weights, expected.weights_bound)

    averaged = layer(
        query, key, value, attn_mask=takes_part, key_mask=key_mask, need_weights=True, average_attn_weights=True
    )[1]
    assert type(averaged) is torch.Tensor
    assert averaged.shape == (2, 9, 15)


def test_state_dicts_are_exchanged() -> None:
    module = torch.nn.MultiheadAttention(32, 4)
    layer = MultiHeadAttention.from_torch(module)
    assert list(layer.state_dict()) == list(module.state_dict())
    for name, tensor in module.state_dict().items():
        assert_same_bits(layer.state_dict()[name], tensor.numpy(), label=name)
    back = torch.nn.MultiheadAttention(32, 4)
    back.load_state_dict({name: torch.from_numpy(array) for name, array in layer.state_dict().items()})
    other = MultiHeadAttention(32, 4, seed=5)
    other.load_state_dict(module.state_dict())
    for name, tensor in back.state_dict().items():
        assert_same_bits(other.state_dict()[name], tensor.numpy(), label=name)


def test_from_torch_takes_a_copy() -> None:
    module = torch.nn.MultiheadAttention(32, 4)
    layer = MultiHeadAttention.from_torch(module)
    before = layer.state_dict()["in_proj_weight"]
    with torch.no_grad():
        module.in_proj_weight.zero_()
    assert_same_bits(layer.state_dict()["in_proj_weight"], before)


def _module(**options: Any) -> Any:
    """A module of 32 features and 4 heads whose every weight is random: torch begins with biases of zero."""
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(32, 4, **options)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module


def _masks_of_torch(which: str, rng: np.random.Generator, dtype: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Masks for B 2, H 4, Tq 9 and Tk 15 as our arguments and as those of torch; the first key is never hidden."""
    boolean = rng.random((9, 15)) < 0.6
    per_head = rng.random((2, 4, 9, 15)) < 0.6
    key_mask = rng.random((2, 15)) < 0.7
    for mask in (boolean, per_head, key_mask):
        mask[..., 0] = True
    added, added_per_head = rng.standard_normal((9, 15)).astype(dtype), rng.standard_normal((2, 4, 9, 15)).astype(dtype)
    added[~boolean] = added_per_head[~per_head] = -np.inf
    padding = np.where(key_mask, 0, -np.inf).astype(dtype)
    ours, theirs = {
        "none": ({}, {}),
        "boolean": ({"attn_mask": boolean}, {"attn_mask": ~boolean}),
        "boolean of each head": ({"attn_mask": per_head}, {"attn_mask": ~per_head.reshape(8, 9, 15)}),
        "added": ({"attn_mask": added}, {"attn_mask": added}),
        "added of each head": ({"attn_mask": added_per_head}, {"attn_mask": added_per_head.reshape(8, 9, 15)}),
        "padding": ({"key_mask": key_mask}, {"key_padding_mask": ~key_mask}),
        "boolean, padding": (
            {"attn_mask": per_head, "key_mask": key_mask},
            {"attn_mask": ~per_head.reshape(8, 9, 15), "key_padding_mask": ~key_mask},
        ),
        "added, padding": (
            {"attn_mask": added, "key_mask": key_mask},
            {"attn_mask": added, "key_padding_mask": padding},
        ),
    }[which]
    return ours, {name: torch.from_numpy(mask) for name, mask in theirs.items()}


SEPARATE = {"kdim": 20, "vdim": 12, "bias": False}
MASKS_OF_TORCH = [
    "none", "boolean", "boolean of each head", "added", "added of each head", "padding", "boolean, padding",
    "added, padding",
]  # fmt: skip


@pytest.mark.parametrize("masks", MASKS_OF_TORCH)
@pytest.mark.parametrize(
    ("add_bias_kv", "add_zero_attn", "features"),
    [(False, False, {}), (True, False, {}), (False, True, SEPARATE), (True, True, {}), (True, True, SEPARATE)],
    ids=["usual", "key", "zeros, separate", "both", "both, separate"],
)
def test_every_configuration(
    add_bias_kv: bool, add_zero_attn: bool, features: dict[str, Any], masks: str, isa: str, dtype: Any
) -> None:
    kind = torch.from_numpy(np.ones(1, dtype)).dtype
    module = _module(add_bias_kv=add_bias_kv, add_zero_attn=add_zero_attn, dropout=0.5, dtype=kind, **features)
    layer = MultiHeadAttention.from_torch(module)  # in training mode: there is no dropout all the same
    assert list(layer.state_dict()) == list(module.state_dict())
    query, key, value = _tensors(
        (2, 9, 32), (2, 15, features.get("kdim", 32)), (2, 15, features.get("vdim", 32)), dtype=dtype
    )
    ours, theirs = _masks_of_torch(masks, np.random.default_rng(2), dtype)
    out, weights = layer(query, key, value, need_weights=True, **ours)
    time_first = [x.transpose(0, 1) for x in (query, key, value)]
    other, their_weights = module.eval()(*time_first, average_attn_weights=False, **theirs)
    expected = tolerance.layer(layer, query.numpy(), key.numpy(), value.numpy(), ours)
    _both_within(out, other.transpose(0, 1), expected.out, expected.out_bound)
    assert weights.shape == (2, 4, 9, 15 + add_bias_kv + add_zero_attn)
    _both_within(weights, their_weights, expected.weights, expected.weights_bound)

    averaged = layer(query, key, value, need_weights=True, average_attn_weights=True, **ours)[1]
    _both_within(averaged, module(*time_first, **theirs)[1], expected.weights.mean(1), expected.weights_bound.mean(1))


@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True, "add_zero_attn": True}], ids=["", "added"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_one_sequence_without_a_batch_axis(options: dict[str, bool], batch_first: bool, isa: str, dtype: Any) -> None:
    kind = torch.from_numpy(np.ones(1, dtype)).dtype
    module = _module(batch_first=batch_first, dtype=kind, **options).eval()
    layer = MultiHeadAttention.from_torch(module)
    query, key = _tensors((9, 32), (15, 32), dtype=dtype)
    out, weights = layer(query, key, need_weights=True)
    other, their_weights = module(query, key, key, average_attn_weights=False)
    batched = tolerance.layer(layer, query.numpy()[None], key.numpy()[None], key.numpy()[None], {})
    _both_within(out, other, batched.out[0], batched.out_bound[0])
    _both_within(weights, their_weights, batched.weights[0], batched.weights_bound[0])


def test_added_keys_are_exchanged() -> None:
    module = _module(add_bias_kv=True, add_zero_attn=True)
    layer = MultiHeadAttention(32, 4, add_bias_kv=True, add_zero_attn=True)
    layer.load_state_dict(module.state_dict())
    other = MultiHeadAttention.from_torch(module)
    assert repr(other) == repr(layer)
    back = torch.nn.MultiheadAttention(32, 4, add_bias_kv=True, add_zero_attn=True)
    back.load_state_dict({name: torch.from_numpy(array) for name, array in other.state_dict().items()})
    for name, tensor in module.state_dict().items():
        assert_same_bits(layer.state_dict()[name], tensor.numpy(), label=name)
        assert_same_bits(back.state_dict()[name].numpy(), tensor.numpy(), label=name)


def test_what_from_torch_refuses() -> None:
    with pytest.raises(TypeError, match="Linear"):
        MultiHeadAttention.from_torch(torch.nn.Linear(32, 32))
    parametrized = _module()
    torch.nn.utils.parametrizations.weight_norm(parametrized.out_proj)
    with pytest.raises(TypeError, match=r"expected a plain torch\.nn\.MultiheadAttention"):
        MultiHeadAttention.from_torch(parametrized)
    with pytest.raises(TypeError, match="device"):
        MultiHeadAttention.from_torch(torch.nn.MultiheadAttention(32, 4, device="meta"))


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
def test_a_module_in_16_bits(half: torch.dtype) -> None:
    """No further from the same layer in float32 than torch is, and a unit in the last place."""
    module = torch.nn.MultiheadAttention(32, 4, batch_first=True, dtype=half).eval()
    layer = MultiHeadAttention.from_torch(module)
    x = torch.randn(3, 17, 32).to(half)
    out = layer(x)
    assert out.dtype == half
    exact = layer.astype("float32")(x.float())
    with torch.no_grad():
        theirs = module(x, x, x, need_weights=False)[0]
    assert_no_further_off(*(result.float().numpy() for result in (out, theirs, exact)), torch.finfo(half).eps)


def test_tensors_in_tensors_out(dtype: Any) -> None:
    query, key, value = _tensors((2, 4, 10, 8), (2, 4, 12, 8), (2, 4, 12, 8), dtype=dtype)
    arrays = [x.numpy() for x in (query, key, value)]
    out, lse = scaled_dot_product_attention(query, key, value, return_lse=True)
    expected, expected_lse = scaled_dot_product_attention(*arrays, return_lse=True)
    assert type(out) is type(lse) is torch.Tensor
    assert_same_bits(out.numpy(), expected)
    assert_same_bits(lse.numpy(), expected_lse)
    assert type(attention_weights(query, key)) is torch.Tensor
    assert_same_bits(scaled_dot_product_attention(query.mT.contiguous().mT, key, value).numpy(), expected)
    target = torch.full_like(query, float("nan"))
    assert scaled_dot_product_attention(query, key, value, out=target) is target
    assert_same_bits(target.numpy(), expected)
    mixed = scaled_dot_product_attention(arrays[0], key, value)
    assert type(mixed) is np.ndarray
    assert_same_bits(mixed, expected)
    lengths = torch.tensor([3, 12])
    assert_same_bits(
        scaled_dot_product_attention(query, key, value, key_lengths=lengths).numpy(),
        scaled_dot_product_attention(*arrays, key_lengths=lengths.numpy()),
    )


HALF_OF_TORCH = {torch.float16: np.float16, torch.bfloat16: BFLOAT16}


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": "boolean"}, {"attn_mask": "additive"}], ids=str
)
@pytest.mark.parametrize("kind", HALF_OF_TORCH, ids=str)
def test_tensors_of_16_bits(kind: Any, options: dict[str, Any], isa: str) -> None:
    query, key, value, bias = (
        x.to(kind) for x in _tensors((2, 8, 20, 32), (2, 2, 50, 32), (2, 2, 50, 32), (8, 20, 50), dtype=np.float32)
    )
    options = {name: {"boolean": bias < 0.5, "additive": bias}.get(x, x) for name, x in options.items()}

    def array(x: Any) -> Any:  # NumPy has no bfloat16, and torch does not know of the one that it gets
        return x.view(torch.int16).numpy().view(HALF_OF_TORCH[x.dtype]) if x.dtype in HALF_OF_TORCH else x.numpy()

    ours, lse = scaled_dot_product_attention(query, key, value, return_lse=True, **options)
    assert type(ours) is type(lse) is torch.Tensor
    assert (ours.dtype, lse.dtype) == (kind, torch.float32)
    theirs = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True, **options)
    arrays = [array(x) for x in (query, key, value)]
    expected = tolerance.attention(
        *arrays, {name: array(x) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    )
    assert_close(array(ours), expected.out, expected.out_bound, label="ours")
    assert_close(lse.numpy(), expected.lse, expected.lse_bound, label="lse")
    assert_close(array(theirs), expected.out, 4 * expected.out_bound, label="torch")
    target = torch.full_like(ours, float("nan"))
    strided = (x.mT.contiguous().mT for x in (query, key, value))
    assert scaled_dot_product_attention(*strided, out=target, **options) is target
    assert_same_bits(array(target), array(ours))


@pytest.mark.parametrize("which", [0, 1, 2])
def test_tensors_that_are_refused(which: int) -> None:
    good = _tensors((2, 4, 10, 8), (2, 4, 10, 8), (2, 4, 10, 8), dtype=np.float32)
    name = ("query", "key", "value")[which]

    def call(tensor: Any) -> Any:
        return scaled_dot_product_attention(*good[:which], tensor, *good[which + 1 :])

    with pytest.raises(TypeError, match=rf"scaled_dot_product_attention: {name} .*gradient.*detach"):
        call(good[which].clone().requires_grad_())
    for dtype, word in ((torch.int64, "int64"), (torch.float16, "float16"), (torch.bfloat16, "bfloat16")):
        with pytest.raises(TypeError, match=rf"scaled_dot_product_attention: .*{name}.*{word}"):
            call(good[which].to(dtype))
    with pytest.raises(TypeError, match=rf"scaled_dot_product_attention: {name} .*device.*meta"):
        call(good[which].to("meta"))
    with pytest.raises(TypeError, match=rf"scaled_dot_product_attention: {name} "):
        call(good[which].to_sparse())


def _negated(x: Any) -> Any:
    """A view of the numbers of `x` over memory that holds them with the opposite sign."""
    view = torch.complex(torch.zeros_like(x), -x).conj().imag
    assert view.is_neg()
    assert torch.equal(view, x)
    return view


ATTENTION_TENSORS = {"query": (2, 4, 10, 8), "key": (2, 4, 12, 8), "value": (2, 4, 12, 8), "attn_mask": (10, 12)}
ATTENTION_TENSORS |= {"alibi_slopes": (4,), "position_bias": (4, 5), "sinks": (4,), "out": (2, 4, 10, 8)}


def _attention_tensors() -> dict[str, Any]:
    return dict(zip(ATTENTION_TENSORS, _tensors(*ATTENTION_TENSORS.values(), dtype=np.float32), strict=True))


@pytest.mark.parametrize("name", ATTENTION_TENSORS)
def test_views_with_the_opposite_sign_are_refused(name: str) -> None:
    given = _attention_tensors()
    expected = scaled_dot_product_attention(**given | {"out": None})
    view = _negated(given[name])
    with pytest.raises(TypeError, match=rf"^scaled_dot_product_attention: {name} .*opposite sign.*resolve_neg"):
        scaled_dot_product_attention(**given | {name: view})
    assert_same_bits(scaled_dot_product_attention(**given | {name: view.resolve_neg()}).numpy(), expected.numpy())


def test_views_with_the_opposite_sign_are_refused_by_layers() -> None:
    layer = MultiHeadAttention(32, 4, seed=0)
    (x,) = _tensors((2, 9, 32), dtype=np.float32)
    with pytest.raises(TypeError, match=r"MultiHeadAttention: query .*resolve_neg"):
        layer(_negated(x))
    state = {name: torch.from_numpy(array) for name, array in layer.state_dict().items()}
    state["out_proj.weight"] = _negated(state["out_proj.weight"])
    with pytest.raises(TypeError, match=r"load_state_dict: out_proj.weight .*resolve_neg"):
        layer.load_state_dict(state)


def _fake(x: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(x.shape)


def _freed(x: Any) -> Any:
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


WITHOUT_NUMBERS = {
    "fake": _fake,
    "freed": _freed,
    "zeros": lambda x: torch._efficientzerotensor(x.shape),
    "conjugate": lambda x: torch.complex(x, x).conj(),
    "quantized": lambda x: torch.ops.aten.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "sparse": lambda x: x.to_sparse(),
    "meta": lambda x: x.to("meta"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("make", WITHOUT_NUMBERS.values(), ids=list(WITHOUT_NUMBERS))
@pytest.mark.parametrize("name", ATTENTION_TENSORS)
def test_tensors_without_numbers_in_memory_are_refused(name: str, make: Any) -> None:
    given = _attention_tensors()
    with pytest.raises(TypeError, match=rf"^scaled_dot_product_attention: {name} \(torch\."):
        scaled_dot_product_attention(**given | {name: make(given[name])})


def test_tensors_with_numbers_in_memory_are_taken() -> None:
    class Derived(torch.Tensor):  # type: ignore[misc, name-defined]
        pass

    given = _attention_tensors()
    expected = scaled_dot_product_attention(**given)
    for kind in (lambda x: x.as_subclass(Derived), lambda x: torch.nn.Parameter(x, requires_grad=False)):
        tensors = {name: kind(x) for name, x in given.items()}
        assert_same_bits(scaled_dot_product_attention(**tensors).detach().numpy(), expected.numpy())
    one = torch.ones(1, 1, 1, 1).expand(2, 4, 12, 8)
    ones = scaled_dot_product_attention(given["query"], one, one).numpy()
    assert_same_bits(ones, scaled_dot_product_attention(given["query"], one.clone(), one.clone()).numpy())


def test_parameters_are_taken_where_no_gradient_is_recorded() -> None:
    given = _attention_tensors()
    expected = scaled_dot_product_attention(**given | {"out": None})
    parameters = {name: torch.nn.Parameter(x.clone()) for name, x in given.items()}
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            out = scaled_dot_product_attention(**parameters)
            assert out is parameters["out"]
            assert_same_bits(out.detach().numpy(), expected.numpy())
            computed = scaled_dot_product_attention(**parameters | {"out": None})
            assert type(computed) is torch.Tensor
            assert not computed.requires_grad
    for name in given:
        with pytest.raises(TypeError, match=rf"scaled_dot_product_attention: {name} .*gradient.*detach"):
            scaled_dot_product_attention(**given | {name: parameters[name]})


LAYER = MultiHeadAttention(32, 4, seed=0)
COMPILED = {
    "function": lambda x: scaled_dot_product_attention(2 * x, x, x, is_causal=True) + 1,
    "out": lambda x: scaled_dot_product_attention(2 * x, x, x, out=torch.zeros_like(x)) + 1,
    "weights": lambda x: attention_weights(2 * x, x).sum(-1),
    "lse": lambda x: scaled_dot_product_attention(2 * x, x, x, return_lse=True)[1] + 1,
    "layer": lambda x: LAYER(2 * x[0]) + 1,
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, about functions that it cannot look into
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_functions_call_what_they_cannot_trace(name: str) -> None:
    function = COMPILED[name]
    compiled = torch.compile(function, backend="eager")
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(2, 4, 10 + seed, 32)
        with torch.no_grad():
            assert_same_bits(compiled(x).numpy(), function(x).numpy())
