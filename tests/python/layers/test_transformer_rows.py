"""Norms and feed-forward, which treat each row by itself, against the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import transformer_tolerance
from element_types import limits
from matrix import ALL, matrix, nightly
from random_layers import randomized, rows, views
from tolerance import assert_close, assert_same_bits
from transformer_tolerance import Near

from mha_native import FeedForward, LayerNorm, RMSNorm, reference

pytestmark = matrix(dtype=ALL)

WIDTHS = [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 129, 384, 1000]
QUICK_WIDTHS = [width for width in WIDTHS if width % 2 == 1 or width == 64]
SIZES = [(1, 1), (5, 1), (1, 7), (8, 16), (29, 37), (64, 256), (65, 255), (130, 1025), (384, 96)]  # E, F
ACTIVATIONS = ["relu", "gelu", "gelu_tanh", "silu", "quick_gelu"]


def _check(layer: Any, x: np.ndarray, label: str, num_threads: int | None = None) -> np.ndarray:
    near = getattr(transformer_tolerance, "feed_forward" if isinstance(layer, FeedForward) else "layer_norm")
    expected = near(layer, Near.exactly(x))
    out = np.full(x.shape, np.nan, x.dtype)
    assert layer(x, out=out, num_threads=num_threads) is out
    assert_close(out, expected.out, expected.bound, label=label)
    return out


@matrix(bias=nightly([True, False], quick=[True]))
@matrix(width=nightly(WIDTHS, quick=QUICK_WIDTHS))
def test_layer_norm(width: int, bias: bool, isa: str, dtype: Any, num_threads: int) -> None:
    norm = randomized(LayerNorm(width, bias=bias, dtype=dtype))
    _check(norm, rows((37, width), dtype), f"{width}", num_threads)


@pytest.mark.parametrize("unit_offset", [False, True], ids=["weight", "unit-offset"])
@matrix(width=nightly(WIDTHS, quick=QUICK_WIDTHS))
def test_rms_norm(width: int, unit_offset: bool, isa: str, dtype: Any, num_threads: int) -> None:
    norm = randomized(RMSNorm(width, unit_offset=unit_offset, dtype=dtype))
    _check(norm, rows((37, width), dtype), f"{width}", num_threads)


def test_a_small_weight_is_not_lost_beside_the_one(isa: str, dtype: Any) -> None:
    norm, small = RMSNorm(64, unit_offset=True, dtype=dtype), float(limits(dtype).eps) / 4
    norm.load_state_dict({"weight": np.full(64, small, dtype)})
    with_weight = norm(x := rows((500, 64), dtype))
    norm.load_state_dict({"weight": np.zeros(64, dtype)})
    if dtype in (np.float32, np.float64):  # the type of the sums: 1 + weight is 1
        assert_same_bits(with_weight, norm(x))
    else:  # some results are just below where rounding changes
        assert not np.array_equal(with_weight, norm(x))


SPREADS = [(1, 0), (1, 100), (1e-4, 3), (1e15, 0), (1e-15, 0), (1, -1e4)]  # of the features, and around what


@matrix(
    spread=[(*spread, eps) for spread in SPREADS for eps in (0.0, 1e-12, 1e-5, 3.0)] + [(1e-30, 0, 1e-12)],
    where=lambda spread, dtype, **_: spread[0] < float(limits(dtype).max),
)
def test_rows_of_any_size_and_offset(spread: tuple[float, float, float], isa: str, dtype: Any) -> None:
    size, offset, eps = spread
    norm = randomized(LayerNorm(70, eps=eps, dtype=dtype))
    _check(norm, (size * rows((9, 70), np.float64) + offset).astype(dtype), f"{size} {offset}")


def _is_ordinary(size: float, dtype: Any, **_: Any) -> bool:
    """Whether `dtype` holds rows of about this size, none of them subnormal."""
    return 100 * float(limits(dtype).tiny) < size < float(limits(dtype).max) / 100


@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-6, 3.0])
@matrix(size=[1.0, 1e-4, 1e4, 1e15, 1e-15, 1e19, 1e-19, 1e37, 1e-36], where=_is_ordinary)
def test_rms_norm_of_rows_of_any_size(size: float, eps: float, isa: str, dtype: Any) -> None:
    norm = randomized(RMSNorm(70, eps=eps, dtype=dtype))
    x = (size * rows((9, 70), np.float64)).astype(dtype)
    expected, out = transformer_tolerance.layer_norm(norm, Near.exactly(x)), norm(x)
    # A result below the smallest normal number may be 0.
    assert_close(out, expected.out, expected.bound + float(limits(dtype).tiny), label=f"{size} {eps}")
    assert np.isfinite(out).all()


def test_a_planted_feature(isa: str, dtype: Any) -> None:
    # A mean or variance over a column too many or too few shows at once.
    for width in WIDTHS:
        norm = LayerNorm(width, dtype=dtype)
        _check(norm, np.eye(width, dtype=dtype) * 1000, f"{width}")


def test_rows_whose_features_are_equal(isa: str, dtype: Any) -> None:
    norm = randomized(LayerNorm(50, dtype=dtype))
    for value in (0, 1, -7.5, 4096):
        x = np.full((3, 50), value, dtype)
        assert_same_bits(norm(x), np.tile(norm.state_dict()["bias"], (3, 1)), label=str(value))


@matrix(bias=nightly([True, False], quick=[True]))
@matrix(activation=nightly(ACTIVATIONS, quick=["gelu"]))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_feed_forward(
    sizes: tuple[int, int], activation: str, bias: bool, isa: str, dtype: Any, num_threads: int
) -> None:
    layer = randomized(FeedForward(*sizes, activation=activation, bias=bias, dtype=dtype, seed=0))
    for length in (1, 6, 70):
        _check(layer, rows((length, sizes[0]), dtype), f"{sizes} {activation} {length}", num_threads)


@matrix(activation=nightly(ACTIVATIONS, quick=["gelu"]))
def test_activations_far_out(activation: str, isa: str, dtype: Any) -> None:
    # One feature that is only activated, and copied: from the tails to what overflows a square.
    layer = FeedForward(1, 1, activation=activation, bias=False, dtype=dtype)
    layer.load_state_dict({"linear1.weight": np.ones((1, 1), dtype), "linear2.weight": np.ones((1, 1), dtype)})
    x = np.concatenate([np.linspace(-45, 45, 3001), 10.0 ** np.arange(2, 30), -(10.0 ** np.arange(2, 30))])
    x = x[np.abs(x) < float(limits(dtype).max)]
    out = _check(layer, x.astype(dtype)[:, None], activation)
    assert out[x < -40].max() == 0
    special = np.array([[np.inf], [-np.inf], [np.nan], [0.0]], dtype)
    assert np.array_equal(layer(special), np.array([[np.inf], [0], [np.nan], [0]], dtype), equal_nan=True)


LAYERS = {
    "norm": lambda dtype: randomized(LayerNorm(77, dtype=dtype)),
    "RMS norm": lambda dtype: randomized(RMSNorm(77, dtype=dtype)),
    "RMS norm with a unit offset": lambda dtype: randomized(RMSNorm(77, unit_offset=True, dtype=dtype)),
    "feed-forward": lambda dtype: randomized(FeedForward(77, 130, activation="gelu", dtype=dtype, seed=0)),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


@every_layer
def test_any_number_of_axes(name: str, isa: str, dtype: Any) -> None:
    layer = LAYERS[name](dtype)
    x = rows((2, 3, 5, 77), dtype)
    whole = layer(x)
    assert_same_bits(layer(x[1]), whole[1])
    assert_same_bits(layer(x[1, 2]), whole[1, 2])
    assert_same_bits(layer(x[1, 2, 4]), whole[1, 2, 4])


@every_layer
def test_rows_by_themselves(name: str, isa: str, dtype: Any) -> None:
    layer = LAYERS[name](dtype)
    x = rows((150, 77), dtype)
    together = layer(x, num_threads=1)
    for threads in (2, 3, 7):
        assert_same_bits(layer(x, num_threads=threads), together, label=f"{threads} threads")
    for first, last in ((0, 1), (149, 150), (3, 9), (60, 70), (1, 150)):
        assert_same_bits(layer(x[first:last]), together[first:last], label=f"{first}:{last}")


@every_layer
def test_views_of_memory(name: str, isa: str, dtype: Any) -> None:
    layer = LAYERS[name](dtype)
    x = rows((3, 21, 77), dtype)
    expected = layer(x)
    for view in views(x):
        assert_same_bits(layer(view), expected)
    for memory, out in (
        (wide := np.full((3, 21, 154), np.nan, dtype), wide[..., 1::2]),
        (turned := np.full((77, 21, 3), np.nan, dtype), turned.T),
        (longer := np.full((3, 30, 77), np.nan, dtype), longer[:, 24:3:-1]),
    ):
        assert layer(x, out=out) is out
        assert_same_bits(out.copy(), expected)
        assert np.count_nonzero(np.isnan(memory)) == memory.size - out.size


@every_layer
def test_in_place(name: str, isa: str, dtype: Any, num_threads: int) -> None:
    layer = LAYERS[name](dtype)
    x = rows((70, 77), dtype)
    expected = layer(x)
    assert layer(x, out=x, num_threads=num_threads) is x
    assert_same_bits(x, expected)


@every_layer
def test_nan_stays_in_its_row(name: str, isa: str, dtype: Any) -> None:
    layer = LAYERS[name](dtype)
    x = rows((40, 77), dtype)
    clean = layer(x)
    x[7, 3], x[20] = np.nan, np.nan
    out = layer(x)
    assert np.isnan(out[[7, 20]]).all()
    others = np.delete(np.arange(40), [7, 20])
    assert_same_bits(out[others], clean[others])


@every_layer
@pytest.mark.parametrize("shape", [(0, 77), (2, 0, 77), (0, 3, 77)], ids=str)
def test_no_rows(name: str, shape: tuple[int, ...], dtype: Any) -> None:
    assert LAYERS[name](dtype)(np.ones(shape, dtype)).shape == shape


F32 = np.float32
CALLS: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"x": np.ones((4, 76), F32)}, ValueError, ["x", "77", "[4, 76]"]),
    ({"x": np.ones((1, 1, 1, 1, 77), F32)}, ValueError, ["x", "[1, 1, 1, 1, 77]"]),
    ({"x": np.ones((), F32)}, ValueError, ["x"]),
    ({"x": np.ones((4, 77))}, TypeError, ["x", "float64", "float32"]),
    ({"x": [[1.0] * 77] * 4}, TypeError, ["x", "list"]),
    ({"out": np.ones((4, 76), F32)}, ValueError, ["out", "[4, 76]"]),
    ({"out": np.ones((3, 77), F32)}, ValueError, ["out", "[3, 77]"]),
    ({"out": np.ones((4, 77))}, TypeError, ["out", "float64"]),
    ({"num_threads": 0}, ValueError, ["num_threads"]),
]


@every_layer
@pytest.mark.parametrize(("fault", "kind", "words"), CALLS, ids=lambda x: "-".join(x) if isinstance(x, dict) else "")
def test_wrong_calls(name: str, fault: dict[str, Any], kind: type[Exception], words: list[str]) -> None:
    layer, out = LAYERS[name](F32), np.full((4, 77), 3, F32)
    with pytest.raises(kind) as error:
        layer(**({"x": np.ones((4, 77), F32), "out": out} | fault))
    message = str(error.value)
    assert message.startswith(type(layer).__name__), message
    for word in words:
        assert word in message, message
    assert (out == 3).all(), "work was done before the error"


@every_layer
def test_out_over_a_part_of_x(name: str) -> None:
    memory = np.ones((9, 77), F32)
    with pytest.raises(ValueError, match="out must not overlap x"):
        LAYERS[name](F32)(memory[:8], out=memory[1:])
    assert (memory == 1).all()


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for make in LAYERS.values():
        layer, x = make(F32), rows((2, 3, 77), F32)
        out = layer(torch.from_numpy(x))
        assert type(out) is torch.Tensor
        assert_same_bits(out.numpy(), layer(x))
        target = torch.empty(2, 3, 77)
        assert layer(torch.from_numpy(x), out=target) is target
        assert_same_bits(target.numpy(), layer(x))


def test_the_oracle_by_hand() -> None:
    norm = reference.layer_norm([[1, 3], [2, 2]], [10, 100], [1, 2], eps=0.0625 / 2)
    by_hand = 1 / np.sqrt(1.03125)
    np.testing.assert_array_equal(norm, [[1 - 10 * by_hand, 2 + 100 * by_hand], [1, 2]])
    np.testing.assert_allclose(reference.activate([-1, 0, 1], "gelu"), [-0.15865525393145707, 0, 0.8413447460685429])
    np.testing.assert_allclose(
        reference.activate([-1, 0, 1], "gelu_tanh"), [-0.15880800939172324, 0, 0.8411919906082768]
    )
    np.testing.assert_allclose(reference.activate([-1, 0, 1], "silu"), [-0.2689414213699951, 0, 0.7310585786300049])
    np.testing.assert_allclose(
        reference.activate([-1, 0, 1], "quick_gelu"), [-0.1542042340671787, 0, 0.8457957659328212]
    )
    np.testing.assert_allclose(reference.activate([-1000, -700, 800], "silu"), [0, -6.90177358063184e-302, 800])
    state = {"linear1.weight": [[1], [-1]], "linear1.bias": [0, 1], "linear2.weight": [[2, 3]], "linear2.bias": [5]}
    np.testing.assert_array_equal(reference.feed_forward([[4], [-4]], state), [[13], [20]])
