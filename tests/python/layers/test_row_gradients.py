"""Gradients of norms and activations: against the oracle, and the oracle against differences and torch; bits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import row_gradient_tolerance
from element_types import accumulator_of, is_half, limits
from matrix import ALL, matrix, nightly
from random_layers import rows
from tolerance import assert_close, assert_same_bits

import mha_native as mha
from mha_native import reference

Array = np.ndarray[Any, np.dtype[Any]]
pytestmark = matrix(dtype=ALL)

WIDTHS = [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 129, 384, 1000]
QUICK_WIDTHS = [1, 3, 17, 65, 384]
ACTIVATIONS = ["relu", "gelu", "gelu_tanh", "silu", "quick_gelu"]
NORMS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "layer": (mha.layer_norm_gradient, {}),
    "rms": (mha.rms_norm_gradient, {}),
    "unit offset": (mha.rms_norm_gradient, {"unit_offset": True}),
}


def _rows(shape: tuple[int, ...], dtype: Any, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _assert_norm(
    kind: str, x: Array, weight: Array | None, dout: Array, eps: float, label: str, num_threads: int | None = None
) -> Any:
    gradient, options = NORMS[kind]
    expected = row_gradient_tolerance.norm(x, weight, dout, eps, "layer" if kind == "layer" else "rms", **options)
    found = gradient(x, weight, dout, eps=eps, wrt=tuple(expected), num_threads=num_threads, **options)
    for name, (exact, bound) in expected.items():
        assert getattr(found, name).dtype == x.dtype
        assert_close(getattr(found, name), exact, bound, label=f"{label} {name}")
    return found


@matrix(width=nightly(WIDTHS, quick=QUICK_WIDTHS))
@pytest.mark.parametrize("kind", NORMS)
def test_norms(kind: str, width: int, isa: str, dtype: Any, num_threads: int) -> None:
    for count in (1, 64, 131):  # one span, a whole one, and three with a part
        x, dout = _rows((count, width), dtype, 1), _rows((count, width), dtype, 2)
        _assert_norm(kind, x, _rows((width,), dtype, 3), dout, 1e-3, f"{count}", num_threads)
    _assert_norm(kind, x, None, dout, 1e-3, "no weight", num_threads)


@matrix(size=[1.0, 1e-4, 1e4, 1e15, 1e-15, 1e19, 1e-19, 1e37], dtype=[np.float32, np.float64])
@pytest.mark.parametrize("kind", ["rms", "unit offset"])
def test_rms_norms_of_rows_of_any_size(kind: str, size: float, isa: str, dtype: Any) -> None:
    x = (size * rows((9, 70), np.float64)).astype(dtype)
    for eps in (0.0, 1e-6):
        found = _assert_norm(kind, x, _rows((70,), dtype, 3), _rows((9, 70), dtype, 4), eps, f"{size} {eps}")
        assert np.isfinite(found.x).all()
    if size == 1e19 and dtype == np.float32:  # of squares that overflow: not an oversight, or 0
        assert np.abs(found.x).max() > float(limits(dtype).tiny)


@pytest.mark.parametrize("offset", [0, 100])
def test_layer_norms_of_rows_of_any_offset(offset: float, isa: str, dtype: Any) -> None:
    x = (_rows((9, 70), np.float64, 1) + offset).astype(dtype)
    for eps in (0.0, 1e-5, 3.0):
        _assert_norm("layer", x, _rows((70,), dtype, 3), _rows((9, 70), dtype, 4), eps, f"{offset} {eps}")


def _strided(x: Array, how: str) -> Array:
    """The same numbers with other strides."""
    shape = x.shape
    if how == "rows apart":
        return np.concatenate([x, x], -1)[..., : shape[-1]]
    if how == "features apart":
        return np.repeat(x, 2, -1)[..., ::2]
    if how == "backwards":
        return np.ascontiguousarray(x[..., ::-1])[..., ::-1]
    return np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1)


STRIDES = ["rows apart", "features apart", "backwards", "axes swapped"]


@pytest.mark.parametrize("how", STRIDES)
def test_strides_of_norms_change_no_bit(how: str, isa: str, dtype: Any) -> None:
    x, dout, weight = _rows((3, 40, 21), dtype, 1), _rows((3, 40, 21), dtype, 2), _rows((21,), dtype, 3)
    for gradient, options in NORMS.values():
        expected = gradient(x, weight, dout, **options)
        given = _strided(x, how), np.repeat(weight, 3)[::3], _strided(dout, how)
        given[0].flags.writeable = False
        for ours, theirs in zip(gradient(*given, **options), expected, strict=True):
            assert theirs is None or not assert_same_bits(ours, theirs, label=how)
    broadcast = np.broadcast_to(dout[:1, :1], dout.shape)
    ours = mha.layer_norm_gradient(x, weight, broadcast)
    for name, theirs in mha.layer_norm_gradient(x, weight, np.array(broadcast))._asdict().items():
        assert_same_bits(getattr(ours, name), theirs, label=name)


@matrix(dtype=[np.float32])
def test_bits_depend_on_neither_threads_nor_other_rows(isa: str, dtype: Any) -> None:
    x, dout, weight = _rows((1000, 130), dtype, 1), _rows((1000, 130), dtype, 2), _rows((130,), dtype, 3)
    for gradient, options in NORMS.values():
        alone, all_threads = (gradient(x, weight, dout, num_threads=n, **options) for n in (1, 3))
        for ours, theirs in zip(alone, all_threads, strict=True):
            assert theirs is None or not assert_same_bits(ours, theirs)
        some = gradient(x[500:507], weight, dout[500:507], **options)
        assert_same_bits(some.x, alone.x[500:507])
        first = gradient(x[:64], weight, dout[:64], **options)
        assert not np.array_equal(first.weight, alone.weight)


@matrix(dtype=[np.float32])
def test_only_gradients_of_wrt(isa: str, dtype: Any) -> None:
    x, dout, weight = _rows((70, 33), dtype, 1), _rows((70, 33), dtype, 2), _rows((33,), dtype, 3)
    for gradient, options in NORMS.values():
        names = ("x", "weight", "bias") if gradient is mha.layer_norm_gradient else ("x", "weight")
        whole = gradient(x, weight, dout, **options)
        for count in range(len(names) + 1):
            for wrt in itertools.combinations(names, count):
                found = gradient(x, weight, dout, wrt=wrt, **options)
                for name in ("x", "weight", "bias"):
                    assert (getattr(found, name) is not None) == (name in wrt)
                    if name in wrt:
                        assert_same_bits(getattr(found, name), getattr(whole, name), label=f"{wrt} {name}")


def test_rows_and_features_that_are_not_there(isa: str, dtype: Any) -> None:
    x = np.zeros((0, 5), dtype)
    found = mha.layer_norm_gradient(x, np.ones(5, dtype), x)
    assert found.x.shape == (0, 5)
    assert not found.weight.any()
    assert not found.bias.any()
    assert mha.activation(x, activation="gelu").shape == (0, 5)
    with pytest.raises(ValueError, match="x must have at least 1 feature"):
        mha.layer_norm_gradient(np.zeros((5, 0), dtype), None, np.zeros((5, 0), dtype), wrt=("x",))


@matrix(dtype=[np.float32])
def test_options_of_norms_that_are_ignored_are_noticed(isa: str, dtype: Any) -> None:
    x, dout, weight = _rows((5, 9), dtype, 1), _rows((5, 9), dtype, 2), _rows((9,), dtype, 3)
    plain = row_gradient_tolerance.norm(x, weight, dout, 1e-5)
    for other in (
        mha.layer_norm_gradient(x, weight, dout, eps=0.1),
        mha.layer_norm_gradient(x, None, dout, wrt=("x", "bias")),
        mha.rms_norm_gradient(x, weight, dout, eps=1e-5),
    ):
        with pytest.raises(AssertionError, match="elements are off"):
            assert_close(other.x, *plain["x"], label="other")
    rms = row_gradient_tolerance.norm(x, weight, dout, 1e-6, "rms")
    assert_close(mha.rms_norm_gradient(x, weight, dout).x, *rms["x"], label="rms")
    for options in ({"unit_offset": True}, {"eps": 0.1}):
        with pytest.raises(AssertionError, match="elements are off"):
            assert_close(mha.rms_norm_gradient(x, weight, dout, **options).x, *rms["x"], label="other")


FAR = np.concatenate([np.linspace(-45, 45, 3001), 10.0 ** np.arange(2, 30), -(10.0 ** np.arange(2, 30))])


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_activations(kind: str, gated: bool, isa: str, dtype: Any, num_threads: int) -> None:
    far = FAR[np.abs(FAR) < float(limits(dtype).max)]
    x = np.concatenate([far, _rows((17001,), np.float64, 1)]).astype(dtype)
    dout, up = (_rows(x.shape, dtype, seed) for seed in (2, 3))
    given = {"up": up} if gated else {}
    found = mha.activation_gradient(x, dout, activation=kind, num_threads=num_threads, **given)
    expected = row_gradient_tolerance.activation(x, dout, kind, **given)
    assert (found.up is not None) == gated == ("up" in expected)
    for name, (exact, bound) in expected.items():
        assert_close(getattr(found, name), exact, bound, label=f"{kind} {name}")
    if is_half(dtype):
        return
    # The forward step has the bits of the layer's, whose last product adds to 0.
    layer = mha.FeedForward(1, 1, activation=kind, bias=False, gated=gated, dtype=dtype)
    ones = {name: np.ones((1, 1), dtype) for name in layer.state_dict()}
    layer.load_state_dict(ones)
    out = mha.activation(x, activation=kind, num_threads=num_threads, **({"up": x} if gated else {}))
    assert_same_bits(out + dtype(0), layer(x[:, None])[:, 0])
    if gated:
        assert_same_bits(found.up, (dout * mha.activation(x, activation=kind)).astype(dtype))


@pytest.mark.parametrize("how", STRIDES)
def test_strides_of_activations_change_no_bit(how: str, isa: str, dtype: Any) -> None:
    x, dout, up = (_rows((3, 50, 37), dtype, seed) for seed in (1, 2, 3))
    for kind in ACTIVATIONS:
        expected = mha.activation_gradient(x, dout, activation=kind, up=up)
        found = mha.activation_gradient(_strided(x, how), _strided(dout, how), activation=kind, up=_strided(up, how))
        assert_same_bits(found.x, expected.x)
        assert_same_bits(found.up, expected.up)
        assert_same_bits(
            mha.activation(_strided(x, how), activation=kind, up=_strided(up, how)),
            mha.activation(x, activation=kind, up=up),
        )
        flat = mha.activation_gradient(x.ravel()[7:107], dout.ravel()[7:107], activation=kind)
        assert_same_bits(flat.x, mha.activation_gradient(x, dout, activation=kind).x.ravel()[7:107])


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_numbers_that_are_none(kind: str, isa: str, dtype: Any) -> None:
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 1], dtype)
    found = mha.activation_gradient(x, np.ones_like(x), activation=kind)
    at_zero = 0 if kind == "relu" else 0.5
    np.testing.assert_array_equal(found.x[1:4].astype(float), [1, 0, at_zero])
    assert np.isnan(found.x[0]) or kind == "relu"
    out = mha.activation(x, activation=kind).astype(float)
    assert np.isnan(out[0])
    np.testing.assert_array_equal(out[1:4], [np.inf, 0, 0])


def _assert_slopes(
    function: Callable[..., Array], given: dict[str, Array], found: dict[str, Array], dout: Array
) -> None:
    """Each gradient against central differences along a random direction."""
    rng, step = np.random.default_rng(0), 1e-5
    for name, gradient in found.items():
        direction = rng.standard_normal(given[name].shape)
        ahead, back = (
            float((function(**(given | {name: given[name] + sign * step * direction})) * dout).sum())
            for sign in (1, -1)
        )
        np.testing.assert_allclose((gradient * direction).sum(), (ahead - back) / (2 * step), rtol=1e-6, atol=1e-8)


@matrix(dtype=[np.float64])
def test_the_oracle_against_differences(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    x, dout, up = rng.standard_normal((3, 4, 7, 11))
    weight, bias = rng.standard_normal((2, 11))
    for eps in (1e-5, 0.3):
        _assert_slopes(
            lambda eps=eps, **given: reference.layer_norm(**given, eps=eps),
            {"x": x, "weight": weight, "bias": bias},
            reference.layer_norm_gradient(x, weight, dout, eps=eps),
            dout,
        )
        for unit_offset in (False, True):
            options = {"eps": eps, "unit_offset": unit_offset}
            _assert_slopes(
                lambda options=options, **given: reference.rms_norm(**given, **options),
                {"x": x, "weight": weight},
                reference.rms_norm_gradient(x, weight, dout, **options),
                dout,
            )
    for kind in ACTIVATIONS:
        _assert_slopes(
            lambda x, up, kind=kind: reference.activate(x, kind) * up,
            {"x": x, "up": up},
            reference.activation_gradient(x, dout, activation=kind, up=up),
            dout,
        )


@matrix(dtype=[np.float64])
def test_the_oracle_and_the_results_against_torch(dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    rng = np.random.default_rng(1)
    x, dout = (torch.tensor(rng.standard_normal((4, 7, 11)), requires_grad=i == 0) for i in range(2))
    weight, bias = (torch.tensor(rng.standard_normal(11), requires_grad=True) for _ in range(2))
    calls: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = {
        "layer": (
            functional.layer_norm(x, (11,), weight, bias, 1e-3),
            (x, weight, bias),
            reference.layer_norm_gradient(x.detach(), weight.detach(), dout, eps=1e-3),
            mha.layer_norm_gradient(x.detach(), weight.detach(), dout, eps=1e-3),
        ),
        "rms": (
            functional.rms_norm(x, (11,), weight, 1e-3),
            (x, weight),
            reference.rms_norm_gradient(x.detach(), weight.detach(), dout, eps=1e-3),
            mha.rms_norm_gradient(x.detach(), weight.detach(), dout, eps=1e-3),
        ),
    }
    for kind in ACTIVATIONS:
        if kind == "quick_gelu":
            out = x * torch.sigmoid(1.702 * x)
        else:
            function = getattr(functional, kind.removesuffix("_tanh"))
            out = function(x, approximate="tanh") if kind == "gelu_tanh" else function(x)
        calls[kind] = (
            out,
            (x,),
            reference.activation_gradient(x.detach(), dout, activation=kind),
            mha.activation_gradient(x.detach(), dout, activation=kind),
        )
    for name, (out, arguments, oracle, found) in calls.items():
        for theirs, (argument, exact) in zip(torch.autograd.grad(out, arguments, dout), oracle.items(), strict=True):
            np.testing.assert_allclose(exact, theirs, rtol=1e-9, atol=1e-11, err_msg=f"{name} {argument}")
            ours = getattr(found, argument)
            assert isinstance(ours, torch.Tensor)
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11, err_msg=f"{name} {argument}")


@matrix(dtype=[np.float32])
def test_a_sum_of_many_rows_keeps_its_digits(isa: str, dtype: Any) -> None:
    dout = np.full((300_000, 3), 0.1, dtype)
    x = np.broadcast_to(np.array([1, 2, 4], dtype), dout.shape)
    found = mha.layer_norm_gradient(x, None, dout, wrt=("bias",))
    exact = float(np.float32(0.1)) * len(dout)
    assert np.abs(found.bias.astype(float) - exact).max() < 1e-5 * exact
    assert accumulator_of(dtype) == dtype


@matrix(dtype=[np.float32])
def test_errors(dtype: Any) -> None:
    x, w = np.ones((2, 3), dtype), np.ones(3, dtype)
    for call, error, text in (
        (lambda: mha.layer_norm_gradient(x, w, x[:1]), ValueError, "dout must have the shape of x"),
        (lambda: mha.layer_norm_gradient(x, w[:2], x), ValueError, "weight must have an element for each feature"),
        (lambda: mha.layer_norm_gradient(x, w, x.astype(float)), TypeError, "dout"),
        (lambda: mha.layer_norm_gradient(x, w, x, eps=-1), ValueError, "eps must be a finite number of at least 0"),
        (lambda: mha.layer_norm_gradient(x, None, x), ValueError, "wrt names weight, which is not given"),
        (lambda: mha.rms_norm_gradient(x, w, x, wrt=("bias",)), ValueError, "'x', 'weight'; got"),
        (lambda: mha.rms_norm_gradient(x, w, x, wrt="x"), TypeError, "wrt must be a tuple of names"),
        (lambda: mha.activation(x, activation="tanh"), ValueError, "activation must be 'relu', 'gelu'"),
        (lambda: mha.activation(x, activation="relu", up=x[0]), ValueError, "up must have the shape of x"),
        (lambda: mha.activation_gradient(x, x[0], activation="relu"), ValueError, "dout must have the shape of x"),
    ):
        with pytest.raises(error, match=text):
            call()
