"""The linear map of rows, against the oracle."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import transformer_tolerance
from int8_oracle import projection, weights
from random_layers import randomized, rows, views
from tolerance import assert_close, assert_same_bits
from transformer_tolerance import Near

from mha_native import Linear, reference

# In and out: less than a vector, a panel and a part of one, more than a partial sum and a block of features.
SIZES = [(1, 1), (3, 70), (64, 64), (29, 65), (130, 15), (769, 129), (48, 3001)]
F32 = np.float32


def _layer(sizes: tuple[int, int], dtype: Any = F32, **more: Any) -> Linear:
    return randomized(Linear(*sizes, dtype=dtype, seed=1, **more))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_linear(sizes: tuple[int, int], bias: bool, isa: str, dtype: Any, num_threads: int) -> None:
    layer = _layer(sizes, dtype, bias=bias)
    for count in (1, 7, 130):
        x = rows((count, sizes[0]), dtype)
        expected = transformer_tolerance.linear(layer, Near.exactly(x))
        out = np.full((count, sizes[1]), np.nan, x.dtype)
        assert layer(x, out=out, num_threads=num_threads) is out
        assert_close(out, expected.out, expected.bound, label=f"{count} rows")


@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_rows_by_themselves(sizes: tuple[int, int], weight_dtype: str, isa: str) -> None:
    layer = _layer(sizes).quantize(weight_dtype)
    x = rows((150, sizes[0]), F32)
    together = layer(x, num_threads=1)
    for threads in (2, 3, 7):
        assert_same_bits(layer(x, num_threads=threads), together, label=f"{threads} threads")
        assert_same_bits(layer(x[5], num_threads=threads), together[5], label=f"a row, {threads} threads")
    for first, last in ((0, 1), (149, 150), (3, 9), (1, 150)):
        assert_same_bits(layer(x[first:last]), together[first:last], label=f"{first}:{last}")


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_weights_in_fewer_bits(sizes: tuple[int, int], isa: str, num_threads: int) -> None:
    plain, x = _layer(sizes), rows((9, sizes[0]), F32)
    rounded = plain.quantize("bfloat16")
    assert_same_bits(rounded(x, num_threads=num_threads), rounded.quantize("float32")(x))
    layer, state = plain.quantize("int8"), plain.state_dict()
    integers, scale = weights(state["weight"])
    stored = layer.state_dict()
    assert sorted(stored) == ["bias", "weight", "weight_scale"]
    assert_same_bits(stored["weight"], integers)
    assert_same_bits(stored["weight_scale"], scale)
    assert_same_bits(layer(x, num_threads=num_threads), projection(x, integers, scale, state["bias"]))


@pytest.mark.parametrize("sizes", [(77, 130), (130, 77), (77, 77)], ids=str)
def test_views_of_memory(sizes: tuple[int, int], isa: str, dtype: Any, num_threads: int) -> None:
    layer, width = _layer(sizes, dtype), sizes[1]
    x = rows((3, 21, sizes[0]), dtype)
    expected = layer(x)
    for axes in (x[1], x[1, 4], x[None]):
        assert layer(axes).shape == (*axes.shape[:-1], width)
    for view in views(x):
        assert_same_bits(layer(view, num_threads=num_threads), expected)
        for memory, out in (
            (wide := np.full((3, 21, 2 * width), np.nan, dtype), wide[..., 1::2]),
            (turned := np.full((width, 21, 3), np.nan, dtype), turned.T),
            (longer := np.full((3, 30, width), np.nan, dtype), longer[:, 24:3:-1]),
        ):
            assert layer(view, out=out, num_threads=num_threads) is out
            assert_same_bits(out.copy(), expected)
            assert np.count_nonzero(np.isnan(memory)) == memory.size - out.size


def test_nan_stays_in_its_row(isa: str, dtype: Any) -> None:
    layer, x = _layer((33, 70), dtype), rows((40, 33), dtype)
    clean = layer(x)
    x[7, 3] = np.nan
    out = layer(x)
    assert np.isnan(out[7]).all()
    assert_same_bits(np.delete(out, 7, 0), np.delete(clean, 7, 0))


@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 5)], ids=str)
def test_no_rows(shape: tuple[int, ...], dtype: Any) -> None:
    assert Linear(5, 9, dtype=dtype)(np.ones(shape, dtype)).shape == (*shape[:-1], 9)


CALLS: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"x": np.ones((4, 6), F32)}, ValueError, ["x", "5", "[4, 6]"]),
    ({"x": np.ones((1, 1, 1, 1, 5), F32)}, ValueError, ["x", "[1, 1, 1, 1, 5]"]),
    ({"x": np.ones((4, 5))}, TypeError, ["x", "float64", "float32"]),
    ({"x": [[1.0] * 5] * 4}, TypeError, ["x", "list"]),
    ({"out": np.ones((4, 5), F32)}, ValueError, ["out", "9 features", "[4, 5]"]),
    ({"out": np.ones((3, 9), F32)}, ValueError, ["out", "[3, 9]"]),
    ({"out": np.ones((1, 4, 9), F32)}, ValueError, ["out", "[1, 4, 9]"]),
    ({"out": np.ones((4, 9))}, TypeError, ["out", "float64"]),
    ({"num_threads": 0}, ValueError, ["num_threads"]),
]


@pytest.mark.parametrize(("fault", "kind", "words"), CALLS, ids=lambda x: "-".join(x) if isinstance(x, dict) else "")
def test_wrong_calls(fault: dict[str, Any], kind: type[Exception], words: list[str]) -> None:
    out = np.full((4, 9), 3, F32)
    with pytest.raises(kind) as error:
        Linear(5, 9, seed=0)(**({"x": np.ones((4, 5), F32), "out": out} | fault))
    for word in ["Linear", *words]:
        assert word in str(error.value)
    assert (out == 3).all(), "work was done before the error"


def test_out_over_x() -> None:
    x = np.ones((8, 5), F32)
    with pytest.raises(ValueError, match="Linear: out must not overlap x"):
        Linear(5, 5)(x, out=x)
    assert (x == 1).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"in_features": 0}, ["in_features", "0"]), ({"out_features": -1}, ["out_features", "-1"])],
)
def test_wrong_sizes(arguments: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match="Linear") as error:
        Linear(**({"in_features": 2, "out_features": 3} | arguments))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16", "int8", "int4"])
def test_copies_and_states(weight_dtype: str) -> None:
    layer = _layer((7, 20)).quantize(weight_dtype)
    x = rows((3, 7), F32)
    expected = layer(x)
    again = Linear(7, 20, weight_dtype=weight_dtype, seed=5)
    assert not np.array_equal(again(x), expected)
    again.load_state_dict(layer.state_dict())
    for other in (again, copy.copy(layer), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.weight_dtype == weight_dtype
        assert repr(other) == repr(layer)
        assert_same_bits(other(x), expected)
    assert layer.astype("float64")(x.astype(np.float64)).dtype == np.float64
    with pytest.raises(ValueError, match="bias"):
        Linear(7, 20, bias=False, weight_dtype=weight_dtype).load_state_dict(layer.state_dict())
    assert repr(Linear(2, 3, bias=False)) == "Linear(in_features=2, out_features=3, bias=False, dtype='float32')"


def test_the_names_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(6, 9)
    layer = Linear(6, 9)
    layer.load_state_dict(module.state_dict())
    assert list(layer.state_dict()) == list(module.state_dict())
    x = torch.ones(2, 6)
    out = layer(x)
    assert type(out) is torch.Tensor
    expected = transformer_tolerance.linear(layer, Near.exactly(x.numpy()))
    assert_close(module(x).detach().numpy(), expected.out, 4 * expected.bound, label="torch")
    assert_close(out.numpy(), expected.out, expected.bound, label="ours")


def test_the_oracle_by_hand() -> None:
    np.testing.assert_array_equal(reference.linear([[1, 2]], [[3, 4], [5, 6]], [10, 20]), [[21, 37]])
    np.testing.assert_array_equal(reference.linear([1, 2], [[3, 4]]), [11])
