"""linear and linear_gradient: against the oracle, and the oracle against differences; bits, strides, refused calls."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tolerance
from element_types import accumulator_of
from matrix import ALL, matrix, nightly
from tolerance import assert_close, assert_same_bits
from transformer_tolerance import Near

import mha_native as mha
from mha_native import reference

Array = np.ndarray[Any, np.dtype[Any]]
NAMES = ("x", "weight", "bias")

# Leading axes of x, input and output features: no rows, few, and more than a span of 128; features of one lane, of
# several panels, and of more than one block of a task.
SHAPES = (
    ((), 1, 1),
    ((0,), 5, 6),
    ((3, 0, 2), 4, 4),
    ((5,), 7, 3),
    ((2, 65), 64, 65),
    ((3, 2, 100), 130, 25),
    ((129,), 9, 205),
    ((300,), 450, 8),
    ((128,), 1000, 3),
    ((1,), 900, 400),
)


def _arrays(lead: tuple[int, ...], inputs: int, outputs: int, dtype: Any) -> tuple[Array, Array, Array, Array]:
    rng = np.random.default_rng(inputs)
    shapes = (*lead, inputs), (outputs, inputs), (outputs,), (*lead, outputs)
    x, weight, bias, dout = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return x, weight, bias, dout


def _exact(x: Array, weight: Array, dout: Array) -> dict[str, Near]:
    """The gradients and their bounds."""
    numbers, dtype = accumulator_of(dout.dtype), dout.dtype
    rows, of_rows = x.reshape(-1, x.shape[-1]).T, dout.reshape(-1, dout.shape[-1]).T
    products = {
        "x": tolerance.projection(dout, weight.T, None, numbers),
        "weight": tolerance.projection(of_rows, rows, None, numbers),
        "bias": tolerance.projection(of_rows, np.ones((1, rows.shape[1]), dtype), None, numbers),
    }
    expected = reference.linear_gradient(x, weight, dout)
    near = {}
    for name, (out, bound) in products.items():
        exact = expected[name]
        assert np.allclose(out.reshape(exact.shape), exact, rtol=1e-9, atol=1e-9), name
        near[name] = Near(exact, bound.reshape(exact.shape)).rounded(dtype)
    return near


@matrix(dtype=ALL, shape=nightly(SHAPES, quick=SHAPES[1:]))
def test_every_gradient(shape: tuple[tuple[int, ...], int, int], isa: str, dtype: Any, num_threads: int) -> None:
    x, weight, bias, dout = _arrays(*shape, dtype)
    out = mha.linear(x, weight, bias, num_threads=num_threads)
    assert_same_bits(out, mha.Linear.from_weights(weight, bias)(x, num_threads=1), label="linear")
    found = mha.linear_gradient(x, weight, dout, num_threads=num_threads)
    alone = mha.linear_gradient(x, weight, dout, num_threads=1)
    for name, near in _exact(x, weight, dout).items():
        gradient = getattr(found, name)
        assert gradient.dtype == dtype
        assert_close(gradient, near.out, near.bound, label=name)
        assert_same_bits(gradient, getattr(alone, name), label=f"{name} on one thread")
    assert_same_bits(found.x, mha.linear(dout, weight.T), label="x")
    for name in NAMES:
        one = mha.linear_gradient(x, weight, dout, wrt=(name,), num_threads=num_threads)
        assert_same_bits(getattr(one, name), getattr(found, name), label=f"{name} alone")
        assert sum(gradient is not None for gradient in one) == 1
    needed = (
        mha.linear_gradient(None, weight, dout, wrt=("x", "bias")),
        mha.linear_gradient(x, None, dout, wrt=NAMES[1:]),
    )
    assert_same_bits(needed[0].x, found.x, label="without x")
    assert_same_bits(needed[1].weight, found.weight, label="without weight")


def test_the_oracle_against_differences() -> None:
    x, weight, bias, dout = _arrays((2, 3), 4, 5, np.float64)
    gradients = reference.linear_gradient(x, weight, dout)
    arguments = dict(zip(NAMES, (x, weight, bias), strict=True))
    for name, argument in arguments.items():
        for index in np.ndindex(argument.shape):
            sides = []
            for step in (1e-3, -1e-3):
                moved = argument.copy()
                moved[index] += step
                sides.append((reference.linear(**(arguments | {name: moved})) * dout).sum())
            assert gradients[name][index] == pytest.approx((sides[0] - sides[1]) / 2e-3, abs=1e-9), (name, index)


@matrix(dtype=ALL)
def test_strides(isa: str, dtype: Any) -> None:
    """Every second row of every third feature, rows backwards, axes exchanged, and read-only memory."""
    x, weight, _, dout = _arrays((4, 70), 66, 26, dtype)
    expected = mha.linear_gradient(x, weight, dout, num_threads=1)
    out = mha.linear(x, weight)

    def spread(array: Array) -> Array:
        memory = np.full((*array.shape[:-2], 2 * array.shape[-2], 3 * array.shape[-1]), np.nan, dtype)
        memory[..., ::2, ::3] = array
        return memory[..., ::2, ::3]

    def exchanged(array: Array) -> Array:
        return np.ascontiguousarray(array.swapaxes(0, -2)).swapaxes(0, -2)

    def backwards(array: Array) -> Array:
        return np.ascontiguousarray(array[..., ::-1, :])[..., ::-1, :]

    def frozen(array: Array) -> Array:
        array = array.copy()
        array.flags.writeable = False
        return array

    for form in (spread, exchanged, backwards, frozen, np.asfortranarray):
        arrays = form(x), form(weight) if form is not exchanged else weight, form(dout)
        for name, gradient in mha.linear_gradient(*arrays, num_threads=2)._asdict().items():
            assert_same_bits(gradient, getattr(expected, name), label=f"{form.__name__} {name}")
        assert_same_bits(mha.linear(*arrays[:2]), out, label=form.__name__)


@matrix(dtype=ALL)
def test_rows_do_not_mix(isa: str, dtype: Any) -> None:
    """A row of NaN reaches its own row of dx, all of the sums over rows that it takes part in, and nothing else."""
    x, weight, _, dout = _arrays((140,), 70, 33, dtype)
    expected = mha.linear_gradient(x, weight, dout)
    dout[131, 4] = np.nan
    found = mha.linear_gradient(x, weight, dout)
    others = np.arange(140) != 131
    assert np.isnan(found.x[131].astype(np.float32)).all()
    assert_same_bits(found.x[others], expected.x[others], label="x")
    features = np.arange(33) != 4
    for name in ("weight", "bias"):
        assert np.isnan(getattr(found, name)[4].astype(np.float32)).all()
        assert_same_bits(getattr(found, name)[features], getattr(expected, name)[features], label=name)
    few = mha.linear_gradient(x[:1], weight, dout[:1])
    assert_same_bits(few.x, expected.x[:1], label="one row")


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    x, weight, bias, dout = (torch.from_numpy(a) for a in _arrays((2, 50), 40, 30, np.float32))
    parameters = [t.clone().requires_grad_() for t in (x, weight, bias)]
    torch.nn.functional.linear(*parameters).backward(dout)
    for name, gradient in mha.linear_gradient(x, weight, dout)._asdict().items():
        theirs = parameters[NAMES.index(name)].grad
        assert isinstance(gradient, torch.Tensor)
        torch.testing.assert_close(gradient, theirs, rtol=1e-4, atol=1e-4)
    assert isinstance(mha.linear(x.bfloat16(), weight.bfloat16()), torch.Tensor)


F32 = np.float32
X, W, D = np.ones((2, 3), F32), np.ones((4, 3), F32), np.ones((2, 4), F32)
REFUSED: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ((X, W, D[:1]), {}, ValueError, "x and dout must have the same rows; got x [2, 3], weight [4, 3], dout [1, 4]"),
    ((X, W.T, D), {}, ValueError, "weight must be [4, 3], the features of dout and of x"),
    ((None, W, D), {}, ValueError, "the gradient of weight needs x"),
    ((None, None, D), {"wrt": ("x",)}, ValueError, "wrt names x, which is not given"),
    ((X, None, D), {}, ValueError, "the gradient of x needs weight"),
    ((X.astype(np.float64), W, D), {}, TypeError, "x must be of the dtype of dout, float32"),
    ((X, W, D[..., :0]), {}, ValueError, "dout must have at least 1 feature"),
    ((X, W, np.ones((1, 1, 1, 2, 4), F32)), {}, ValueError, "dout must have 1 to 4 axes"),
    ((X, W, [1]), {}, TypeError, "dout must be a NumPy array"),
    ((X, W, D), {"wrt": ("out",)}, ValueError, "wrt must be a tuple of names of arguments: 'x', 'weight', 'bias'"),
    ((X, W, D), {"wrt": "x"}, TypeError, "wrt must be a tuple of names"),
    ((X, W, D), {"num_threads": 0}, ValueError, "num_threads must be at least 1"),
]


@pytest.mark.parametrize(("arrays", "options", "kind", "words"), REFUSED, ids=[refused[3] for refused in REFUSED])
def test_refused(arrays: tuple[Any, ...], options: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=r"linear_gradient: .*" + re.escape(words)):
        mha.linear_gradient(*arrays, **options)


def test_refused_by_linear() -> None:
    for arrays, words in (
        ((X, W.T), "x must have 4 features"),
        ((X, W[:0]), "weight must not be empty"),
        ((X, W, np.ones(3, F32)), "bias must be [4]"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"linear: {words}")):
            mha.linear(*arrays)
