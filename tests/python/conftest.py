"""The axes of the numeric tests as fixtures: instruction set, element type, threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# The oracle computes on one thread. With more, NumPy's BLAS spins while it waits for them, and on a busy machine that
# turns milliseconds into seconds. It reads this when NumPy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The name of a directory that is missing is not looked up on the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Packages that this one plugs into send nothing about the tests: what Haystack reads as it is imported, and LangChain.
os.environ |= {"HAYSTACK_TELEMETRY_ENABLED": "False", "LANGSMITH_TRACING": "false"}

# Several processes run tests at once. The idle threads of one must not spin on processors that the others compute on:
# with spinning the suite takes twice as much processor time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import pretrained
from cases import HALF_CASES
from element_types import BFLOAT16, HALF

import mha_native


@pytest.fixture(params=mha_native.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set of this machine in turn. A test that never computed on it fails."""
    with mha_native.use_isa(request.param):
        yield request.param
        assert mha_native.last_used_isa() == request.param, "the test never dispatched to the instruction set"


NAMES = {np.float32: "f32", np.float64: "f64", np.float16: "f16", BFLOAT16: "bf16"}

# What attention takes beside float32 and float64, and what layers do.
TAKE_HALF = {
    "test_attention", "test_determinism", "test_kv_cache", "test_merging", "test_one_row", "test_onnx_attention",
    "test_poison", "test_rulings", "test_score_options", "test_score_stages", "test_statistics", "test_tolerance",
    "test_varlen", "test_views",
}  # fmt: skip
LAYERS_TAKE_HALF = {
    "test_added_keys", "test_layer_cache", "test_layer_options", "test_layer_state", "test_multi_head_attention",
    "test_positions", "test_qk_norm", "test_ragged_cache", "test_rotary", "test_transformer_decoder",
    "test_transformer_encoder", "test_transformer_rows", "test_transformer_state", "test_transformer_tolerance",
    "test_varlen_layer",
}  # fmt: skip

# A part of the long lists of parameters: every option and every kernel. The types of 16 bits take no more, since all
# else is the code of float32; in float32 and float64 the rest is marked `exhaustive`.
PART: dict[str, Callable[[Any], bool]] = {
    "case": lambda case: case in HALF_CASES,
    "num_threads": lambda count: count == 3,
    "poison": np.isnan,
    "position": lambda position: position in (0, 31, 63, 64, 193, 398),
    "seeds": lambda seeds: seeds[0] == 0,
}
FEW_LAYERS = {
    "usual", "one feature", "wide", "grouped", "everything", "awkward", "pre-LN", "deep", "norm", "feed-forward",
    "RMSNorm", "norms on both sides", "output norms", "no first norm", "RMS norm", "RMS norm with a unit offset",
    "MultiHeadAttention", "LayerNorm", "FeedForward", "DecoderLayer", "Encoder",
}  # fmt: skip
LAYERS_PART: dict[str, Callable[[Any], bool]] = {
    "name": FEW_LAYERS.__contains__,
    "mask": {"none", "causal", "additive", "key mask", "all", "bounds", "scores"}.__contains__,
    "num_threads": lambda count: count == 3,
    "poison": np.isnan,
    "length": lambda length: length in (1, 15, 97),
    "seed": lambda seed: seed < 3,
    "added": lambda added: added == "both",
    "masked": bool,
    "width": lambda width: width % 2 == 1 or width == 64,
    "activation": lambda activation: activation == "gelu",
    "bias": bool,
}
# What the types of 16 bits leave out besides.
NOT_HALF: dict[str, Callable[[Any], bool]] = {
    # Faults no larger than what rounding to 16 bits does.
    "wrong": lambda wrong: wrong.__name__.endswith(("_thousandth", "_thousandth_higher", "_half_precision")),
    "size": lambda size: not 0 < size < 1000,  # 65504 is the largest number of float16
}


@pytest.fixture
def dtype(request: pytest.FixtureRequest) -> Any:
    """float32 and float64; float16 and bfloat16, too, in some modules, unless a test is marked `wide`."""
    return request.param


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marks = metafunc.definition.iter_markers
    is_given = any(mark.args[0] == "dtype" for mark in marks("parametrize"))
    takes_half = metafunc.module.__name__ in TAKE_HALF | LAYERS_TAKE_HALF and not any(marks("wide"))
    if "dtype" in metafunc.fixturenames and not is_given:
        metafunc.parametrize("dtype", list(NAMES)[: None if takes_half else 2], ids=NAMES.get, indirect=True)


# Element types whose kernels an instruction set takes from the one that it extends: tests/cpp/test_dispatch.cpp.
EXTENDED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "avxvnni": ("avx2", tuple(NAMES)),
    "avx512vnni": ("avx512", tuple(NAMES)),
    "avx512bf16": ("avx512vnni", (np.float32, np.float64)),
    "amx": ("avx512bf16", (np.float32, np.float64, np.float16)),
    "amx_model": ("avx2", (np.float32, np.float64, np.float16)),
    "neondot": ("neon", tuple(NAMES)),
    "neonbf16": ("neondot", (np.float32, np.float64, np.float16)),
}


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _answers(questions: dict[str, Callable[[Any], bool]], parameters: dict[str, Any]) -> Iterator[bool]:
    return (question(parameters[name]) for name, question in questions.items() if name in parameters)


def _is_in_part(item: pytest.Item) -> bool:
    return all(_answers(LAYERS_PART if item.module.__name__ in LAYERS_TAKE_HALF else PART, _parameters(item)))


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    available = mha_native.available_isas()
    has_part = {item.function for item in items if _is_in_part(item)}  # all others have a short list of their own

    def is_left_out(item: pytest.Item) -> bool:
        parameters = _parameters(item)
        dtype = parameters.get("dtype")
        base, same = EXTENDED.get(parameters.get("isa", ""), ("", ()))
        if base in available and dtype in same:
            return True
        return dtype in HALF and (not _is_in_part(item) or any(_answers(NOT_HALF, parameters)))

    config.hook.pytest_deselected(items=[item for item in items if is_left_out(item)])
    items[:] = [item for item in items if not is_left_out(item)]
    for item in items:
        if item.function in has_part and not _is_in_part(item):
            item.add_marker("exhaustive")


@pytest.fixture(params=[1, 2, 3], ids=["1-thread", "2-threads", "3-threads"])
def num_threads(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture(scope="session")
def model_directory(request: pytest.FixtureRequest) -> Path:
    """all-MiniLM-L6-v2."""
    return pretrained.find(request)


@pytest.fixture(scope="session")
def language_model_file(request: pytest.FixtureRequest) -> Path:
    """SmolLM2-135M-Instruct, a GGUF file."""
    return pretrained.find(request, pretrained.LANGUAGE)
