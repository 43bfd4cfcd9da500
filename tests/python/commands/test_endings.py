"""How commands end: one sentence and an exit code where standard output fails, and nothing left behind by signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_bert
from command_line import assert_refused

COMMANDS = ["info", "demo", "embed", "embed --explain", "--help", "embed --help", "--cmake-dir"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_bert.write(tmp_path_factory.mktemp("model")))


def _command(name: str, directory: str) -> list[str]:
    arguments = name.split()
    if name in ("embed", "embed --explain"):
        arguments = ["embed", "--model", directory, *arguments[1:], "the dog"]
    return [sys.executable, "-m", "mha_native", *arguments]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("buffering", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("name", COMMANDS)
def test_standard_output_is_full(name: str, buffering: str, directory: str) -> None:
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            _command(name, directory),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env=os.environ | {"PYTHONUNBUFFERED": buffering},
        )
    assert_refused(result.returncode, "", result.stderr, "cannot write standard output: No space left on device")


def _with_closed(descriptor: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    shell = ["sh", "-c", f'exec "$@" {descriptor}', "sh", *command]
    return subprocess.run(shell, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", COMMANDS)
def test_standard_output_is_closed(name: str, directory: str) -> None:
    result = _with_closed(">&-", _command(name, directory))
    assert_refused(result.returncode, result.stdout, result.stderr, "cannot write standard output: it is closed")


def test_standard_input_is_closed(directory: str) -> None:
    command = [sys.executable, "-m", "mha_native", "embed", "--model", directory, "--file", "-"]
    result = _with_closed("<&-", command)
    assert_refused(result.returncode, result.stdout, result.stderr, "cannot read standard input: it is closed")
    result = _with_closed("0>/dev/null", command)  # open, but for writing
    assert_refused(result.returncode, result.stdout, result.stderr, "cannot read -, line 1: Bad file descriptor")


@pytest.mark.parametrize("descriptor", ["2>&-", "2>/dev/full"])
def test_standard_error_is_of_no_use(descriptor: str, directory: str, tmp_path: Path) -> None:
    assert _with_closed(descriptor, _command("embed", directory)).returncode == 0
    result = _with_closed(descriptor, [*_command("embed", str(tmp_path / "nowhere"))])
    assert (result.returncode, result.stdout, result.stderr) == (2, "", "")


def test_the_reader_leaves(directory: str) -> None:
    command = [*_command("embed", directory), *["the dog"] * 2000]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline().startswith(b"{")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


class _Running:
    """A command that has written a part of its output, and waits for more lines."""

    def __init__(self, directory: str, folder: Path, shell: str) -> None:
        self.folder = folder
        self.output = folder / "out.npy"
        self.output.write_bytes(b"as it was")
        embed = [*_command("embed", directory)[:-1], "--file", "-", "--output", str(self.output)]
        self.process = subprocess.Popen(
            ["sh", "-c", f'{shell} exec "$@"', "sh", *embed],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Under nohup this process ignores SIGHUP, and so would its children.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
        deadline = time.monotonic() + 60
        while len(list(folder.iterdir())) < 2:
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def end(self) -> tuple[int, str, str]:
        # Its standard input stays open, so that nothing but the signal ends it.
        code = self.process.wait(60)
        assert self.process.stdout
        assert self.process.stderr
        return code, self.process.stdout.read(), self.process.stderr.read()

    def assert_as_it_was(self) -> None:
        assert self.output.read_bytes() == b"as it was"
        assert list(self.folder.iterdir()) == [self.output]


@pytest.fixture
def running(directory: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[_Running]:
    command = _Running(directory, tmp_path, getattr(request, "param", ""))
    yield command
    command.process.kill()
    with command.process:
        pass


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_leaves_nothing_behind(name: str, code: int, running: _Running) -> None:
    running.process.send_signal(signal.Signals[name])
    assert running.end() == (code, "", f"mha_native: ended by {name}\n")
    running.assert_as_it_was()


def test_two_signals_at_once(running: _Running) -> None:
    running.process.send_signal(signal.SIGSTOP)
    running.process.send_signal(signal.SIGTERM)
    running.process.send_signal(signal.SIGHUP)
    running.process.send_signal(signal.SIGCONT)
    assert running.end()[0] in (143, 129)
    running.assert_as_it_was()


@pytest.mark.parametrize("running", ["trap '' HUP;"], indirect=True, ids=["nohup"])
def test_a_signal_that_is_ignored_stays_so(running: _Running) -> None:
    running.process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        running.process.wait(0.5)
    running.process.send_signal(signal.SIGTERM)
    assert running.end()[0] == 143
    running.assert_as_it_was()


def test_a_signal_while_the_reader_sleeps(directory: str, tmp_path: Path) -> None:
    # The pipe is full, so that neither the command nor the interpreter behind it can write the rest.
    path = tmp_path / "lines.txt"
    path.write_bytes(b"the dog\n" * 20_000)
    command = [*_command("embed", directory)[:-1], "--file", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.read(1) == b"{"
        time.sleep(0.5)  # for the pipe to fill up
        process.terminate()
        assert process.wait(20) == 143
        process.kill()


def test_signals_are_as_before_when_a_command_has_ended(directory: str) -> None:
    program = (
        "import signal, sys, threading\n"
        "from mha_native.__main__ import main\n"
        "before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]\n"
        "assert main(sys.argv[1:]) == 0\n"
        "assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before\n"
        "codes = []\n"
        "thread = threading.Thread(target=lambda: codes.append(main(sys.argv[1:])))\n"
        "thread.start()\n"
        "thread.join()\n"
        "assert codes == [0]\n"
    )
    command = [sys.executable, "-c", program, *_command("embed", directory)[3:]]
    subprocess.run(command, capture_output=True, timeout=60, check=True)
