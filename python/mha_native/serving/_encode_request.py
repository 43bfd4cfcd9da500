"""A call of a model that waits for its batches."""

import concurrent.futures
import threading
from collections.abc import Callable
from math import nan
from typing import Any, NamedTuple

from ..functions.scalars import checked_real
from ..models.text.text_call import TextCall


class EncodeStatistics(NamedTuple):
    """The tokens of a request, and its times.

    Parameters
    ----------
    tokens : int
        Of all texts, with special tokens.
    queue_seconds : float
        From `EncodeBatcher.submit` to the first batch with one of its texts; NaN before it.
    compute_seconds : float
        From there to the end of the last batch with one of its texts so far.

    Examples
    --------
    >>> from mha_native.serving import EncodeStatistics
    >>> EncodeStatistics(11, 0.01, 0.02).tokens
    11
    """

    tokens: int
    queue_seconds: float
    compute_seconds: float


class EncodeRequest(concurrent.futures.Future[Any]):
    """A call of a model that an `EncodeBatcher` computes. Use `EncodeBatcher.submit` to make one.

    It is a ``concurrent.futures.Future``: wait for it by `result`, by ``concurrent.futures.wait``, or in a coroutine by
    ``await asyncio.wrap_future(request)``. `cancel` works until the result is there. It drops all texts that wait, and
    ends the current batch if that has no texts of other requests. A callback of `add_done_callback` runs in the thread
    that computes, and must not take long.

    Parameters
    ----------
    call, now, forget, is_computing, check_process
        Values that `EncodeBatcher.submit` computes.

    Attributes
    ----------
    token_counts : list of N int
        The tokens of each text that the model reads, with special tokens.

    Examples
    --------
    >>> from mha_native.models import SentenceEncoder
    >>> from mha_native.serving import EncodeBatcher
    >>> model = SentenceEncoder.from_pretrained("all-MiniLM-L6-v2")
    >>> with EncodeBatcher(model) as batcher:
    ...     request = batcher.submit(["A dog", "A bulky dog"])
    ...     request.token_counts, request.result().shape
    ([4, 5], (2, 384))
    """

    def __init__(
        self,
        call: TextCall,
        now: float,
        forget: Callable[["EncodeRequest"], None],
        is_computing: Callable[[], bool],
        check_process: Callable[[str], None],
    ) -> None:
        super().__init__()
        self.token_counts = call.token_counts
        self._call, self._forget, self._is_computing = call, forget, is_computing
        self._check_process = check_process
        self._begin, self._first, self._end = now, nan, nan
        self._num_taken, self._num_done = 0, 0
        self._waiting_tokens = sum(len(text.ids) for text in call.texts)
        self._results: list[Any] = [None] * len(call.texts)
        self._is_claimed = False  # somebody gives it its result, or it was cancelled and all waiters know

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result, which is the one of the model's own call.

        Parameters
        ----------
        timeout : float, optional
            Wait no longer than so many seconds. The request goes on. Default: until it ends.

        Raises
        ------
        TimeoutError
            If it has not ended in that time.
        CancelledError
            Of `concurrent.futures`, if it was cancelled.
        RuntimeError
            In a callback of the same EncodeBatcher without `timeout`, where the wait would have no end.
        Exception
            The error that ended the request.
        """
        return self._wait("result", super().result, timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end, and return the error, or None.

        Parameters
        ----------
        timeout : float, optional
            As for `result`, with the same errors of waiting.
        """
        error: BaseException | None = self._wait("exception", super().exception, timeout)
        return error

    def cancel(self) -> bool:
        """Drop the texts that have not been computed. Return whether the request has no result and will have none."""
        self._check_process("EncodeRequest.cancel")
        is_cancelled = super().cancel()
        if is_cancelled:
            self._forget(self)
            self._let_go()
        return is_cancelled

    @property
    def statistics(self) -> EncodeStatistics:
        """Statistics of the texts so far."""
        return EncodeStatistics(sum(self.token_counts), self._first - self._begin, self._end - self._first)

    def __repr__(self) -> str:
        state = "going on" if not self.done() else "cancelled" if self.cancelled() else "done"
        return f"{type(self).__name__}({len(self.token_counts)} texts, {sum(self.token_counts)} tokens, {state})"

    def _wait(self, what: str, wait: Callable[[float | None], Any], timeout: float | None) -> Any:
        name = f"EncodeRequest.{what}"
        self._check_process(name)
        longest = seconds_to_wait(name, timeout)
        if longest is None and not self.done() and self._is_computing():
            raise RuntimeError(f"{name}: a callback must not wait for a request: the batch waits for the callback")
        try:
            return wait(longest)
        except concurrent.futures.TimeoutError:
            if self.done():
                raise
            raise TimeoutError(f"{name}: the request has not ended in {timeout} s; it goes on") from None

    # The queue calls the methods below.

    @property
    def _has_next(self) -> bool:
        return self._num_taken < len(self._call.texts)

    @property
    def _next_work(self) -> float:
        return self._call.work_of(self._call.texts[self._num_taken])

    def _take(self, now: float) -> int:
        """Return the index of the next text, which a batch takes that begins now."""
        if self._num_taken == 0:
            self._first = self._end = now
        self._waiting_tokens -= len(self._call.texts[self._num_taken].ids)
        self._num_taken += 1
        return self._num_taken - 1

    def _put(self, index: int, result: Any, now: float) -> bool:
        """Keep the result of a text, and return whether all texts have theirs."""
        self._results[index] = result
        self._num_done += 1
        self._end = now
        return self._num_done == len(self._results)

    def _let_go(self) -> None:
        """Keep no reference to the queue: a request that has ended may be kept for long."""
        self._forget, self._is_computing = _do_nothing, _never


def seconds_to_wait(function: str, timeout: float | None) -> float | None:
    """Return the seconds of a `timeout`, at most as many as locks take; None without one."""
    return None if timeout is None else min(checked_real(function, "timeout", timeout), threading.TIMEOUT_MAX)


def _do_nothing(_: EncodeRequest) -> None:
    pass


def _never() -> bool:
    return False
