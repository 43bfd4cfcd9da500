"""No less accurate than the unfused float32 computation: matmul, softmax, matmul, as a user would write it in NumPy.

Which of two honest computations is closer to the truth in one element is luck, and all elements of a row share the
errors of its weights. So the typical error of a case is the median over many rows of the largest error of a row. The
goal for the largest error of all is judged over all cases, by its mean.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import textbook
from cases import CASES, Call, Case, make_call

import mha_native
from mha_native import reference

ROWS = 120  # for each case, in as many draws as it takes

# For a single query NumPy calls dot products that keep dozens of partial sums, where a lane of ours has one chain: that
# makes up to 1.8 at the lengths of the list. An error that grows with the length of a sum goes beyond.
CASE_LIMIT = 2.0

# Over all cases luck is down to 2 %. What is left is the order of sums again, and in the baseline the rounding that a
# fused multiply-add saves.
TYPICAL_LIMIT = 1.06

# What the factors of a product and the product itself may lose: numbers below the smallest normal one count as 0.
LOST = 2 * float(np.finfo(np.float32).tiny)


@functools.cache
def _draws(case: Case) -> list[tuple[Call, np.ndarray, np.ndarray]]:
    """(call, float64 result, errors of the unfused computation) for each draw of a case."""
    draws = []
    for i in range(max(3, -(-ROWS // (case.B * case.H * case.Tq)))):
        call = make_call(dataclasses.replace(case, name=f"{case.name}#{i}"), np.float32)
        exact = reference.scaled_dot_product_attention(*call.arrays, **call.options)
        draws.append((call, exact, np.abs(textbook.attention(*call.arrays, call.options)[0] - exact)))
    return draws


def _errors(case: Case) -> tuple[np.ndarray, np.ndarray, float]:
    """Our errors beyond what is lost, the unfused errors [draws, B, H, Tq, Dv], and the largest result."""
    draws = _draws(case)
    ours = [np.abs(mha_native.scaled_dot_product_attention(*c.arrays, **c.options) - exact) for c, exact, _ in draws]
    beyond = np.maximum(np.array(ours) - case.keys * LOST, 0)
    return beyond, np.array([unfused for _, _, unfused in draws]), max(np.abs(d[1]).max() for d in draws)


def _typical(errors: np.ndarray) -> float:
    return float(np.median(errors.max(-1)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_case(case: Case, isa: str) -> None:
    ours, unfused = (_typical(errors) for errors in _errors(case)[:2])
    assert ours <= CASE_LIMIT * unfused, f"{ours / unfused:.2f} times the unfused error {unfused:.3g}"


def test_typical_errors_over_all_cases(isa: str) -> None:
    typical = [[_typical(errors) for errors in _errors(case)[:2]] for case in CASES]
    ratios = [ours / unfused for ours, unfused in typical if ours > 0 and unfused > 0]
    assert len(ratios) > 0.9 * len(CASES)
    mean = float(np.exp(np.mean(np.log(ratios))))
    assert mean <= TYPICAL_LIMIT, f"{mean:.3f} times the unfused error"


def test_largest_errors_over_all_cases(isa: str) -> None:
    errors = [_errors(case) for case in CASES]
    scaled = np.array([(ours.max() / most, unfused.max() / most) for ours, unfused, most in errors if most > 0])
    ours, unfused = scaled.mean(0)
    assert ours <= unfused, f"mean of the largest errors {ours:.3g}, unfused {unfused:.3g}"
