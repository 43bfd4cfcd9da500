"""mha_bench, the benchmark in C++, in a few seconds: it runs, its results are right, and it counts work as Python does.

The environment variable MHA_BENCH names the program; without it these tests are skipped.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

import pytest

import mha_native
from mha_native_bench.cases.case import Case
from mha_native_bench.cases.load import load_cases

BENCH = os.environ.get("MHA_BENCH", "")
ISA = mha_native.available_isas()[0]
MOST_FLOPS = 2e10  # of the cases that --smoke runs

pytestmark = pytest.mark.skipif(not BENCH, reason="MHA_BENCH does not name the program")


def mha_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BENCH, *arguments], capture_output=True, text=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every benchmark but the largest, on one thread, by name."""
    path = tmp_path_factory.mktemp("native") / "out.json"
    done = mha_bench("--smoke", "--threads=1", "--isa", ISA, f"--benchmark_out={path}")
    assert done.returncode == 0, done.stderr
    document = json.loads(path.read_text())
    assert document["context"]["isa"] == ISA
    runs = {re.sub("/(real_time|threads:1)", "", run["name"]): run for run in document["benchmarks"]}
    assert not [run for run in runs.values() if run.get("error_occurred")]
    return runs


@pytest.mark.parametrize(
    "case",
    [case for case in load_cases() if case.flops < MOST_FLOPS and not case.is_of_python],
    ids=lambda case: case.name,
)
def test_counts_are_those_of_the_other_harness(case: Case, runs: dict[str, dict[str, Any]]) -> None:
    part = "encoder" if case.has_feed_forward else "layer" if case.is_layer else "attention"
    run = runs[f"{part}/{case.name}"]
    assert run["flops"] == pytest.approx(case.flops, rel=1e-6)
    gflops, gigabytes = run["GFLOP/s"], run["GB/s"]
    if case.kind != "sentences":  # sentences begin with rows in C++ and with tokens in Python
        assert gigabytes / gflops == pytest.approx(case.least_bytes / case.flops, rel=1e-4)
    if case.precision == "int8" and "peak" not in run:  # a processor without instructions for int8 products
        return
    assert run["of_peak"] == pytest.approx(gflops / run["peak"], rel=1e-4)


@pytest.mark.parametrize(
    "name",
    ["machine/fma-f32", "machine/fma-f64", "machine/fma-bf16", "machine/read-DRAM"]
    + [f"microkernel/{name}-depth128" for name in ("f32", "f64", "bf16", "f16", "bf16w", "int8w")],
)
def test_machine(name: str, runs: dict[str, dict[str, Any]]) -> None:
    run = runs[name]
    assert run.get("GFLOP/s", run.get("GB/s", 0)) > 0


@pytest.mark.parametrize("arguments", [("--isa=avx1024",), ("--threads=0",), ("--threads",), ("--colour",)])
def test_wrong_arguments(arguments: tuple[str, ...]) -> None:
    assert mha_bench(*arguments).returncode == 2
