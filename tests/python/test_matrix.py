"""The matrix of tests: which cells there are, and that a test which computes nothing is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matrix
import numpy as np
import pytest
from element_types import HALF
from matrix import ALL, WIDE, nightly

import mha_native

ISAS = mha_native.available_isas()


def _everywhere(**_: Any) -> bool:
    return True


def _cells(everything: bool, by_day: Callable[..., bool] = _everywhere, **axes: Any) -> list[tuple[Any, ...]]:
    found = list(matrix._cells(axes, _everywhere, by_day, everything))
    marked = [cell for cell in found if cell.marks]
    assert everything or not marked
    return [cell.values for cell in (marked if everything else found)]


def test_nightly_cells_are_all_others_of_wide_types() -> None:
    axes = {"dtype": ALL, "case": nightly("abc", quick="b")}
    assert _cells(False, **axes) == [(dtype, "b") for dtype in ALL]
    assert _cells(True, **axes) == [(dtype, case) for dtype in WIDE for case in "ac"]


def test_a_condition_says_what_is_of_every_run() -> None:
    axes: dict[str, Any] = {"case": (1, 2, 3), "by_day": lambda case: case < 3}
    assert _cells(False, **axes) == [(1,), (2,)]
    assert _cells(True, **axes) == [(3,)]


def test_kernels_that_are_taken_from_another_set_are_tested_once() -> None:
    cells = _cells(False, isa=ISAS, dtype=ALL)
    assert ("baseline", np.float32) in cells or "baseline" not in ISAS
    for isa, (base, same) in matrix.EXTENDED.items():
        for dtype in same if {isa, base} <= set(ISAS) else ():
            assert (isa, dtype) not in cells
            assert not matrix.is_best_of_its_own(isa, dtype)
    assert {dtype for _, dtype in cells} == set(ALL)
    for dtype in (*WIDE, *HALF):
        assert sum(matrix.is_best_of_its_own(isa, dtype) for isa in ISAS) == 1


@pytest.mark.skipif(len(ISAS) == 1, reason="needs two instruction sets")
def test_a_test_that_computes_nothing_is_found() -> None:
    x = np.ones((2, 3))
    for isa in ISAS:
        with matrix.computing_on(isa):
            mha_native.attention_weights(x, x)
        assert mha_native.last_used_isa() == isa
        with pytest.raises(AssertionError, match="never dispatched"), matrix.computing_on(isa):
            pass
