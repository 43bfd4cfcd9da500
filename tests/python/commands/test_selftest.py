"""``python -m mha_native selftest``: it passes, and finds wrong numbers, other bits, a process that dies or hangs."""

from __future__ import annotations

import os
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np
import pytest
from command_line import assert_refused, run

import mha_native
from mha_native.commands import _self_checks, selftest
from mha_native.commands._self_checks import Result

ISA = mha_native.available_isas()[-1]


@pytest.mark.exhaustive  # computes what tests of every run compute; .ci/run runs the command itself
def test_all_is_well(capfd: pytest.CaptureFixture[str]) -> None:
    assert selftest.run(Namespace(isa=None)) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.endswith("All is well.\n")
    lines = [line.split() for line in out.splitlines() if line.endswith(": ok")]
    every = [(isa, dtype) for isa in mha_native.available_isas() for dtype in selftest.LAYER_DTYPES]
    assert [tuple(words[:2]) for words in lines] == every
    assert "processor" in out


def test_one_instruction_set(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "CHECKS", selftest.CHECKS[2:3])
    before = mha_native.active_isa()
    code, out, err = run(capsys, "selftest", "--isa", ISA)
    assert (code, err) == (0, "")
    assert out.count(f"{ISA} ") == len(selftest.LAYER_DTYPES)
    assert mha_native.active_isa() == before
    monkeypatch.setattr(selftest, "last_used_isa", lambda: "mmx")
    code, out, err = run(capsys, "selftest", "--isa", ISA)
    assert (code, err) == (1, "")
    assert "computed with mmx" in out
    assert_refused(*run(capsys, "selftest", "--isa", "mmx"), "--isa", "mmx", ISA)


def test_caches_layers_and_forks_are_computed() -> None:
    names = {name: sum(1 for _ in selftest._results(name, 2)) for name in ("float32", "float64")}
    assert names["float32"] > names["float64"] > 20
    found = {result.name for check in selftest.CHECKS for result in check(np.dtype(np.float32), 1)}
    kinds = ("a cache of int8", "pages of int8", "pages of two sequences", "int8 weights", "Encoder", "Decoder")
    assert {*kinds, "attention in a forked process", "ragged batch", "MultiHeadAttention, scores"} <= found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
@pytest.mark.parametrize("dies", [lambda: os._exit(3), lambda: [][0]], ids=["exit", "error"])
def test_a_forked_process_that_fails_is_noticed(dies: Any, capfd: pytest.CaptureFixture[str]) -> None:
    result = _self_checks._in_a_fork(dies, np.ones((2, 3), np.float32))
    assert selftest._error(result, np.ones((2, 3))) == np.inf
    whole = _self_checks._in_a_fork(lambda: np.full((2, 3), 7, np.float32), np.ones((2, 3), np.float32))
    assert (whole == 7).all()
    assert capfd.readouterr() == ("", "")


def _let_result_be(monkeypatch: pytest.MonkeyPatch, of_threads: Any) -> None:
    def check(dtype: Any, threads: int) -> Iterator[Result]:
        yield Result("the result", of_threads(threads).astype(np.float64), lambda: np.ones(3))

    monkeypatch.setattr(selftest, "CHECKS", (check,))


@pytest.mark.parametrize(
    ("of_threads", "words"),
    [
        (lambda threads: np.full(3, 1.001), "the result is off by"),
        (lambda threads: np.full(3, np.nan), "the result is off by inf"),
        (lambda threads: np.full(3, np.inf), "the result is off by inf"),
        (lambda threads: np.ones(4), "the result is off by inf"),
        (lambda threads: np.ones(3) + threads * 2.0**-52, "the result has other bits on"),
    ],
)
def test_what_is_wrong_is_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, of_threads: Any, words: str
) -> None:
    _let_result_be(monkeypatch, of_threads)
    assert selftest.run(Namespace(isa=ISA)) == 1
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "words", "seconds"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "ended by SIGILL", 120),
        ("import sys; sys.exit(3)", "ended with exit code 3", 120),
        ("print('half of it', flush=True); import time; time.sleep(600)", "half of it", 5),
        ("raise SystemExit(1)", "Please report it", 120),
    ],
)
def test_a_process_that_does_not_come_to_its_end(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    program: str,
    words: str,
    seconds: int,
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{program}\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(selftest, "available_isas", lambda: (ISA,))
    monkeypatch.setattr(selftest, "_LONGEST_SECONDS", seconds)
    assert selftest.run(Namespace(isa=None)) == 1
    out = capfd.readouterr().out
    assert words in out
    assert "FAILED. Please report it" in out


def test_an_instruction_set_that_cannot_be_had(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> str:
        raise ValueError("MHA_NATIVE_ISA: unknown instruction set 'mmx'")

    monkeypatch.setattr(selftest, "active_isa", refuse)
    monkeypatch.setattr(selftest, "_passes", lambda isa: True)
    assert selftest.run(Namespace(isa=None)) == 1
    assert "No call can be computed: MHA_NATIVE_ISA: unknown" in capfd.readouterr().out


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["raised", "ignored"])
def test_an_interrupt_during_a_start_ends_the_process(handler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Popen[str]] = []

    def interrupted(command: list[str], **options: Any) -> Popen[str]:
        process = Popen([sys.executable, "-c", "import time; time.sleep(600)"], **options)
        started.append(process)
        os.kill(os.getpid(), signal.SIGINT)  # before the caller knows the process
        return process

    monkeypatch.setattr(selftest.subprocess, "Popen", interrupted)
    monkeypatch.setattr(selftest, "available_isas", lambda: [ISA])
    monkeypatch.setattr(selftest, "_LONGEST_SECONDS", 1)
    before = signal.signal(signal.SIGINT, handler)
    try:
        if handler is signal.SIG_IGN:
            assert selftest.run(Namespace(isa=None)) == 1  # after the time limit
        else:
            with pytest.raises(KeyboardInterrupt):
                selftest.run(Namespace(isa=None))
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert [process.returncode for process in started] == [-signal.SIGKILL]
