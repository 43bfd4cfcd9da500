"""The matrix of a test: instruction sets, element types, threads and cases, declared next to the test.

    pytestmark = matrix(dtype=ALL)  # of every test of the module that takes a `dtype`

    @matrix(case=nightly(CASES, quick=QUICK_CASES))
    def test_attention(case, isa, dtype, num_threads): ...

A test that takes `isa`, `dtype` or `num_threads` runs in the product of `DEFAULTS` and of its own axes; the closest
declaration of an axis counts. Cells with a nightly value are marked `exhaustive`, and generated only if pytest is
asked for others than the usual tests (`pytest -m exhaustive`). Types of 16 bits have no such cells: all but the
conversion of their numbers is the code of float32.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from element_types import BFLOAT16, HALF

import mha_native

WIDE = (np.float32, np.float64)
ALL = (*WIDE, *HALF)
NAMES = {np.float32: "f32", np.float64: "f64", np.float16: "f16", BFLOAT16: "bf16"}

# Element types whose kernels an instruction set takes from the one that it extends: tests/cpp/test_dispatch.cpp.
EXTENDED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "avxvnni": ("avx2", ALL),
    "avx512vnni": ("avx512", ALL),
    "avx512bf16": ("avx512vnni", WIDE),
    "amx": ("avx512bf16", (*WIDE, np.float16)),
    "amx_model": ("avx2", (*WIDE, np.float16)),
    "neondot": ("neon", ALL),
    "neonbf16": ("neondot", (*WIDE, np.float16)),
}


@dataclass(frozen=True)
class Axis:
    """The values of one parameter: those of every run, and those of nightly runs."""

    quick: tuple[Any, ...]
    nightly: tuple[Any, ...] = ()


def nightly(values: Iterable[Any], *, quick: Container[Any]) -> Axis:
    """All `values` in nightly runs; in every run those that `quick` contains."""
    values = list(values)
    return Axis(tuple(x for x in values if x in quick), tuple(x for x in values if x not in quick))


DEFAULTS: dict[str, Any] = {
    "isa": mha_native.available_isas(),
    "dtype": WIDE,
    "num_threads": nightly((1, 2, 3), quick=(3,)),
}


def matrix(
    *, where: Callable[..., bool] | None = None, by_day: Callable[..., bool] | None = None, **axes: Any
) -> pytest.MarkDecorator:
    """Run a test in the product of `axes`, each an `Axis` or a collection of values.

    `where` takes the parameters of a cell by name and returns whether the cell exists, `by_day` whether it belongs to
    every run.
    """
    conditions = {name: f for name, f in (("where", where), ("by_day", by_day)) if f}
    return pytest.mark.matrix(**conditions, **axes)


def is_own(isa: str, dtype: Any) -> bool:
    """Whether an instruction set has kernels of its own for `dtype`, on this machine."""
    base, same = EXTENDED.get(isa, ("", ()))
    return base not in DEFAULTS["isa"] or dtype not in same


def is_best_of_its_own(isa: str, dtype: Any) -> bool:
    """Whether an instruction set is the best of those with kernels of their own for `dtype`; not a model of one."""
    return isa == [other for other in DEFAULTS["isa"] if is_own(other, dtype) and other != "amx_model"][-1]


@contextlib.contextmanager
def computing_on(isa: str) -> Iterator[None]:
    """Compute with an instruction set. AssertionError if nothing did by the end."""
    others = [name for name in DEFAULTS["isa"] if name != isa]
    if others:  # an earlier call must not stand for one in here
        with mha_native.use_isa(others[0]):
            mha_native.attention_weights(np.zeros((1, 1)), np.zeros((1, 1)))
    with mha_native.use_isa(isa):
        yield
        assert mha_native.last_used_isa() == isa, "the test never dispatched to the instruction set"


def generate(metafunc: pytest.Metafunc, everything: bool) -> None:
    """Parametrize a test by its matrix; with its nightly cells if `everything`."""
    marks = list(metafunc.definition.iter_markers("matrix"))
    axes = dict(DEFAULTS)
    for mark in reversed(marks):  # of the module first
        axes |= mark.kwargs
    where, by_day = (axes.pop(name, lambda **_: True) for name in ("where", "by_day"))
    if unknown := axes.keys() - DEFAULTS.keys() - set(metafunc.fixturenames):
        raise pytest.UsageError(f"{metafunc.definition.nodeid} takes no {sorted(unknown)}")
    given = {name for mark in metafunc.definition.iter_markers("parametrize") for name in _names(mark.args[0])}
    names = [name for name in axes if name in metafunc.fixturenames and name not in given]
    if names:
        cells = list(_cells({name: axes[name] for name in names}, where, by_day, everything))
        assert cells, f"{metafunc.definition.nodeid} has no cell"
        metafunc.parametrize(names, cells, indirect=["isa"] if "isa" in names else False)


def _cells(
    axes: dict[str, Any], where: Callable[..., bool], by_day: Callable[..., bool], everything: bool
) -> Iterator[Any]:
    full = [axis if isinstance(axis, Axis) else Axis(tuple(axis)) for axis in axes.values()]
    choices = [[(x, True) for x in axis.quick] + [(x, False) for x in axis.nightly] * everything for axis in full]
    for chosen in itertools.product(*choices):
        cell = {name: value for name, (value, _) in zip(axes, chosen, strict=True)}
        if not is_own(cell.get("isa", ""), cell.get("dtype")) or not where(**cell):
            continue
        is_quick = all(quick for _, quick in chosen) and by_day(**cell)
        if is_quick or (everything and cell.get("dtype") not in HALF):
            marks = () if is_quick else pytest.mark.exhaustive
            yield pytest.param(*cell.values(), id="-".join(itertools.starmap(_id, cell.items())), marks=marks)


def _id(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"{name}={value}"
    if callable(value):
        return NAMES.get(value) or str(value.__name__).strip("_")
    return str(value)


def _names(argument: str | Iterable[str]) -> list[str]:
    return [name.strip() for name in argument.split(",")] if isinstance(argument, str) else list(argument)
