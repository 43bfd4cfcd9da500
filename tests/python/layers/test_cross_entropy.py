"""Cross-entropy over a vocabulary: against the oracle, and the oracle against differences and torch; bits."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from element_types import accumulator_of, is_half, limits
from matrix import ALL, matrix
from tolerance import assert_close, assert_same_bits, gamma

import mha_native as mha
from mha_native import reference

Array = np.ndarray[Any, np.dtype[Any]]
pytestmark = matrix(dtype=ALL)
GRADIENTS = ("x", "weight", "bias")


def _call(rows: int, width: int, words: int, dtype: Any, ignored: float = 0.3) -> dict[str, Any]:
    rng = np.random.default_rng(rows)
    targets = rng.integers(words, size=rows)
    targets[rng.random(rows) < ignored] = -100
    return {
        "x": rng.standard_normal((rows, width)).astype(dtype),
        "weight": rng.standard_normal((words, width)).astype(dtype),
        "targets": targets,
        "bias": rng.standard_normal(words).astype(dtype),
    }


def _wide(call: dict[str, Any]) -> dict[str, Any]:
    return {name: x.astype(np.float64) if name != "targets" else x for name, x in call.items()}


def _assert_close(found: mha.CrossEntropy, call: dict[str, Any], label: str, **options: Any) -> None:
    """Logits z off by e = gamma(E + 2) (|x| |W| + |b|) move a loss by 2 max e, and weights by (2 max e + 8 eps) of
    them; sums of gradients are sums of such errors, and roundings."""
    exact, wide = reference.cross_entropy(**_wide(call), **options), _wide(call)
    dtype, (words, width) = call["x"].dtype, call["weight"].shape
    eps, once = float(limits(accumulator_of(dtype)).eps), float(limits(dtype).eps) / 2
    sizes = np.abs(wide["x"]) @ np.abs(wide["weight"].T) + np.abs(wide["bias"])
    counts = wide["targets"] != options.get("ignore_index", -100)
    divisor = max(counts.sum(), 1) if options.get("reduction", "mean") == "mean" else 1
    off = gamma(width + 2, eps) * sizes.max(-1) + 8 * eps
    of_losses = np.where(counts, 3 * off + 4 * eps * sizes.max(-1), 0)
    total = of_losses if options.get("reduction") == "none" else of_losses.sum() / divisor
    assert found.loss.dtype == accumulator_of(dtype)
    assert_close(found.loss, exact["loss"], total + eps * np.abs(exact["loss"]), label=f"{label} loss")
    logits = wide["x"] @ wide["weight"].T + wide["bias"]
    weights = np.exp(logits - np.log(np.exp(logits).sum(-1))[:, None])
    slopes = np.where(counts[:, None], weights * (3 * off[:, None] + 8 * eps), 0) / divisor
    target = np.zeros_like(slopes)
    target[counts, wide["targets"][counts]] = 1 / divisor
    parts = np.where(counts[:, None], weights + 1 / words, 0) / divisor + target
    slopes += 4 * eps * (target + parts / words)
    bounds = {
        "x": slopes @ np.abs(wide["weight"]) + gamma(words, eps) * (parts @ np.abs(wide["weight"])),
        "weight": slopes.T @ np.abs(wide["x"]) + gamma(len(parts), eps) * (parts.T @ np.abs(wide["x"])),
        "bias": slopes.sum(0) + gamma(len(parts), eps) * parts.sum(0),
    }
    for name in GRADIENTS:
        gradient = getattr(found, name)
        assert gradient.dtype == dtype
        bound = bounds[name] + once * (np.abs(exact[name]) + bounds[name]) + float(limits(dtype).tiny)
        assert_close(gradient, exact[name], bound, label=f"{label} {name}")


OPTIONS: dict[str, dict[str, Any]] = {
    "usual": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "ignore_index": {"ignore_index": 3},
    "label_smoothing": {"label_smoothing": 0.2},
    "all": {"label_smoothing": 0.1, "reduction": "sum", "ignore_index": 3},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("sizes", [(5, 7, 3), (70, 33, 129), (300, 16, 1)], ids=str)
def test_losses_and_gradients(sizes: tuple[int, int, int], name: str, isa: str, dtype: Any, num_threads: int) -> None:
    call, options = _call(*sizes, dtype), OPTIONS[name]
    if "ignore_index" in options:
        call["targets"][call["targets"] == -100] = min(3, sizes[2] - 1)
    _assert_close(mha.cross_entropy(**call, **options, wrt=GRADIENTS, num_threads=num_threads), call, name, **options)


def test_an_option_that_is_ignored_is_noticed(isa: str, dtype: Any) -> None:
    call = _call(40, 9, 21, dtype)
    call["targets"][call["targets"] == -100] = 3
    for name, options in OPTIONS.items():
        found = mha.cross_entropy(**call, **options, wrt=GRADIENTS)
        _assert_close(found, call, name, **options)
        for left_out in options:
            others = {key: x for key, x in options.items() if key != left_out}
            with pytest.raises(AssertionError, match=r"elements are off|shape"):
                _assert_close(found, call, name, **others)
    plain = mha.cross_entropy(**call, wrt=GRADIENTS)
    for name in ("bias", "targets", "weight"):
        with pytest.raises(AssertionError, match="elements are off"):
            _assert_close(plain, call | {name: call[name][::-1].copy()}, name)


@matrix(dtype=[np.float32])
def test_chunks_change_no_bit(isa: str, dtype: Any) -> None:
    # 32 MiB of logits are 128 rows of such a vocabulary: three chunks, and the gradients of linear_gradient.
    call = _call(300, 8, 65_600, dtype, ignored=0.0)
    found = mha.cross_entropy(**call, reduction="sum", wrt=GRADIENTS, num_threads=2)
    parts = [
        mha.cross_entropy(**call | {"x": call["x"][at], "targets": call["targets"][at]}, reduction="none", wrt=("x",))
        for at in (slice(100), slice(100, 300))
    ]
    assert_same_bits(found.x, np.concatenate([part.x for part in parts]))
    losses = np.concatenate([part.loss for part in parts])
    np.testing.assert_allclose(found.loss, losses.sum(dtype=float), rtol=1e-6)
    again = mha.cross_entropy(**call, reduction="sum", wrt=GRADIENTS, num_threads=1)
    for ours, theirs in zip(again, found, strict=True):
        assert_same_bits(ours, theirs)
    logits = mha.linear(call["x"], call["weight"], call["bias"]).astype(np.float64)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    weights[np.arange(300), call["targets"]] -= 1
    np.testing.assert_allclose(found.weight, weights.T @ call["x"], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.bias, weights.sum(0), rtol=1e-3, atol=1e-5)


def test_strides_shapes_and_ignored_rows_change_no_bit(isa: str, dtype: Any) -> None:
    call = _call(42, 10, 33, dtype)
    expected = mha.cross_entropy(**call, wrt=GRADIENTS)
    shaped = call | {"x": call["x"].reshape(2, 3, 7, 10), "targets": call["targets"].reshape(2, 3, 7)}
    found = mha.cross_entropy(**shaped, reduction="none", wrt=("x",))
    assert found.loss.shape == (2, 3, 7)
    assert found.x.shape == (2, 3, 7, 10)
    strided = {name: np.repeat(x, 2, -1)[..., ::2] for name, x in call.items()}
    kept = call["targets"] != -100
    some = mha.cross_entropy(**call | {"x": call["x"][kept], "targets": call["targets"][kept]}, wrt=GRADIENTS)
    for other in (mha.cross_entropy(**strided, wrt=GRADIENTS), some._replace(x=expected.x)):
        for ours, theirs in zip(other, expected, strict=True):
            assert_same_bits(ours, theirs)
    assert_same_bits(some.x, expected.x[kept])
    assert not expected.x[~kept].any()
    poisoned = call["x"].copy()
    poisoned[~kept] = np.nan
    for ours, theirs in zip(mha.cross_entropy(**call | {"x": poisoned}, wrt=GRADIENTS), expected, strict=True):
        assert_same_bits(ours, theirs)


@matrix(dtype=[np.float32])
def test_only_gradients_of_wrt(isa: str, dtype: Any) -> None:
    call = _call(42, 10, 33, dtype)
    whole = mha.cross_entropy(**call, wrt=GRADIENTS)
    for count in range(4):
        for wrt in itertools.combinations(GRADIENTS, count):
            found = mha.cross_entropy(**call, wrt=wrt)
            assert_same_bits(found.loss, whole.loss)
            for name in GRADIENTS:
                assert (getattr(found, name) is not None) == (name in wrt)
                if name in wrt:
                    assert_same_bits(getattr(found, name), getattr(whole, name))


def test_rows_that_are_not_there(isa: str, dtype: Any) -> None:
    call = _call(6, 4, 5, dtype)
    call["targets"][:] = -100
    for rows in (6, 0):
        few = call | {"x": call["x"][:rows], "targets": call["targets"][:rows]}
        found = mha.cross_entropy(**few, wrt=GRADIENTS)
        assert np.isnan(found.loss)
        assert mha.cross_entropy(**few, reduction="sum").loss == 0
        assert mha.cross_entropy(**few, reduction="none").loss.shape == (rows,)
        assert not any(getattr(found, name).any() for name in GRADIENTS)
    mha.cross_entropy(**_call(6, 4, 5, dtype))  # computes


@matrix(dtype=[np.float32, np.float64])
def test_large_logits(isa: str, dtype: Any) -> None:
    x = np.array([[1000.0, 0], [-1000, 0], [0, 1e4], [np.nan, 0], [np.inf, 1]], dtype)
    weight, targets = np.array([[1, 0], [0, 1], [-1, 0]], dtype), np.array([0, 1, 0, 0, 0])
    found = mha.cross_entropy(x, weight, targets, reduction="none", wrt=("x",))
    np.testing.assert_array_equal(found.loss[:3], [0, 1000, 1e4])
    assert np.isnan(found.loss[3:]).all()
    np.testing.assert_array_equal(found.x[:3], [[0, 0], [-1, -1], [-1, 1]])


@matrix(dtype=[np.float64])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_oracle_against_differences_and_torch(name: str, dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    call, options = _call(12, 5, 9, dtype), OPTIONS[name]
    if "ignore_index" in options:
        call["targets"][call["targets"] == -100] = 3
    found = reference.cross_entropy(**call, **options)
    rng, step = np.random.default_rng(2), 1e-5
    for argument in GRADIENTS:
        direction = rng.standard_normal(call[argument].shape)
        ahead, back = (
            reference.cross_entropy(**call | {argument: call[argument] + sign * step * direction}, **options)[
                "loss"
            ].sum()
            for sign in (1, -1)
        )
        np.testing.assert_allclose((found[argument] * direction).sum(), (ahead - back) / (2 * step), rtol=1e-6)
    given = {key: torch.tensor(x, requires_grad=key != "targets") for key, x in call.items()}
    logits = torch.nn.functional.linear(given["x"], given["weight"], given["bias"])
    loss = torch.nn.functional.cross_entropy(logits, given["targets"], **options)
    ours = mha.cross_entropy(**{key: x.detach() for key, x in given.items()}, **options, wrt=GRADIENTS)
    assert isinstance(ours.loss, torch.Tensor)
    assert ours.loss.shape == loss.shape
    np.testing.assert_allclose(ours.loss, loss.detach(), rtol=1e-12)
    gradients = torch.autograd.grad(loss.sum(), [given[argument] for argument in GRADIENTS])
    for argument, theirs in zip(GRADIENTS, gradients, strict=True):
        np.testing.assert_allclose(found[argument], theirs, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(getattr(ours, argument), theirs, rtol=1e-9, atol=1e-12)


@matrix(dtype=[np.float32])
def test_errors(dtype: Any) -> None:
    call = _call(4, 3, 5, dtype, ignored=0.0)
    for changes, error, text in (
        (
            {"targets": np.array([0, 1, 5, 2])},
            ValueError,
            "less than the rows of weight, 5, or ignore_index, -100; got 5",
        ),
        ({"targets": np.array([0, 1, -1, 2])}, ValueError, "got -1 for row 2"),
        ({"targets": np.array([0, 1])}, ValueError, "targets must have an entry for each row of x"),
        ({"targets": np.zeros(4)}, TypeError, "targets"),
        ({"weight": np.ones((5, 4), dtype)}, ValueError, "weight must be"),
        ({"bias": np.ones(4, dtype)}, ValueError, "bias must have an element for each row of weight"),
        ({"bias": np.ones(5)}, TypeError, "bias"),
        ({"label_smoothing": 1.5}, ValueError, "label_smoothing must be from 0 to 1; got 1.5"),
        ({"reduction": "max"}, ValueError, "reduction must be 'mean', 'sum' or 'none'"),
        ({"reduction": None}, TypeError, "reduction must be"),
        ({"ignore_index": 1.5}, TypeError, "ignore_index"),
        ({"wrt": ("logits",)}, ValueError, "wrt must be a tuple of names"),
        ({"bias": None, "wrt": ("bias",)}, ValueError, "wrt names bias, which is not given"),
    ):
        with pytest.raises(error, match=text):
            mha.cross_entropy(**call | changes)
    assert not is_half(dtype)
