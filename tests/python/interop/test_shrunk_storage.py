"""A torch tensor whose storage was shrunk keeps its shape, and its memory ends before its elements do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mha_native as mha

torch = pytest.importorskip("torch")

SHAPE, NBYTES = (3, 4, 30, 8), 3 * 4 * 30 * 8 * 4


def _tensors(nbytes: int) -> list[Any]:
    x = torch.ones(SHAPE)
    views = [x, x[1:], x[-1]]  # torch makes no view of a storage that is too small
    x.untyped_storage().resize_(nbytes)
    return views


def _arrays(nbytes: int) -> list[Any]:
    x = torch.ones(SHAPE)
    x.untyped_storage().resize_(nbytes)
    return [x.numpy(), x.numpy()[1:, ::-1], x.numpy()[-1]]


@pytest.mark.parametrize("make", [_tensors, _arrays])
@pytest.mark.parametrize("nbytes", [0, 64, NBYTES - 1])
def test_is_refused_by_name(make: Callable[[int], list[Any]], nbytes: int) -> None:
    layer = mha.MultiHeadAttention(8, 2)
    for query, key in zip(make(nbytes), make(NBYTES), strict=True):
        calls: list[Callable[[], Any]] = [
            lambda q=query, k=key: mha.scaled_dot_product_attention(q, k, k),
            lambda q=query, k=key: mha.attention_weights(q, k),
        ]
        if query.ndim == 3:
            calls.append(lambda q=query, k=key: layer(q, k, k))
        for call in calls:
            with pytest.raises(TypeError, match=r"^\w+: query .*(stor|memory)"):
                call()
    x, _, _ = make(NBYTES)
    assert mha.scaled_dot_product_attention(x, x, x).shape == SHAPE


def test_integers_and_results_are_refused() -> None:
    x, lengths = torch.ones(2, 4, 5, 8), torch.full((2, 100), 3)[:, 0]
    lengths.untyped_storage().resize_(8)
    with pytest.raises(TypeError, match=r"^scaled_dot_product_attention: key_lengths .*stor"):
        mha.scaled_dot_product_attention(x, x, x, key_lengths=lengths)
    with pytest.raises(TypeError, match=r"^scaled_dot_product_attention: key_lengths must lie in the storage"):
        mha.scaled_dot_product_attention(x, x, x, key_lengths=lengths.numpy())
    out = torch.ones(2, 4, 5, 8)
    out.untyped_storage().resize_(out.nbytes - 4)
    with pytest.raises(TypeError, match=r"^scaled_dot_product_attention: out .*stor"):
        mha.scaled_dot_product_attention(x, x, x, out=out)


def test_a_tensor_over_part_of_its_storage_is_read() -> None:
    whole = torch.arange(4 * 2 * 5 * 8, dtype=torch.float32).reshape(4, 2, 5, 8) / 100
    expected = mha.scaled_dot_product_attention(*[np.array(whole.numpy()[1:3, :, ::2])] * 3)
    for x in (whole[1:3, :, ::2], whole.numpy()[1:3, :, ::2], np.from_dlpack(whole)[1:3, :, ::2]):
        np.testing.assert_array_equal(np.asarray(mha.scaled_dot_product_attention(x, x, x)), expected)
    grown = whole.clone()
    grown.untyped_storage().resize_(2 * grown.nbytes)
    np.testing.assert_array_equal(np.asarray(mha.scaled_dot_product_attention(*[grown[1:3, :, ::2]] * 3)), expected)
