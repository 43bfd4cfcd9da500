"""The gradient of a table of embeddings, and rotary positions of arrays, forwards and backwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from element_types import accumulator_of, limits
from matrix import ALL, matrix
from tolerance import assert_close, assert_same_bits, gamma

import mha_native as mha
from mha_native import reference

Array = np.ndarray[Any, np.dtype[Any]]
pytestmark = matrix(dtype=ALL)


def _normal(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("width", [1, 3, 17, 64, 129, 384])
def test_tables(width: int, isa: str, dtype: Any, num_threads: int) -> None:
    rng = np.random.default_rng(width)
    ids = rng.choice([0, 5, *rng.integers(130, size=60)], (7, 40))  # many without a token, and two in threes
    dout = _normal((7, 40, width), dtype)
    found = mha.embedding_gradient(ids, dout, 130, num_threads=num_threads)
    exact = reference.embedding_gradient(ids, dout.astype(np.float64), 130)
    sizes = reference.embedding_gradient(ids, np.abs(dout.astype(np.float64)), 130)
    eps = float(limits(accumulator_of(dtype)).eps)
    assert_close(found, exact, gamma(ids.size, eps) * sizes + float(limits(dtype).eps) / 2 * np.abs(exact), label="")
    # In the order of tokens: what a loop adds.
    slow = np.zeros((130, width), accumulator_of(dtype))
    np.add.at(slow, ids, dout.astype(accumulator_of(dtype)))
    assert_same_bits(found, slow.astype(dtype))
    strided = np.repeat(dout, 2, -1)[..., ::2]
    assert_same_bits(mha.embedding_gradient(ids.astype(np.int32)[::-1][::-1], strided, 130), found)


@matrix(dtype=[np.float32])
def test_tables_and_errors(isa: str, dtype: Any) -> None:
    empty = mha.embedding_gradient(np.zeros((0,), int), np.zeros((0, 3), dtype), 2)
    assert_same_bits(empty, np.zeros((2, 3), dtype))
    one = np.ones((2, 3), dtype)
    for ids, count, error, text in (
        (np.array([0, 2]), 2, ValueError, "less than num_embeddings, 2; got 2 for row 1"),
        (np.array([-1, 0]), 2, ValueError, "got -1 for row 0"),
        (np.array([0]), 2, ValueError, "dout must have a row for each of ids"),
        (np.array([0.0, 1.0]), 2, TypeError, "ids"),
        (np.array([0, 1]), 0, ValueError, "num_embeddings"),
    ):
        with pytest.raises(error, match=text):
            mha.embedding_gradient(ids, one, count)
    torch = pytest.importorskip("torch")
    ids, dout = torch.tensor([[1, 0, 1], [4, 1, 1]]), torch.randn(2, 3, 5)
    table = torch.randn(6, 5, requires_grad=True)
    (theirs,) = torch.autograd.grad(torch.nn.functional.embedding(ids, table), table, dout)
    ours = mha.embedding_gradient(ids, dout, 6)
    assert isinstance(ours, torch.Tensor)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
@pytest.mark.parametrize("width", [16, 22, 70])  # of which 16, the rest stays
def test_rotation(width: int, interleaved: bool, isa: str, dtype: Any, num_threads: int) -> None:
    kind = accumulator_of(dtype)
    rotary = mha.RotaryEmbedding.from_base(16, 99, interleaved=interleaved, dtype=kind)
    tables = rotary.cos, rotary.sin
    places = np.random.default_rng(1).integers(99, size=(2, 37))
    eps, once = float(limits(kind).eps), float(limits(dtype).eps) / 2
    for shape in ((2, 3, 37, width), (3, 37, width), (37, width)):
        x = _normal(shape, dtype)
        positions: list[Any] = [None, places[0], places] if len(shape) == 4 else [None, places[0]]
        for position in positions:
            at = np.arange(37) if position is None else position
            at = at[:, None] if at.ndim == 2 else at
            for sign, call in ((1, rotary), (-1, rotary.gradient)):
                exact = reference.rotate(x.astype(np.float64), at, tables[0], sign * tables[1], interleaved)
                found = call(x, position, num_threads=num_threads)
                bound = 3 * eps * np.abs(x.astype(np.float64)).max() + once * np.abs(exact)
                assert_close(found, exact, bound, label=f"{shape} {sign}")
                for strided in (np.repeat(x, 2, -1)[..., ::2], np.repeat(x, 2, -2)[..., ::2, :]):
                    assert_same_bits(call(strided, position), found)
                assert_same_bits(found[..., 16:], x[..., 16:])
        # The rotation keeps products, so that the backward one is the gradient.
    if dtype == kind:
        x, dout = _normal((37, width), dtype, 1), _normal((37, width), dtype, 2)
        left, right = (rotary(x) * dout).sum(dtype=float), (x * rotary.gradient(dout)).sum(dtype=float)
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4)


@matrix(dtype=[np.float32])
def test_rotation_has_the_bits_of_the_layer(isa: str, dtype: Any) -> None:
    rotary = mha.RotaryEmbedding.from_base(8, 40)
    identity = {
        f"in_proj_{name}": value for name, value in (("weight", np.tile(np.eye(8), (3, 1))), ("bias", np.zeros(24)))
    }
    identity |= {"out_proj.weight": np.eye(8), "out_proj.bias": np.zeros(8)}
    state = {name: array.astype(dtype) for name, array in identity.items()}
    plain = mha.MultiHeadAttention.from_weights(state, 1)
    turned = mha.MultiHeadAttention.from_weights(state, 1, rotary=rotary)
    x = _normal((5, 8), dtype)
    rotated = rotary(x)
    expected = mha.scaled_dot_product_attention(rotated, rotated, plain(x) * 0 + x)
    assert_same_bits(turned(x), expected)


@matrix(dtype=[np.float32])
def test_errors_of_rotation(dtype: Any) -> None:
    rotary = mha.RotaryEmbedding.from_base(8, 5)
    x = np.ones((6, 8), dtype)
    for call, error, text in (
        (lambda: rotary(x), ValueError, "RotaryEmbedding: positions must be positions of the table, 0 to 4; got 5"),
        (lambda: rotary(x[:2], np.array([0, -1])), ValueError, "got -1"),
        (lambda: rotary(x[:2], np.array([0])), ValueError, "positions must have one entry for each row"),
        (lambda: rotary(x[:2, :7]), ValueError, "x must have at least the features that are rotated, 8"),
        (lambda: rotary.gradient(x[:2, :7]), ValueError, "RotaryEmbedding.gradient: dout must have at least"),
        (lambda: rotary(x[:2].astype(float)), TypeError, "the table of x in float64 must be float64; got float32"),
        (lambda: rotary(x[0]), ValueError, "x must have 2 to 4 axes"),
    ):
        with pytest.raises(error, match=text):
            call()
