"""Cases in 16 bits, and weights and caches in reduced precision: their counts, and that they are what runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mha_native_bench.cases.case import Case
from mha_native_bench.cases.inputs import in_dtype, make_inputs
from mha_native_bench.cases.oracle import oracle
from mha_native_bench.cases.sentence_model import Models
from mha_native_bench.contenders import Ours
from mha_native_bench.measure.rounds import check

SQUARE = Case("mha", "mha", "f32", B=2, H=2, Hk=2, Tq=6, Tk=6, D=8, E=16, causal=False)
STEP = dataclasses.replace(SQUARE, name="step", kind="step", Tq=1)
ENCODER = dataclasses.replace(SQUARE, name="encoder", kind="encoder_layer", F=24, activation="gelu")
SENTENCES = dataclasses.replace(ENCODER, name="sentences", kind="sentences", layers=2, shortest=2)

FORMATS = [{"dtype": "bf16"}, {"dtype": "f16"}, {"weights": "bf16"}, {"weights": "int8"}]
CACHES = [{"cache": "bf16"}, {"cache": "f16"}]


@pytest.mark.parametrize(("changes", "of_matrices", "of_others"), [
    ({"dtype": "bf16"}, 2, 2), ({"dtype": "f16"}, 2, 2), ({"dtype": "f64"}, 8, 8),
    ({"weights": "bf16"}, 2, 4), ({"weights": "int8"}, 1, 4),
])  # fmt: skip
def test_bytes_are_those_of_the_dtype_and_of_weights(changes: dict[str, str], of_matrices: int, of_others: int) -> None:
    layer = dataclasses.replace(ENCODER, **changes)
    others = 2 * 12 * 16 + layer.vectors_of_layer
    assert layer.least_bytes == of_matrices * layer.matrices_of_layer + of_others * others


def test_a_step_has_the_work_of_its_token_and_reads_its_cache() -> None:
    assert STEP.flops == 2 * (8 * 16 * 16 + 4 * 2 * 8 * 6)
    others = 2 * 2 * 16 + 4 * 16 * 16 + 4 * 16
    in_cache = 2 * 2 * 6 * 16
    assert STEP.least_bytes == 4 * (others + in_cache)
    assert dataclasses.replace(STEP, cache="bf16").least_bytes == 4 * others + 2 * in_cache
    assert dataclasses.replace(STEP, dtype="f64").least_bytes == 8 * (others + in_cache)


@pytest.mark.parametrize(
    ("case", "changes"),
    [(case, changes) for case in (SQUARE, STEP, ENCODER, SENTENCES) for changes in FORMATS]
    + [(STEP, changes) for changes in CACHES],
    ids=lambda given: given.name if isinstance(given, Case) else "-".join(*given.items()),
)
def test_this_library_computes_in_reduced_precision(case: Case, changes: dict[str, Any]) -> None:
    if "bf16" in changes.values():
        pytest.importorskip("ml_dtypes")
    if case.kind == "sentences":
        pytest.importorskip("safetensors")
        pytest.importorskip("tokenizers")
    reduced = dataclasses.replace(case, **changes)
    with Models(None) as models:
        inputs = make_inputs(reduced, models.directory(reduced))
        expected = oracle(reduced, inputs)
        errors = []
        for each in (reduced, case):
            programs = Ours([1]).programs(each, in_dtype(inputs, each), 1)
            [timed] = check(each, programs, expected).timed
            assert timed.error is not None
            errors.append(timed.error)
    assert errors[0] > 16 * errors[1]  # the format was not lost on the way
