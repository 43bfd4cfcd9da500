"""Calls that one thread computes, one after another, and that their clients may cancel at any time."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from ..functions.cancellation import CancellationToken

Result = TypeVar("Result")


class CancellableCall(Future[Result], Generic[Result]):
    """The result of a call. `cancel` works until it is there, and ends the call if it is being computed."""

    def __init__(self, function: Callable[[], Result]) -> None:
        super().__init__()
        self._function, self._token = function, CancellationToken()
        self.has_begun = False

    def cancel(self) -> bool:
        """Return whether the call has no result and will have none."""
        is_cancelled = super().cancel()
        if is_cancelled:
            self._token.cancel()
        return is_cancelled

    def compute(self) -> None:
        """Compute the call, unless it was cancelled. It stays pending meanwhile, so that it can be cancelled."""
        self.has_begun = True
        try:
            with self._token:
                result = None if self.cancelled() else self._function()
        except BaseException as error:
            if self.set_running_or_notify_cancel():
                self.set_exception(error)
        else:
            if self.set_running_or_notify_cancel():
                self.set_result(result)  # type: ignore[arg-type]  # it is None only in a cancelled call


class Worker:
    """A thread, and the calls that it computes."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._calls: set[CancellableCall[Any]] = set()

    def submit(self, function: Callable[[], Result]) -> CancellableCall[Result]:
        """Add a call, whose calls of the library end when it is cancelled."""
        call = CancellableCall(function)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        self._pool.submit(call.compute)
        return call

    def queued(self) -> tuple[int, int]:
        """Return how many calls wait, and how many are computed."""
        calls = [call for call in list(self._calls) if not call.done()]  # those that are drop out a moment later
        running = sum(call.has_begun for call in calls)
        return len(calls) - running, running

    def close(self) -> None:
        """Cancel all calls, and end the thread."""
        for call in list(self._calls):
            call.cancel()
        self._pool.shutdown(wait=True)
