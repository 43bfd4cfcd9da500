"""A command on a terminal of its own: what it shows, and what a user types."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from types import TracebackType

import pytest


class Terminal:
    """``python -m mha_native`` on a pseudo-terminal. `shown` is all output so far."""

    def __init__(self, *arguments: str) -> None:
        pty = pytest.importorskip("pty")
        self._end, other = pty.openpty()
        command = [sys.executable, "-m", "mha_native", *arguments]
        environment = os.environ | {"TERM": "dumb", "COLUMNS": "80"}
        self.process = subprocess.Popen(
            command, stdin=other, stdout=other, stderr=other, env=environment, preexec_fn=_interruptible
        )
        os.close(other)
        self.shown = ""
        self._bytes, self._place = b"", 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)

    def wait_for(self, text: str) -> str:
        """Return the output from the last place to this text."""
        deadline = time.monotonic() + 60
        while (found := self.shown.find(text, self._place)) < 0:
            ready, _, _ = select.select([self._end], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no {text!r} in {self.shown[self._place :]!r}"
            self.read_more()
        begin, self._place = self._place, found + len(text)
        return self.shown[begin : self._place]

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str]:
        """Wait for the end of the process; return its exit code and the rest of the output."""
        with contextlib.suppress(OSError):  # Linux's sign that the process has closed the terminal
            while self.read_more():
                pass
        return self.process.wait(60), self.shown[self._place :]

    def read_more(self) -> bytes:
        """Wait for more output, and return it."""
        new = os.read(self._end, 4096)
        self._bytes += new
        self.shown = self._bytes.decode(errors="replace").replace("\r\n", "\n").replace("\x1b[K", "")
        return new


def _interruptible() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # shells make processes in the background ignore it
