"""A third opinion: the same numbers as PyTorch, through its own tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tolerance
from tolerance import assert_close, assert_same_bits

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


def test_what_from_torch_refuses() -> None:
    with pytest.raises(ValueError, match="add_bias_kv"):
        MultiHeadAttention.from_torch(torch.nn.MultiheadAttention(32, 4, add_bias_kv=True))
    with pytest.raises(ValueError, match="add_zero_attn"):
        MultiHeadAttention.from_torch(torch.nn.MultiheadAttention(32, 4, add_zero_attn=True))
    with pytest.raises(TypeError, match="Linear"):
        MultiHeadAttention.from_torch(torch.nn.Linear(32, 32))
    with pytest.raises(TypeError, match="float16"):
        MultiHeadAttention.from_torch(torch.nn.MultiheadAttention(32, 4, dtype=torch.float16))


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
