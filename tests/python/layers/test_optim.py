"""AdamW against torch and against its equations, clipping, schedules, states and bits."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from element_types import BFLOAT16, is_half
from matrix import ALL, matrix
from tolerance import assert_same_bits

import mha_native as mha
from mha_native.optim import AdamW, warmup_cosine

Array = np.ndarray[Any, np.dtype[Any]]
SHAPES: dict[str, tuple[int, ...]] = {"matrix": (37, 19), "vector": (17,), "one": (), "long": (20_001,), "none": (0, 3)}


def _arrays(dtype: Any, seed: int, shapes: dict[str, tuple[int, ...]] = SHAPES) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def _stepped(
    weights: dict[str, Array], gradients: list[dict[str, Array]], *, num_threads: int | None = None, **options: Any
) -> dict[str, Array]:
    """The weights after some steps, in float64, from the equations."""
    options = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01} | options
    masters = {name: x.astype(np.float64) for name, x in weights.items()}
    moments = {name: (np.zeros(x.shape), np.zeros(x.shape)) for name, x in weights.items()}
    (beta1, beta2), lr = options["betas"], options["lr"]
    for t, given in enumerate(gradients, 1):
        rate = lr * options["schedule"](t - 1) if "schedule" in options else lr
        scale = 1.0
        if "max_grad_norm" in options:
            norm = math.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in given.values()))
            scale = min(1.0, options["max_grad_norm"] / (norm + 1e-6))
        for name, gradient in given.items():
            g = gradient.astype(np.float64) * scale
            m, v = moments[name]
            m, v = moments[name] = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
            masters[name] = masters[name] * (1 - rate * options["weight_decay"])
            masters[name] -= rate * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + options["eps"])
    return masters


OPTIONS: dict[str, dict[str, Any]] = {
    "usual": {},
    "lr": {"lr": 0.03},
    "betas[0]": {"betas": (0.5, 0.999)},
    "betas[1]": {"betas": (0.9, 0.8)},
    "eps": {"eps": 0.1},
    "weight_decay": {"weight_decay": 0.5},
    "max_grad_norm": {"max_grad_norm": 1.5, "eps": 1e-2},  # a scale alone cancels, but for eps
    "schedule": {"schedule": warmup_cosine(2, 6)},
}


@pytest.mark.parametrize("name", OPTIONS)
@matrix(dtype=ALL)
def test_steps(name: str, isa: str, dtype: Any, num_threads: int) -> None:
    weights, gradients = _arrays(dtype, 0), [_arrays(dtype, seed) for seed in (1, 2, 3)]
    options = {"lr": 0.01} | OPTIONS[name]
    optimizer = AdamW(weights, **options)
    for given in gradients:
        optimizer.step(given, num_threads=num_threads)
    expected, plain = _stepped(weights, gradients, **options), _stepped(weights, gradients)
    tolerance = 1e-13 if dtype == np.float64 else 2e-6
    for key, exact in expected.items():
        found = optimizer.weights[key]
        assert found.dtype == (np.float64 if dtype == np.float64 else np.float32)
        np.testing.assert_allclose(found, exact, rtol=tolerance, atol=tolerance, err_msg=key)
        if name != "usual" and found.size:
            assert np.abs(found - plain[key]).max() > 1e-3, "an option that is ignored is noticed"


@matrix(dtype=[np.float32, np.float64])
@pytest.mark.parametrize("clips", [False, True], ids=["plain", "clipped"])
def test_as_torch(clips: bool, dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    weights = _arrays(dtype, 0)
    theirs = {name: torch.nn.Parameter(torch.tensor(x)) for name, x in weights.items()}
    other = torch.optim.AdamW(theirs.values(), lr=0.01, weight_decay=0.1)
    ours = AdamW(weights, lr=0.01, weight_decay=0.1, max_grad_norm=2.0 if clips else None)
    for seed in range(1, 6):
        gradients = _arrays(dtype, seed)
        if seed % 2:
            del gradients["vector"]  # and so no decay, and no step of its moments
        for name, parameter in theirs.items():
            parameter.grad = torch.tensor(gradients[name]) if name in gradients else None
        norm = ours.step(gradients)
        if clips:
            np.testing.assert_allclose(norm, torch.nn.utils.clip_grad_norm_(theirs.values(), 2.0).item(), rtol=1e-6)
        else:
            assert norm is None
        other.step()
    tolerance = 1e-12 if dtype == np.float64 else 1e-6
    for name, parameter in theirs.items():
        np.testing.assert_allclose(ours.weights[name], parameter.detach(), rtol=tolerance, atol=tolerance, err_msg=name)


def test_bits_depend_on_neither_threads_nor_strides(isa: str) -> None:
    weights, gradients = _arrays(np.float32, 0), _arrays(np.float32, 1)
    results = []
    for threads, strided in ((1, False), (3, False), (2, True)):
        optimizer = AdamW(weights, lr=0.1, max_grad_norm=0.5)
        given: Any = {name: np.repeat(x, 2, -1)[..., ::2] if strided and x.ndim else x for name, x in gradients.items()}
        norm = optimizer.step(given | {"one": None}, num_threads=threads)
        results.append((norm, dict(optimizer.weights)))
    for norm, found in results[1:]:
        assert norm == results[0][0]
        for name, array in found.items():
            assert_same_bits(array, results[0][1][name], label=name)
    assert_same_bits(results[0][1]["one"], weights["one"])


def test_weights_are_copies_that_steps_change_in_place() -> None:
    given = _arrays(np.float32, 0)
    before = {name: x.copy() for name, x in given.items()}
    optimizer = AdamW(given, lr=0.1)
    held = dict(optimizer.weights)
    optimizer.step(_arrays(np.float32, 1))
    for name, x in given.items():
        assert_same_bits(x, before[name])
        assert held[name] is optimizer.weights[name]
        assert not x.size or (held[name] != x).any()
    with pytest.raises(TypeError):
        optimizer.weights["one"] = np.zeros(())  # type: ignore[index]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, BFLOAT16])
def test_a_state_continues(dtype: Any) -> None:
    weights, options = _arrays(dtype, 0), {"lr": 0.1, "schedule": warmup_cosine(3, 9)}
    whole = AdamW(weights, **options)
    for seed in (1, 2, 3, 4):
        whole.step(_arrays(dtype, seed))
        if seed == 2:
            saved = whole.state_dict()
    assert all(isinstance(array, np.ndarray) for array in saved.values())
    resumed = AdamW({name: np.zeros_like(x) for name, x in weights.items()}, **options)
    resumed.load_state_dict(saved)
    assert resumed.num_steps == 2
    assert resumed.lr == pytest.approx(0.1)
    for seed in (3, 4):
        resumed.step(_arrays(dtype, seed))
    for name, array in whole.state_dict().items():
        assert_same_bits(resumed.state_dict()[name], array, label=name)


def test_a_layer_is_trained() -> None:
    layer = mha.LayerNorm(8)
    rng = np.random.default_rng(0)
    x, target = rng.standard_normal((2, 64, 8), dtype=np.float32)
    optimizer, losses = AdamW(layer.state_dict(), lr=0.05), []
    for _ in range(30):
        out = layer(x)
        losses.append(float(((out - target) ** 2).mean()))
        found = mha.layer_norm_gradient(x, layer.state_dict()["weight"], 2 * (out - target) / out.size)
        optimizer.step({"weight": found.weight, "bias": found.bias})
        layer.load_state_dict(optimizer.weights)
    assert losses[-1] < 0.7 * losses[0]


def test_errors() -> None:
    weights = {"w": np.ones(3, np.float32)}
    optimizer = AdamW(weights, lr=0.1, max_grad_norm=1.0)
    one = np.ones(3, np.float32)
    state = optimizer.state_dict()
    for call, error, text in (
        (lambda: AdamW([one], lr=1), TypeError, "weights must be a mapping"),
        (lambda: AdamW({"w": np.ones(3, int)}, lr=1), TypeError, r"weights\['w'\] must be an array of float32"),
        (lambda: AdamW(weights, lr=-1), ValueError, "lr must be at least 0"),
        (lambda: AdamW(weights, lr="1"), TypeError, "lr"),
        (lambda: AdamW(weights, lr=1, betas=0.9), TypeError, "betas must be a tuple"),
        (lambda: AdamW(weights, lr=1, betas=(0.9, 1.0)), ValueError, "betas must be less than 1"),
        (lambda: AdamW(weights, lr=1, eps=-1), ValueError, "eps must be at least 0"),
        (lambda: AdamW(weights, lr=1, schedule=3), TypeError, "schedule must be callable"),
        (lambda: AdamW(weights, lr=1, schedule=lambda _: math.nan).step({"w": one}), ValueError, "schedule"),
        (lambda: optimizer.step({"v": one}), ValueError, "gradients must have the names of weights; got 'v'"),
        (
            lambda: optimizer.step({"w": one[:2]}),
            ValueError,
            r"gradients\['w'\] must have the shape of the weight, \[3\]; got \[2\]",
        ),
        (lambda: optimizer.step({"w": one.astype(float)}), TypeError, "must be float32, or of 16 bits; got float64"),
        (lambda: optimizer.step({"w": one * np.nan}), ValueError, "the norm of gradients must be finite; got nan"),
        (lambda: optimizer.load_state_dict([]), TypeError, "state must be a mapping"),
        (lambda: optimizer.load_state_dict({}), ValueError, "it lacks 'steps'"),
        (lambda: optimizer.load_state_dict(state | {"x": one}), ValueError, "it has 'x'"),
        (lambda: optimizer.load_state_dict(state | {"m.w": one[:1]}), ValueError, "m.w in state must be"),
        (lambda: warmup_cosine(5, 3), ValueError, "warmup_steps must be at most total_steps, 3; got 5"),
        (lambda: warmup_cosine(1, 3, min_factor=2), ValueError, "min_factor must be from 0 to 1"),
    ):
        with pytest.raises(error, match=text):
            call()
    assert_same_bits(optimizer.weights["w"], one)
    assert optimizer.num_steps == 0


def test_schedules() -> None:
    factors = [warmup_cosine(4, 20, min_factor=0.1)(t) for t in range(25)]
    np.testing.assert_allclose(factors[:5], [0.25, 0.5, 0.75, 1, 1])
    assert all(a >= b for a, b in itertools.pairwise(factors[4:]))
    assert factors[12] == pytest.approx(0.55)
    assert factors[20:] == [0.1] * 5
    assert warmup_cosine(0, 1)(0) == 1
    assert not is_half(np.float32)
