"""The command as a user runs it, in a process of its own."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from mha_native_bench.progress import Progress

COMMAND = [sys.executable, "-m", "mha_native", "bench"]
CASES = (
    "^(sdpa-T16-D64|sdpa-decode-S1024-D64|mask-T512-half|ragged-.*-D64|mha-T1-E512|"
    "encoder_layer-T1-E384|.*-B1-T11|sentences-B32-T137)$"
)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)


def test_everything_once(tmp_path: Path) -> None:
    written = tmp_path / "out.json"
    plot = ["--plot", str(tmp_path / "out.png")] if find_spec("matplotlib") else []
    done = bench("--cases", CASES, "--rounds", "1", "--overheads", "--markdown", "--json", str(written), *plot)
    assert done.returncode == 0, done.stderr
    document = json.loads(written.read_text(encoding="utf-8"))
    kinds = {"sdpa", "ragged", "mha", "encoder_layer"}
    if find_spec("safetensors") and find_spec("tokenizers"):
        kinds.add("sentences")
    assert {case["kind"] for case in document["cases"]} == kinds
    for case in document["cases"]:
        assert f"| {case['name']} " in done.stdout
        assert f"] {case['name']}" in done.stderr
        for program in case["programs"]:
            assert min(program["best_seconds"]) > 0
            assert program["largest_error"] is None or program["largest_error"] <= case["tolerance"]
    assert document["overheads"]["scratch_bytes"]["1"] > 0
    assert min(document["overheads"]["import_seconds"]["mha_native.models"]) > 0
    for memory in document["overheads"]["models"]:
        # Linux counts resident pages in steps of 64 for each thread, and a call of eleven tokens takes no more.
        assert memory["of_call"] > 0 or memory["case"].endswith("-B1-T11")
    assert {memory["case"] for memory in document["overheads"]["models"]} > {"sentences-B1-T11"}
    has_peers = any(cell["best_peer"] for case in document["cases"] for cell in case["cells"])
    assert (tmp_path / "out.png").exists() == (bool(plot) and has_peers)
    assert (tmp_path / "out-roofline.png").exists() == bool(plot)


def test_an_interrupted_run_reports_what_it_has() -> None:
    command = [
        *COMMAND,
        "--cases",
        "sdpa-T16-D64$|sdpa-T1-D64$",
        "--peers",
        "",
        "--rounds",
        "100000",
    ]
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background jobs with SIGINT ignored, which children inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with running:
        assert running.stderr is not None
        assert "sdpa-T16-D64" in running.stderr.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(3)  # long enough for a round
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert "\nsdpa-T16-D64 " in out
    assert "sdpa-T1-D64" not in out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--cases", "no-such"], "no-such"),
        (["--cases", "("], "regular expression"),
        (["--peers", "no-such"], "no-such"),
        (["--threads", "0"], "at least 1"),
        (["--json", "no/such/folder.json"], "no/such"),
        (["--plot", "no/such/folder.png"], "no/such" if find_spec("matplotlib") else "pip install"),
    ],
)
def test_user_errors_are_reported_before_anything_runs(arguments: list[str], word: str) -> None:
    done = bench(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert word in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("has_tqdm", [False, True])
def test_progress_is_a_bar_where_it_can_be(has_tqdm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if has_tqdm:
        pytest.importorskip("tqdm")
    else:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress(4) as progress:
        for name in ("first", "second"):
            progress.begin(name)
            progress.advance(0.5)
        progress.say("wrong")
        progress.advance(1.0)
    shown = terminal.getvalue()
    assert ("50%|" in shown) == has_tqdm
    assert ("[2/4] second" in shown) != has_tqdm
    assert "wrong\n" in shown
    assert "second" in shown
