"""Each contender computes what the oracle does, in all its programs, or says in few words what it cannot compute."""

from __future__ import annotations

import dataclasses
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from mha_native_bench.cases.case import BLOCKED, Case
from mha_native_bench.cases.inputs import in_dtype, make_inputs
from mha_native_bench.cases.load import load_cases, plain_case
from mha_native_bench.cases.oracle import largest_error, oracle, tolerance
from mha_native_bench.cases.sentence_model import write_model
from mha_native_bench.contenders import PEERS, Contender, Program, in_rotation, make_contender
from mha_native_bench.contenders.contender import CannotCompute, reason_to_skip
from mha_native_bench.contenders.peers.numpy_unfused import attention

ATTENTION = Case("attention", "sdpa", "f32", B=1, H=4, Hk=4, Tq=5, Tk=5, D=16, E=0, causal=False)
GROUPED = dataclasses.replace(ATTENTION, name="grouped", Hk=2, Tk=7, D=8, causal=True)
LAYER = dataclasses.replace(ATTENTION, name="layer", kind="mha", H=2, Hk=2, E=32)
SENTENCES = dataclasses.replace(
    LAYER, name="sentences", kind="sentences", B=3, Tq=6, Tk=6, F=24, activation="gelu", layers=2, shortest=2
)
TRAINING = dataclasses.replace(LAYER, name="training", kind="training", B=2, F=24, activation="gelu", layers=2)

CASES = [
    *(dataclasses.replace(ATTENTION, causal=causal, Hk=heads) for causal in (False, True) for heads in (1, 2, 4)),
    *(dataclasses.replace(ATTENTION, Tk=keys, causal=causal) for keys in (3, 7) for causal in (False, True)),
    *(dataclasses.replace(ATTENTION, Tq=1, B=2, Tk=7, Hk=heads, admitted=n) for heads in (2, 4) for n in (None, 4)),
    *(dataclasses.replace(ATTENTION, causal=causal, admitted=3, B=2) for causal in (False, True)),
    dataclasses.replace(ATTENTION, window=(1, 2)),
    dataclasses.replace(ATTENTION, window=(2, 0), causal=True, Hk=2),
    dataclasses.replace(ATTENTION, softcap=2.0, causal=True, Hk=2),
    *(dataclasses.replace(ATTENTION, alibi=True, causal=causal, Hk=heads) for causal, heads in ((False, 4), (True, 2))),
    dataclasses.replace(ATTENTION, kind="ragged", B=3, shortest=1),
    dataclasses.replace(ATTENTION, kind="ragged", B=3, shortest=1, causal=True, Hk=2),
    *(dataclasses.replace(LAYER, B=2, causal=causal) for causal in (False, True)),
    *(dataclasses.replace(LAYER, B=2, Tq=queries, Tk=7) for queries in (1, 3)),
    dataclasses.replace(LAYER, kind="step", B=2, Tq=1),
    *(dataclasses.replace(LAYER, kind="encoder_layer", F=24, activation=name) for name in ("relu", "gelu")),
    TRAINING,
    SENTENCES,
    dataclasses.replace(SENTENCES, shortest=6),
]
TEXTS = dataclasses.replace(SENTENCES, name="texts", Tq=9, Tk=9, shortest=3, texts=True)
PAIRS = dataclasses.replace(TEXTS, name="pairs", Tq=20, Tk=20, shortest=12, pairs=True)
SPARSE = dataclasses.replace(TEXTS, name="sparse", V=30522, sparse=True)
MODERN = dataclasses.replace(
    SENTENCES, name="modernbert", family="modernbert", Tq=9, Tk=9, F=32, layers=4, shortest=9, window=(2, 2)
)
CLIP = dataclasses.replace(
    SENTENCES, name="clip_text", family="clip_text", causal=True, activation="quick_gelu", shortest=6
)
DECODER = Case(
    "decoder", "decoder", "f32", B=1, H=4, Hk=2, Tq=1, Tk=9, D=16, E=64, causal=False,
    F=64, activation="silu", layers=2, V=50,
)  # fmt: skip
CACHED = dataclasses.replace(GROUPED, name="cached", kind="cached", B=3, Tq=1, Tk=100, D=32, causal=False, prefix=70)
CASES += [dataclasses.replace(CACHED, pages=pages) for pages in ("", "in order", "shuffled", "shared")]
CASES += [
    dataclasses.replace(CACHED, Tq=100, pages="in order"),
    dataclasses.replace(ATTENTION, Tq=200, Tk=300, blocks=2),
]
BACKWARD = {
    "attention_backward": dataclasses.replace(ATTENTION, kind="attention_backward", Hk=ATTENTION.H),
    "linear_backward": dataclasses.replace(ATTENTION, kind="linear_backward", H=1, Hk=1, E=20, F=30, causal=False),
}
EXPERTS = Case(
    "experts", "experts", "f32", B=2, H=1, Hk=1, Tq=5, Tk=5, D=32, E=32, causal=False, F=24, X=7, used=3,
)  # fmt: skip
LINEAR = dataclasses.replace(EXPERTS, name="linear", kind="linear", E=256, D=256, F=36, X=0, used=0)
CASES += [LINEAR, dataclasses.replace(LINEAR, Tq=1, Tk=1)]
LATE = Case("late", "maxsim", "f32", B=5, H=1, Hk=1, Tq=6, Tk=9, D=32, E=0, causal=False)
CASES += [LATE, dataclasses.replace(LATE, Tq=20)]
CASES += [*BACKWARD.values(), EXPERTS, dataclasses.replace(EXPERTS, Tq=1, Tk=1)]
CASES += [TEXTS, dataclasses.replace(TEXTS, B=1, shortest=9), PAIRS, SPARSE]
CASES += [MODERN, dataclasses.replace(MODERN, shortest=4), *(dataclasses.replace(DECODER, Tq=n) for n in (1, 4, 9))]
CASES += [CLIP, *(dataclasses.replace(DECODER, B=2, Tq=n) for n in (1, 4))]
WIDE = dataclasses.replace(DECODER, D=64, E=256, F=256, Tk=4)  # of as many features as a block
REDUCED = [
    dataclasses.replace(case, **changes)
    for changes in ({"dtype": "bf16"}, {"dtype": "f16"}, {"weights": "bf16"}, {"weights": "int8"})
    for case in CASES
    if case.kind != "training" and not case.sparse  # whose head is in float32
    if ("weights" if case.kind == "decoder" else "dtype") in changes or (case.is_layer and case.kind != "decoder")
    if not case.changes_scores and (case.window is None or case.family)
] + [dataclasses.replace(CACHED, cache="int8", pages=pages) for pages in ("", "shared")]
REDUCED += [dataclasses.replace(LATE, cache="int8")]
REDUCED += [dataclasses.replace(LINEAR, weights=weights) for weights in ("int4", *BLOCKED)]
REDUCED += [dataclasses.replace(WIDE, weights=weights, Tq=n) for weights in ("int4", *BLOCKED) for n in (1, 4)]

# Kinds and dtypes of cases of which each peer must compute some.
KNOWN = {
    "numpy": {"sdpa f32", "cached f32", "ragged f32", "mha f32", "step f32"},
    "torch": {
        f"{kind} {dtype}"
        for kind in ("sdpa", "cached", "ragged", "mha", "step", "encoder_layer", "maxsim", *BACKWARD)
        for dtype in ("f32", "bf16")
    }
    | {"training f32"},
    "onnxruntime": {
        "sdpa f32", "sdpa f16", "cached f32", "ragged f32", "mha f32", "step f32", "encoder_layer f32", "sentences f32",
        "modernbert f32", "clip_text f32", "decoder f32", "linear f32",
    },
    "transformers": {
        "sentences f32", "sentences bf16", "modernbert f32", "modernbert bf16", "clip_text f32", "clip_text bf16",
        "decoder f32", "experts f32",
    },
    "sentence-transformers": {"texts f32", "texts bf16", "pairs f32", "pairs bf16", "sparse f32"},
    "openvino": {
        f"{kind} {dtype}"
        for kind in ("sdpa", "cached", "mha", "encoder_layer", "sentences", "modernbert", "clip_text")
        for dtype in ("f32", "bf16")
    }
    | {"decoder f32", "linear f32"},
    "llama.cpp": {"decoder f32"},
}  # fmt: skip


def model_of(case: Case) -> Case:
    """The case whose model this one runs on."""
    of_family = {"modernbert": MODERN, "clip_text": CLIP}.get(case.family, SENTENCES)
    return PAIRS if case.pairs else SPARSE if case.sparse else of_family


@pytest.fixture(params=["mha_native", *PEERS])
def contender(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Contender:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # else NumPy is left out where threadpoolctl is missing
    try:
        return make_contender(request.param, [1])
    except ImportError as error:
        pytest.skip(str(error))


@pytest.mark.filterwarnings("ignore:`torch:DeprecationWarning")  # from imports of torch.compile
def test_contenders_compute_or_say_why_not(contender: Contender, tmp_path: Path) -> None:
    if contender.name == "torch" and shutil.which("g++") is None:
        pytest.skip("torch compiles some forms with a C++ compiler")
    if find_spec("safetensors") and find_spec("tokenizers"):
        for case in (SENTENCES, PAIRS, SPARSE, MODERN, CLIP):
            (tmp_path / model_of(case).name).mkdir()
            write_model(case, tmp_path / model_of(case).name)
    computed, reasons = set(), []
    for case in CASES + REDUCED:
        needs_model = case.kind == "sentences" and not any(tmp_path.iterdir())
        if needs_model or (case.dtype == "bf16" and not find_spec("ml_dtypes")):
            continue
        inputs = make_inputs(case, tmp_path / model_of(case).name)
        before = [array.copy() for array in inputs.arrays]
        try:
            if reason_to_skip(case, contender):
                continue  # which a run says itself
            programs = contender.programs(case, inputs, 1)
        except CannotCompute as why:
            reasons.append(str(why))
            continue
        expected = oracle(case, inputs)
        bound = tolerance(case, expected)
        assert programs
        assert len({program.variant for program in programs}) == len(programs)
        for program in programs:
            with program.turn():
                error = largest_error(program.to_array(program.run()), expected)
            assert error <= bound, (program.label, case)
        for array, same in zip(inputs.arrays, before, strict=True):
            np.testing.assert_array_equal(array, same)
        what = (
            "sparse" if case.sparse else "pairs" if case.pairs else "texts" if case.texts else case.family or case.kind
        )
        computed.add(f"{what} {case.dtype}")
    assert all(0 < len(reason) < 50 for reason in reasons)
    known = KNOWN.get(contender.name, set().union(*KNOWN.values()))
    unknown = [
        *([] if find_spec("ml_dtypes") else ["bf16"]),
        *([] if any(tmp_path.iterdir()) else ["sentences", "texts", "pairs", "sparse", "modernbert", "clip_text"]),
    ]
    assert computed >= {one for one in known if not any(word in one for word in unknown)}


def test_numpy_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    contender = make_contender("numpy", [1])
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    for changes, reason in (({"dtype": "f16"}, "no BLAS of 16 bits"), ({"weights": "int8"}, "no BLAS of int8 weights")):
        case = dataclasses.replace(LAYER, **changes)
        with pytest.raises(CannotCompute, match=reason):
            contender.programs(case, make_inputs(case), 1)


def test_a_rotation_runs_one_after_another() -> None:
    programs = [Program("a", 1, n.__int__) for n in range(3)]
    rotation = in_rotation(programs)
    assert [rotation.run() for _ in range(5)] == [0, 1, 2, 0, 1]
    assert in_rotation(programs[:1]) is programs[0]


def test_a_case_is_timed_beside_the_one_it_goes_against() -> None:
    case = next(case for case in load_cases() if case.name == "mask-T512-half")
    plain = plain_case(case)
    inputs = make_inputs(case)
    [program] = make_contender("against", [1]).programs(case, inputs, 1)
    np.testing.assert_allclose(program.run(), oracle(plain, inputs), atol=1e-5)
    assert make_contender("against", [1]).programs(plain, inputs, 1) == []


def test_decoding_is_held_against_reading() -> None:
    case = dataclasses.replace(GROUPED, Tq=1, causal=False)
    inputs = make_inputs(case)
    [program] = make_contender("read", [1]).programs(case, inputs, 1)
    bits = [array.view(np.uint64).ravel() for array in inputs.arrays[1:]]
    assert program.run() == np.bitwise_xor.reduce(np.concatenate(bits))
    if find_spec("ml_dtypes"):  # its arrays do not export their type by the buffer protocol
        narrow = in_dtype(inputs, dataclasses.replace(case, dtype="bf16"))
        bits = [array.view(np.uint64).ravel() for array in narrow.arrays[1:]]
        [program] = make_contender("read", [1]).programs(case, narrow, 1)
        assert program.run() == np.bitwise_xor.reduce(np.concatenate(bits))
    assert make_contender("read", [1]).programs(GROUPED, make_inputs(GROUPED), 1) == []


def test_numpy_groups_heads() -> None:
    inputs = make_inputs(GROUPED)
    query, key, value = inputs.arrays
    out = attention(query, key, value, ~np.tri(GROUPED.Tq, GROUPED.Tk, dtype=bool))
    np.testing.assert_allclose(out, oracle(GROUPED, inputs), atol=1e-5)
