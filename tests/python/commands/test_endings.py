"""How commands end: one sentence and an exit code where standard output fails, and nothing left behind by signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_bert
import tiny_classifiers
import tiny_language_model
from asleep import wait_until_asleep
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


def test_an_interrupt_while_modules_are_imported_is_a_sentence() -> None:
    program = """if True:
        import runpy, sys
        class Interrupts:
            def find_spec(self, name, *_):
                if name == "mha_native.commands.chat":
                    raise KeyboardInterrupt
        sys.meta_path.insert(0, Interrupts())
        runpy.run_module("mha_native", run_name="__main__")
    """
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (130, "mha_native: interrupted\n")


# Commands that read the lines of a file, with what they need besides.
OF_LINES = {
    "embed": [],
    "search": ["the dog"],
    "classify": [],
    "rerank": ["--query", "the dog"],
    "generate": ["--max-new-tokens", "2"],
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A model for each command of `OF_LINES`."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "embed": (embeds := str(tiny_bert.write(folder / "embed"))),
        "search": embeds,
        "classify": str(tiny_classifiers.write(folder / "classify")),
        "rerank": str(tiny_classifiers.write(folder / "rerank", labels=1)),
        "generate": str(tiny_language_model.write(folder / "generate")),
    }


def _of_lines(name: str, directories: dict[str, str], path: Path) -> list[str]:
    model = [sys.executable, "-m", "mha_native", name, "--model", directories[name]]
    return [*model, *OF_LINES[name], "--file", str(path)]


@pytest.mark.parametrize("name", [*OF_LINES, "selftest", "demo", "info", "--help"])
def test_nobody_reads(name: str, directories: dict[str, str], tmp_path: Path) -> None:
    # A pipe whose other end is closed: what `| head` leaves behind, without having to wait for it.
    lines = tmp_path / "lines.txt"
    lines.write_text("the dog\ncat\n", encoding="utf-8")
    command = _of_lines(name, directories, lines) if name in OF_LINES else _command(name, "")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120)
    finally:
        os.close(writing)
    errors = [line for line in result.stderr.splitlines() if "tokens a second" not in line]  # which generate says
    assert (result.returncode, errors) == (1, [])


def _interruptible() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # shells make processes in the background ignore it


@pytest.mark.parametrize("name", [*OF_LINES, "demo"])
def test_an_interrupt_leaves_nothing_behind(name: str, directories: dict[str, str], tmp_path: Path) -> None:
    pipe, output = tmp_path / "lines", tmp_path / "out.jsonl"
    os.mkfifo(pipe)
    command = [*_command("demo", ""), "--file", str(pipe)]
    if name in OF_LINES:
        output.write_bytes(b"as it was")
        command = [*_of_lines(name, directories, pipe), "--output", str(output)]
    before = sorted(tmp_path.iterdir())
    with (
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_interruptible
        ) as process,
        open(pipe, "wb", buffering=0) as lines,
    ):  # opened as soon as the command opens it
        lines.write(b"the dog\n")
        wait_until_asleep(process.pid)  # and waits for more lines
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "mha_native: interrupted\n")
    assert sorted(tmp_path.iterdir()) == before
    if name in OF_LINES:
        assert output.read_bytes() == b"as it was"


def test_an_interrupted_selftest_ends_its_processes_and_says_so_once() -> None:
    with subprocess.Popen(
        _command("selftest", ""),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_interruptible,
        start_new_session=True,  # a group of its own
    ) as process:
        assert process.stdout
        for line in process.stdout:
            if not line.strip():  # behind it come the instruction sets, each in a process of its own
                break
        wait_until_asleep(process.pid)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "mha_native: interrupted\n")


@pytest.mark.parametrize("name", ["info", "demo", "--help", "embed"])
def test_no_color(name: str, directory: str, tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    terminal, end = pty.openpty()
    command = _command(name, directory) if name != "embed" else _command(name, str(tmp_path / "nowhere"))
    environment = os.environ | {"NO_COLOR": "1", "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdout=end, stderr=end, env=environment)
    os.close(end)
    shown = b""
    try:
        while piece := os.read(terminal, 4096):
            shown += piece
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(terminal)
    assert process.wait(60) == (2 if name == "embed" else 0)
    assert len(shown) > 20
    assert not re.search(rb"\x1b\[[0-9;]*m", shown)


def _with_closed(descriptor: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    shell = ["sh", "-c", f'exec "$@" {descriptor}', "sh", *command]
    environment = os.environ | {"PYTHONUNBUFFERED": ""}  # buffers are written once more at exit
    return subprocess.run(shell, capture_output=True, text=True, timeout=60, env=environment)


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
        wait_until_asleep(self.process.pid)

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
        wait_until_asleep(process.pid)  # the pipe is full
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


@pytest.mark.parametrize(("name", "code", "message"), [
    ("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "ended by SIGTERM"), ("SIGHUP", 129, "ended by SIGHUP"),
])  # fmt: skip
def test_a_signal_within_a_callback_is_not_lost(name: str, code: int, message: str) -> None:
    """Python drops an exception that a handler raises in a callback of a weak reference, such as in an import."""
    program = (
        "import signal, sys, time, weakref\n"
        "from mha_native.commands.exit_codes import run_to_end\n"
        "class Thing: pass\n"
        "def command():\n"
        "    thing = Thing()\n"
        f"    kept = weakref.ref(thing, lambda _: signal.raise_signal(signal.{name}))\n"
        "    del thing\n"
        "    time.sleep(60)\n"
        "    return 0\n"
        "sys.exit(run_to_end(command))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: signal.signal(getattr(signal, name), signal.SIG_DFL),  # perhaps ignored by who starts tests
    )
    assert (result.returncode, result.stderr) == (code, f"mha_native: {message}\n")
