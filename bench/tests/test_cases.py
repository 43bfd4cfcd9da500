"""Cases: exact counts of work, the rules of cases.toml, inputs, padding and models."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mha_native_bench.cases.blocks import random_blocks, root_mean_squares
from mha_native_bench.cases.case import BLOCKED, Case
from mha_native_bench.cases.inputs import copies, make_inputs
from mha_native_bench.cases.load import load_cases, plain_case
from mha_native_bench.cases.oracle import largest_error, oracle, tolerance
from mha_native_bench.cases.padding import padded, padded_pairs, padded_texts, unpadded
from mha_native_bench.cases.sentence_model import Models
from mha_native_bench.contenders import Ours
from mha_native_bench.contenders.yardsticks.against import Against
from mha_native_bench.machine import last_cache_bytes
from mha_native_bench.measure.rounds import check

SENTENCES = Case(
    "sentences", "sentences", "f32", B=3, H=2, Hk=2, Tq=6, Tk=6, D=8, E=16, causal=False,
    F=24, activation="gelu", layers=2, shortest=2,
)  # fmt: skip
SMALL = Case("small", "sdpa", "f32", B=1, H=4, Hk=2, Tq=5, Tk=7, D=8, E=0, causal=True)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 5), (3, 7), (7, 3), (1, 9)])
def test_visible_pairs_are_counted_one_by_one(queries: int, keys: int) -> None:
    causal = dataclasses.replace(SMALL, Tq=queries, Tk=keys)
    assert causal.visible_pairs == np.tri(queries, keys).sum()
    assert dataclasses.replace(causal, causal=False).visible_pairs == queries * keys


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, (2, 0), (-1, 1), (1, -1)])
@pytest.mark.parametrize("admitted", [None, 4, 7])
def test_masked_pairs_are_counted_one_by_one(
    causal: bool, window: tuple[int, int] | None, admitted: int | None
) -> None:
    case = dataclasses.replace(SMALL, B=2, causal=causal, window=window, admitted=admitted)
    left, right = (case.Tk if side < 0 else side for side in window or (-1, -1))
    pairs = [
        (i, j)
        for i in range(case.Tq)
        for j in range(case.Tk)
        if i - left <= j <= i + right and (j <= i or not causal) and (admitted is None or j < admitted)
    ]
    assert case.visible_pairs == 2 * len(pairs)
    assert [*zip(*np.nonzero(case.visible(case.Tq, case.Tk)), strict=True)] == pairs


def test_a_ragged_batch_has_the_pairs_of_its_sequences() -> None:
    ragged = dataclasses.replace(SMALL, kind="ragged", B=3, Tk=5, shortest=1)
    assert sorted(ragged.lengths) == [1, 3, 5]
    assert ragged.visible_pairs == sum(np.tri(n).sum() for n in (1, 3, 5))
    assert dataclasses.replace(ragged, causal=False).flops == 4 * 4 * 8 * (1 + 9 + 25)
    assert ragged.least_bytes == 4 * 2 * 9 * 8 * (4 + 2)
    assert padded_pairs(dataclasses.replace(ragged, causal=False)) == 5 * (1 + 3 + 5)


def test_padding_and_back() -> None:
    ragged = dataclasses.replace(SMALL, kind="ragged", B=3, Tk=5, shortest=1)
    rows = make_inputs(ragged).arrays[0]
    dense = padded(ragged, rows)
    assert dense.shape == (3, 4, 5, 8)
    assert np.count_nonzero(dense) == rows.size
    np.testing.assert_array_equal(unpadded(ragged, dense), rows)


def test_an_encoder_has_the_work_of_its_layers() -> None:
    sequences = SENTENCES.lengths.tolist()
    assert sorted(sequences) == [2, 4, 6]
    products = 12 * 2 * (4 * 16 * 16 + 2 * 16 * 24)  # of 12 tokens
    assert SENTENCES.flops == 2 * (products + 4 * 2 * 8 * (4 + 16 + 36))
    layer = dataclasses.replace(SENTENCES, kind="encoder_layer", layers=1, B=2)
    assert layer.flops == products + 2 * 4 * 2 * 8 * 36
    state = make_inputs(layer).state
    assert layer.matrices_of_layer + layer.vectors_of_layer == sum(array.size for array in state.values())
    assert layer.matrices_of_layer == sum(array.size for array in state.values() if array.ndim == 2)
    assert layer.least_bytes == 4 * (2 * 12 * 16 + layer.matrices_of_layer + layer.vectors_of_layer)


def test_flops() -> None:
    cases = {case.name: case for case in load_cases()}
    assert cases["sdpa-T2048-D64"].flops == 2 * 2 * 8 * 2048 * 2048 * 64
    assert cases["sdpa-T512-D64-causal"].flops == 2 * 2 * 8 * (512 * 513 // 2) * 64
    assert cases["mha-T128-E512"].flops == 2 * 128 * 512 * (4 * 512) + 2 * 2 * 8 * 128 * 128 * 64


def test_rows_that_make_no_sense_are_refused() -> None:
    for changes in (
        {"kind": "mhsa"},
        {"dtype": "f8"},
        {"weights": "int8"},
        {"cache": "bf16"},
        {"kind": "step", "E": 32, "Hk": 4},
        {"kind": "step", "E": 32, "Hk": 4, "Tq": 1, "causal": False, "dtype": "bf16", "cache": "f16"},
        {"kind": "mha", "E": 32, "Hk": 4, "Tk": 5, "weights": "int2"},
        {"kind": "mha", "E": 32, "Hk": 4, "Tk": 5, "dtype": "bf16", "weights": "int8"},
        {"Hk": 3},
        {"Tq": 0},
        {"kind": "mha", "E": 24},
        {"kind": "ragged", "Tk": 5},
        {"kind": "ragged", "Tk": 5, "shortest": 1, "softcap": 1.0},
        {"kind": "mha", "E": 32, "Hk": 4, "Tk": 5, "cold": True},
        {"F": 8},
        {"layers": 2},
        {"kind": "encoder_layer", "E": 32, "Hk": 4, "Tk": 5},
        {"kind": "encoder_layer", "E": 32, "Hk": 4, "Tk": 5, "F": 8, "activation": "tanh"},
        {"admitted": 0},
        {"admitted": 8},
        {"scores": 0.0},
        {"kind": "ragged", "Tk": 5, "shortest": 1, "values": 2.0},
        {"kind": "linear", "E": 8, "H": 1, "Hk": 1, "causal": False},
        {"kind": "mha", "E": 32, "Hk": 4, "Tk": 5, "weights": "q4_0"},
        {"kind": "maxsim", "causal": False},
        {"kind": "maxsim", "H": 1, "Hk": 1},
        {"kind": "maxsim", "H": 1, "Hk": 1, "causal": False, "cache": "bf16"},
        {"kind": "maxsim", "H": 1, "Hk": 1, "causal": False, "softcap": 2.0},
    ):
        with pytest.raises(ValueError, match="small"):
            dataclasses.replace(SMALL, **changes)


def test_late_interaction_compares_all_tokens() -> None:
    case = Case("late", "maxsim", "f32", B=40, H=1, Hk=1, Tq=6, Tk=9, D=32, E=0, causal=False)
    assert case.is_of_python
    assert case.flops == 40 * 6 * 9 * 2 * 32
    assert case.least_bytes == 4 * (40 * 9 * 32 + 6 * 32 + 40)
    int8 = dataclasses.replace(case, cache="int8")
    assert int8.least_bytes == (40 * 9 + 6) * (32 + 4) + 4 * 40
    assert (case.precision, int8.precision) == ("f32", "int8")
    inputs = make_inputs(case)
    query, documents = inputs.arrays
    expected = oracle(case, inputs)
    np.testing.assert_allclose(expected, (documents @ query.T).max(1).sum(1), rtol=1e-5)
    for of_format in (case, int8):
        check(of_format, Ours([2]).programs(of_format, inputs, 2), expected)
        for wrong in ((documents[::-1] @ query.T).max(1).sum(1), (documents @ query.T)[:, :-2].max(1).sum(1)):
            assert largest_error(wrong, expected) > 2 * tolerance(of_format, expected)


def test_a_linear_map_reads_its_weights_in_their_format() -> None:
    linear = Case(
        "linear", "linear", "f32", B=1, H=1, Hk=1, Tq=2, Tk=2, D=256, E=256, causal=False, F=8, weights="q4_k"
    )
    assert linear.flops == 2 * 2 * 256 * 8
    assert linear.streamed_bytes == linear.weight_bytes == 8 * 144
    assert linear.least_bytes == 2 * (256 + 8) * 4 + 8 * 144
    for name in BLOCKED:
        case = dataclasses.replace(linear, weights=name)
        assert case.weight_bytes == make_inputs(case).blocks["weight"].nbytes
    cold = dataclasses.replace(linear, cold=True)
    assert len(copies(cold, make_inputs(cold))) * cold.weight_bytes >= 4 * last_cache_bytes()


@pytest.mark.parametrize("dtype", BLOCKED)
def test_random_blocks_have_rows_of_the_size_asked_for(dtype: str) -> None:
    rng = np.random.default_rng(0)
    like = rng.standard_normal((5, 4096), np.float32) * np.array([[1], [0.5], [0.1], [0.01], [2]], np.float32)
    found = random_blocks(dtype, like, rng).dequantize()
    ratios = root_mean_squares(found) / root_mean_squares(like)
    assert np.all(abs(np.log2(ratios)) < (0.51 if dtype == "mxfp4" else 0.02))  # whose scales are powers of 2
    assert abs(np.mean(found / root_mean_squares(found)[:, None])) < 0.2


def test_a_case_goes_against_one_above_of_its_sizes(tmp_path: Path) -> None:
    file = tmp_path / "cases.toml"

    def load(*rows: str) -> list[Case]:
        file.write_text("case = [" + ", ".join(f"{{ {row} }}" for row in rows) + "]", encoding="utf-8")
        return load_cases(file)

    plain = 'name = "plain", kind = "sdpa", dtype = "f32", B = 1, H = 1, Tq = 3, D = 8, causal = true'
    capped = 'name = "capped", against = "plain", softcap = 2.0'
    first, second = load(plain, capped)
    assert second == dataclasses.replace(first, name="capped", against="plain", softcap=2.0)
    for rows in ([capped, plain], [capped], [plain, plain], [plain, capped + ", Tq = 4"]):
        with pytest.raises(ValueError, match="must"):
            load(*rows)
    for case in load_cases():
        if case.against and not case.cold:
            plain = plain_case(case)
            assert dataclasses.replace(plain, name=case.name, against=plain.name, quick=case.quick) != case


def test_scores_and_values_have_the_deviation_that_a_case_says() -> None:
    query, key, value = make_inputs(dataclasses.replace(SMALL, Tq=200, Tk=200, D=64, scores=16.0, values=1e-39)).arrays
    assert 14 < (query[0, 0] @ key[0, 0].T / 8).std() < 18
    assert 0.9e-39 < value.astype(np.float64).std() < 1.1e-39


def test_a_case_of_other_numbers_goes_against_numbers_of_their_own() -> None:
    peaked = next(case for case in load_cases() if case.name == "peaked-T512-32")
    inputs = make_inputs(peaked)
    (program,) = Against([1]).programs(peaked, inputs, 1)
    plain = plain_case(peaked)
    assert program.variant == plain.name
    np.testing.assert_array_equal(program.run(), Ours([1]).programs(plain, make_inputs(plain), 1)[0].run())


def test_cold_arrays_are_the_same_in_other_memory() -> None:
    inputs = make_inputs(SMALL)
    assert copies(SMALL, inputs) == [inputs]
    large = dataclasses.replace(SMALL, Tk=4096, D=64, cold=True)
    inputs = make_inputs(large)
    cold = copies(large, inputs)
    keys = {one.arrays[1].ctypes.data: one.arrays[1] for one in cold}
    assert len(keys) == len(cold)
    assert sum(array.nbytes for one in cold for array in one.arrays) >= 4 * last_cache_bytes()
    for key in keys.values():
        np.testing.assert_array_equal(key, inputs.arrays[1])


@pytest.fixture
def models() -> Iterator[Models]:
    pytest.importorskip("safetensors")
    pytest.importorskip("tokenizers")
    with Models(None) as written:
        yield written


def test_a_model_is_written_once_and_checked(models: Models) -> None:
    directory = models.directory(SENTENCES)
    assert directory is not None
    assert models.directory(dataclasses.replace(SENTENCES, B=1)) == directory
    assert models.directory(SMALL) is None
    given = Models(directory)
    assert given.directory(SENTENCES) == directory
    with pytest.raises(ValueError, match="'num_hidden_layers': 3"):
        given.directory(dataclasses.replace(SENTENCES, layers=3))


def test_this_library_embeds_sentences(models: Models) -> None:
    inputs = make_inputs(SENTENCES, models.directory(SENTENCES))
    programs = Ours([1, 2]).programs(SENTENCES, inputs, 1) + Ours([1, 2]).programs(SENTENCES, inputs, 2)
    assert len(check(SENTENCES, programs, oracle(SENTENCES, inputs)).timed) == 2


def test_padding_of_texts() -> None:
    ids, mask = padded_texts([np.array([7, 8, 9]), np.array([5])])
    assert ids.tolist() == [[7, 8, 9], [5, 0, 0]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]
