"""No less accurate than the unfused float32 computation: matmul, softmax, matmul, as a user would write it in NumPy.

Which of two honest computations is closer to the truth in one element is luck, and all elements of a row share the
errors of its weights. So the typical error of a case is the median over many rows of the largest error of a row. The
goal for the largest error of all is judged over all cases, by its mean.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import textbook
from cases import CASES, Case, make_call
from matrix import matrix

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


def _errors(case: Case) -> tuple[np.ndarray, np.ndarray, float]:
    """Our errors beyond what is lost, the unfused errors [draws, B, H, Tq, Dv], and the largest result."""
    ours, unfused, largest = [], [], 0.0
    for i in range(max(3, -(-ROWS // (case.B * case.H * case.Tq)))):
        call = make_call(dataclasses.replace(case, name=f"{case.name}#{i}"), np.float32)
        exact = reference.scaled_dot_product_attention(*call.arrays, **call.options)
        unfused.append(np.abs(textbook.attention(*call.arrays, call.options)[0] - exact))
        ours.append(np.abs(mha_native.scaled_dot_product_attention(*call.arrays, **call.options) - exact))
        largest = max(largest, np.abs(exact).max())
    return np.maximum(np.array(ours) - case.keys * LOST, 0), np.array(unfused), largest


def _typical(errors: np.ndarray) -> float:
    return float(np.median(errors.max(-1)))


@matrix(dtype=(np.float32,))
def test_errors_of_all_cases(isa: str, dtype: Any) -> None:
    errors = {case: _errors(case) for case in CASES}
    typical = {case: (_typical(ours), _typical(unfused)) for case, (ours, unfused, _) in errors.items()}
    assert {case.name: pair for case, pair in typical.items() if not pair[0] <= CASE_LIMIT * pair[1]} == {}

    ratios = [ours / unfused for ours, unfused in typical.values() if ours > 0 and unfused > 0]
    assert len(ratios) > 0.9 * len(CASES)
    mean = float(np.exp(np.mean(np.log(ratios))))
    assert mean <= TYPICAL_LIMIT, f"typical errors: {mean:.3f} times the unfused error"

    scaled = [(ours.max() / most, unfused.max() / most) for ours, unfused, most in errors.values() if most > 0]
    ours, unfused = np.mean(scaled, 0)
    assert ours <= unfused, f"mean of the largest errors {ours:.3g}, unfused {unfused:.3g}"
