"""What the rows of cases.toml cover, which of them a quick run takes, and layers that attend to a memory."""

from __future__ import annotations

import dataclasses

import pytest

from mha_native import reference
from mha_native_bench.cases.case import Case
from mha_native_bench.cases.inputs import make_inputs
from mha_native_bench.cases.load import load_cases
from mha_native_bench.cases.oracle import oracle

CROSS = Case("cross", "mha", "f32", B=2, H=2, Hk=2, Tq=3, Tk=7, D=8, E=16, causal=False)

GRID = [case for case in load_cases() if not case.extra]
DENSE = [case for case in GRID if case.kind == "sdpa"]
LAYERS = [case for case in GRID if case.kind == "mha"]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_attention_has_every_value_of_every_axis(dtype: str) -> None:
    cases = [case for case in DENSE if case.dtype == dtype]
    assert {case.Tq for case in cases} >= {1, 4, 16, 64, 128, 197, 512, 1024, 2048, 4096}
    assert {case.D for case in cases} >= {32, 64, 80, 128}
    assert {case.H // case.Hk for case in cases} >= {1, 4, 8}
    assert {case.causal for case in cases} == {False, True}
    assert {case.admitted is None for case in cases} == {case.window is None for case in cases} == {False, True}
    decoding = {case.Tk for case in cases if case.Tq == 1}
    assert min(decoding) <= 128
    assert max(decoding) >= 16384
    assert max(case.B for case in cases) >= 32


def test_layers_have_every_value_of_every_axis() -> None:
    formats = {"f32": ("f32", ""), "bf16": ("bf16", ""), "int8": ("f32", "int8")}
    cases = {name: [case for case in LAYERS if (case.dtype, case.weights) == of] for name, of in formats.items()}
    assert {case.E for case in cases["f32"]} >= {256, 384, 512, 768, 1024}
    assert {case.E for case in cases["bf16"]} >= {256, 384, 512, 768, 1024}
    assert {case.Tq for case in cases["f32"]} >= {1, 8, 16, 128, 512, 2048}
    assert {case.Tq for case in cases["bf16"]} >= {1, 8, 16, 128, 512, 2048}
    for of_format in cases.values():
        assert {case.is_cross for case in of_format} == {False, True}


def test_a_quick_run_has_something_of_everything() -> None:
    quick = [case for case in GRID if case.quick]
    assert 15 <= len(quick) <= 25
    assert {case.kind for case in quick} >= {"sdpa", "ragged", "mha", "sentences"}
    assert {case.precision for case in quick} >= {"f32", "bf16", "int8"}
    assert {case.causal for case in quick} == {case.is_cross for case in quick} == {False, True}
    assert any(case.window for case in quick)
    assert any(case.admitted for case in quick)
    assert any(case.Tq == 1 and case.Hk < case.H for case in quick)
    assert {1, 4, 8} <= {case.H // case.Hk for case in quick}
    assert {32, 64, 80, 128} <= {case.D for case in quick}


def test_quick_and_extra_are_of_a_row_alone() -> None:
    cases = {case.name: case for case in load_cases()}
    assert cases["sdpa-T512-D64-causal"].quick
    assert not cases["mask-T512-causal"].quick
    assert cases["mask-T512-all"].extra
    with pytest.raises(ValueError, match="cross"):
        dataclasses.replace(CROSS, quick=True, extra=True)


def test_a_layer_attends_to_a_memory() -> None:
    inputs = make_inputs(CROSS)
    x, memory = inputs.arrays
    assert (x.shape, memory.shape) == ((2, 3, 16), (2, 7, 16))
    expected = reference.multi_head_attention(x, memory, memory, inputs.state, CROSS.H)
    assert abs(oracle(CROSS, inputs) - expected).max() < 1e-5
    # Projections of queries and results, and of keys and values.
    assert CROSS.flops == 4 * 2 * 3 * 16 * 16 + 4 * 2 * 7 * 16 * 16 + 4 * 2 * (2 * 3 * 7) * 8
    assert CROSS.least_bytes == 4 * (2 * (2 * 3 + 7) * 16 + 4 * 16 * 16 + 4 * 16)
    assert dataclasses.replace(CROSS, Tk=3).flops == 2 * (3 * 8 * 16 * 16 + 4 * 2 * 3 * 3 * 8)
    for changes in ({"causal": True}, {"kind": "encoder_layer", "F": 8, "activation": "relu"}):
        with pytest.raises(ValueError, match="cross"):
            dataclasses.replace(CROSS, **changes)
