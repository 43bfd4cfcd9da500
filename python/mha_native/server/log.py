"""The log of a server: its lines, and a thread that writes them, so that a full pipe stops no request."""

import contextlib
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from datetime import datetime, timezone
from time import sleep, time
from typing import Any, NamedTuple, TextIO

import orjson

_LOGGERS = ("mha_native.server", "uvicorn", "asyncio")
_log = logging.getLogger(_LOGGERS[0])
_MOST_LINES = 10_000  # that wait for the thread; later ones are dropped and counted
_SECONDS = 0.02  # between two writes
_LAST_SECONDS = 1.0  # for the lines that are left at the end


@contextlib.contextmanager
def logged(log_format: str, level: str) -> Iterator[None]:
    """Write the log to standard error while the context lasts, as "text" or "json"."""
    handler = _Handler(sys.stderr)
    handler.setFormatter(_JSON() if log_format == "json" else _Text("%(asctime)s %(levelname)s %(message)s"))
    before = []
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        before.append((logger, logger.handlers[:], logger.level, logger.propagate))
        logger.handlers[:], logger.propagate = [handler], False
        logger.setLevel(level.upper() if name == _LOGGERS[0] else logging.WARNING)
    try:
        yield
    finally:
        for logger, handlers, number, propagates in before:
            logger.handlers[:], logger.propagate = handlers, propagates
            logger.setLevel(number)
        handler.close()


def log_request(level: int, fields: dict[str, Any]) -> None:
    """Log a request by its fields. In the process of the command, its thread formats the line; elsewhere, handlers of
    the program get a record with `fields`."""
    if not _log.isEnabledFor(level):
        return
    if len(_log.handlers) == 1 and isinstance(handler := _log.handlers[0], _Handler) and not _log.propagate:
        handler.add(_Line(time(), level, fields))
    else:
        _log.log(level, "request", extra={"fields": fields})


class _Line(NamedTuple):
    """A request that is to be logged, without the time that a record of logging takes."""

    created: float
    level: int
    fields: dict[str, Any]

    def record(self) -> logging.LogRecord:
        record = logging.LogRecord(_log.name, self.level, "", 0, "request", (), None)
        record.created, record.msecs = self.created, self.created % 1 * 1000
        record.fields = self.fields
        return record


class _Handler(logging.Handler):
    """Lines for a thread that writes them to a file, some at once."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file
        try:
            self._number: int | None = os.dup(file.fileno())
        except (OSError, ValueError):
            self._number = None  # no file of the system
        self._lines: deque[str | _Line] = deque()
        self._num_dropped = 0
        self._has_lines = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="mha_native.server.log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.add(self.format(record) + "\n")
        except Exception:
            self.handleError(record)

    def add(self, line: str | _Line) -> None:
        """Add a line, unless too many wait."""
        if len(self._lines) >= _MOST_LINES:
            self._num_dropped += 1
            return
        self._lines.append(line)
        if not self._has_lines.is_set():
            self._has_lines.set()

    def close(self) -> None:
        """Write the lines that are left, unless the file takes none for some time."""
        self._is_closed = True
        self._has_lines.set()
        self._thread.join(_LAST_SECONDS)
        super().close()

    def _run(self) -> None:
        while True:
            self._has_lines.wait()
            is_last = self._is_closed
            self._has_lines.clear()
            lines: list[str | _Line] = [self._lines.popleft() for _ in range(len(self._lines))]
            dropped, self._num_dropped = self._num_dropped, 0
            if dropped:
                lines.append(f"{dropped} lines of the log were dropped: nobody has read them in time\n")
            with contextlib.suppress(OSError, ValueError):  # a full disk, or a closed file, stops no request
                self._write("".join(map(self._text_of, lines)))
            if is_last:
                if self._number is not None:
                    os.close(self._number)
                return
            sleep(_SECONDS)

    def _text_of(self, line: str | _Line) -> str:
        return line if isinstance(line, str) else self.format(line.record()) + "\n"

    def _write(self, text: str) -> None:
        """Write text without the lock of the file, which the interpreter takes when it ends: a thread that waits in a
        full pipe with this lock would hold it up."""
        if self._number is None:
            self._file.write(text)
            self._file.flush()
            return
        left = memoryview(text.encode(errors="backslashreplace"))
        while left:
            left = left[os.write(self._number, left) :]


class _JSON(logging.Formatter):
    """A log with an object in each line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "ts": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line).decode()


class _Text(logging.Formatter):
    """A log for people."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in getattr(record, "fields", {}).items())
        return " ".join(filter(None, (super().format(record), fields)))
