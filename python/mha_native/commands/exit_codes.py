"""Exit codes of commands, with one sentence on standard error for a failure."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TextIO, cast

from .errors import UserError, complain, discard, reason

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)  # the signals that ask a program to end; Python handles SIGINT

_SECONDS_OF_CALLBACK = 0.01


def run_to_end(command: Callable[[], int]) -> int:
    """Run `command` and return the exit code: its own, 2 for a mistake of the user, 128 + n after signal n."""
    if sys.stdout is None:
        complain("cannot write standard output: it is closed")
        return 2
    try:
        with _signals_as_exceptions(), contextlib.redirect_stdout(cast(TextIO, _StandardOutput(sys.stdout))):
            try:
                code = command()
            except SystemExit:  # raised by --help, for example
                sys.stdout.flush()
                raise
            sys.stdout.flush()
            return code
    except UserError as error:
        complain(str(error))
        return 2
    except KeyboardInterrupt:
        complain("interrupted")
        return 128 + signal.SIGINT
    except _Ended as error:
        discard(sys.stdout)
        complain(f"ended by {error.signal.name}")
        return 128 + error.signal
    except _OutputFailed as failure:
        discard(sys.stdout)
        if isinstance(failure.error, BrokenPipeError):  # as in `| head`
            return 1
        complain(f"cannot write standard output: {reason(failure.error)}")
        return 2


class _OutputFailed(Exception):
    """Writing standard output failed with `error`."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


class _StandardOutput:
    """A stream that raises `_OutputFailed`, to distinguish its errors from errors of other files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            raise _OutputFailed(error) from error

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise _OutputFailed(error) from error


class _Ended(BaseException):
    """A signal has asked the program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)


@contextlib.contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """Let signals raise `_Ended` within the context, so that partial files are removed.

    Signals with another handler keep it: nohup, for example, ignores SIGHUP.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    taken = [number for number in _SIGNALS if signal.getsignal(number) == signal.SIG_DFL]

    def end(number: int, _: FrameType | None) -> None:
        for each in taken:
            signal.signal(each, signal.SIG_IGN)  # a second signal must not interrupt the removal
        raise _Ended(number)

    def catch() -> None:
        for number in taken:
            signal.signal(number, end)

    catch()
    try:
        with _signals_are_not_lost(catch):
            yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _signals_are_not_lost(catch: Callable[[], None]) -> Iterator[None]:
    """Send a signal again whose exception was lost, after `catch` has set the handlers.

    Python prints and drops an exception in a callback of a weak reference, such as those of an import, or in a
    callback of the garbage collector. The second signal comes a little later, when that callback has ended.
    """
    usual = sys.unraisablehook

    def send_again(lost: "sys.UnraisableHookArgs") -> None:
        if isinstance(lost.exc_value, KeyboardInterrupt):
            number = signal.SIGINT
        elif isinstance(lost.exc_value, _Ended):
            number = lost.exc_value.signal
            catch()
        else:
            usual(lost)
            return
        threading.Timer(_SECONDS_OF_CALLBACK, os.kill, (os.getpid(), number)).start()

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = usual
