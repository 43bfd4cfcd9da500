"""What commands write to: pipes and devices stay what they are, files are whole, and nobody's input is lost."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
from command_line import assert_refused, run
from tolerance import assert_same_bits

from mha_native.models import SentenceEncoder

Array = np.ndarray[Any, Any]
LINES = ["the dog", "", "a b c"]


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tiny_bert.write(tmp_path / "model"))


@pytest.fixture
def expected(directory: str) -> Array:
    return SentenceEncoder.from_pretrained(directory).encode(LINES)


def _not_json(word: str) -> float:
    raise AssertionError(f"{word} is no JSON")


def _read_json_lines(text: str) -> tuple[list[str], Array]:
    entries = [json.loads(line, parse_constant=_not_json) for line in text.splitlines()]
    return [entry["text"] for entry in entries], np.array([entry["embedding"] for entry in entries], np.float32)


@pytest.mark.parametrize("name", ["out.jsonl", "pipe"])
def test_a_named_pipe_is_written_to(
    name: str, directory: str, expected: Array, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pipe = tmp_path / name
    os.mkfifo(pipe)
    received: list[str] = []

    def receive() -> None:
        # Without blocking, so that the test fails and does not hang where nothing is written to the pipe.
        with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as file:
            is_open.set()
            done.wait(60)
            received.append(file.read())

    is_open, done = threading.Event(), threading.Event()
    reader = threading.Thread(target=receive)
    reader.start()
    is_open.wait()
    code, out, err = run(capsys, "embed", "--model", directory, *LINES, "--output", str(pipe))
    done.set()
    reader.join()
    assert (code, out, err) == (0, "", "")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    texts, embeddings = _read_json_lines(received[0])
    assert texts == LINES
    assert_same_bits(embeddings, expected)
    assert {entry.name for entry in tmp_path.iterdir()} == {"model", name}


def test_a_pipe_takes_no_npy(directory: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pipe = tmp_path / "out.npy"
    os.mkfifo(pipe)
    assert_refused(*run(capsys, "embed", "--model", directory, "dog", "--output", str(pipe)), str(pipe), "regular file")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.fixture
def full_device(tmp_path: Path) -> Path:
    """A device like /dev/full, which tests must not risk: root could replace it."""
    path = tmp_path / "full.jsonl"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7))
        os.close(os.open(path, os.O_WRONLY))
    except OSError:
        if os.access("/dev", os.W_OK) or not Path("/dev/full").exists():
            pytest.skip("no device can be made")
        path.unlink(missing_ok=True)
        path.symlink_to("/dev/full")
    return path


def test_a_device_is_written_to(directory: str, full_device: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "embed", "--model", directory, "dog", "--output", str(full_device))
    assert_refused(*result, f"cannot write {full_device}: No space left on device")
    assert stat.S_ISCHR(full_device.stat().st_mode)


def test_a_picture_goes_to_a_device(directory: str, full_device: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = full_device.rename(full_device.with_name("full.png"))
    for command in (["demo"], ["embed", "--model", directory, "--explain", "dog"]):
        result = run(capsys, *command, "--plot", str(picture))
        assert_refused(*result, f"cannot write {picture}: No space left on device")
        assert stat.S_ISCHR(picture.stat().st_mode)


@pytest.mark.parametrize("name", ["/dev/stdout", "link.jsonl"])
def test_standard_output_by_its_name(name: str, directory: str, expected: Array, tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to("/dev/stdout")
    command = [sys.executable, "-m", "mha_native", "embed", "--model", directory, *LINES, "--output", name]
    piped = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=True)
    path = tmp_path / "log"
    path.write_text("before\n", encoding="utf-8")
    with open(path, "ab") as log:
        subprocess.run(command, stdout=log, timeout=60, cwd=tmp_path, check=True)
    first, _, rest = path.read_text(encoding="utf-8").partition("\n")
    assert first == "before"
    for text in (piped.stdout, rest):
        assert_same_bits(_read_json_lines(text)[1], expected)


def test_the_pipe_of_a_reader_that_leaves(directory: str) -> None:
    command = [sys.executable, "-m", "mha_native", "embed", "--model", directory, "dog", "--output", "/dev/stdout"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == "mha_native: cannot write /dev/stdout: Broken pipe\n"
        assert process.wait(60) == 2


def test_what_a_killed_process_has_left(directory: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # In a container the next process often has the same number.
    left = tmp_path / f".out.npy.{os.getpid()}.partial"
    left.touch()
    output = str(tmp_path / "out.npy")
    assert run(capsys, "embed", "--model", directory, "dog", "--output", output)[::2] == (0, "")
    assert np.load(output).shape == (1, 24)


def test_an_output_with_a_long_name(directory: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output = str(tmp_path / ("x" * 251 + ".npy"))
    assert run(capsys, "embed", "--model", directory, "dog", "--output", output)[::2] == (0, "")


@pytest.mark.parametrize("name", ["lines.jsonl", "link.jsonl", "hard.jsonl", "model/../lines.jsonl"])
def test_an_output_is_no_input(name: str, directory: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, output = tmp_path / "lines.jsonl", str(tmp_path / name)
    path.write_text("dog\n", encoding="utf-8")
    (tmp_path / "link.jsonl").symlink_to(path)
    (tmp_path / "hard.jsonl").hardlink_to(path)
    result = run(capsys, "embed", "--model", directory, "--file", str(path), "--output", output)
    assert_refused(*result, f"--output must be another file than the one that is read; got {output}")
    assert path.read_text(encoding="utf-8") == "dog\n"


def test_an_output_is_no_standard_input(directory: str, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text("dog\n", encoding="utf-8")
    command = [sys.executable, "-m", "mha_native", "embed", "--model", directory, "--file", "-", "--output", str(path)]
    with open(path, "rb") as file:
        result = subprocess.run(command, stdin=file, capture_output=True, text=True, timeout=60)
    assert_refused(result.returncode, result.stdout, result.stderr, "--output must be another file", str(path))
    assert path.read_text(encoding="utf-8") == "dog\n"


def test_a_picture_is_no_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "text.png"
    path.write_text("a dog", encoding="utf-8")
    result = run(capsys, "demo", "--file", str(path), "--plot", str(path))
    assert_refused(*result, f"--plot must be another file than the one that is read; got {path}")
    assert path.read_text(encoding="utf-8") == "a dog"


def test_json_lines_without_numbers_that_are_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # Finite weights, whose products are not.
    weights = tiny_bert.tensors(tiny_bert.config())
    weights["encoder.layer.0.intermediate.dense.weight"][...] = 3e38
    directory = str(tiny_bert.write(tmp_path, weights=weights))
    code, out, err = run(capsys, "embed", "--model", directory, "dog", "the cat", "a")
    assert (code, err) == (0, "mha_native: the embedding of text 1 is not finite, and 2 more are not\n")
    texts, embeddings = _read_json_lines(out)  # where null is NaN
    assert texts == ["dog", "the cat", "a"]
    assert np.isnan(embeddings).any()
    assert_same_bits(np.isnan(embeddings), ~np.isfinite(SentenceEncoder.from_pretrained(directory).encode(texts)))
    path, output = tmp_path / "lines.txt", str(tmp_path / "out.npy")
    path.write_text("dog\n", encoding="utf-8")
    _, _, err = run(capsys, "embed", "--model", directory, "--file", str(path), "--output", output)
    assert err == f"mha_native: the embedding of {path}, line 1 is not finite\n"
