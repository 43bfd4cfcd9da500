"""The queue of an `EncodeBatcher`: its requests, and the thread that computes batches."""

import atexit
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from ..functions.cancellation import CancellationToken
from ..models.text.batching import MOST_TOKENS
from ..models.text.text_call import TokensOfText, results_of
from ._encode_request import EncodeRequest
from ._queue import QueueFull, check_process
from .request import for_waiters

_KIND = "EncodeBatcher"

# A batch before the first one is timed.
_FIRST_TOKENS = 256
# However slow a model is, a batch may have so many tokens: with fewer, the time is spent on reading weights.
_LEAST_TOKENS = 64
# The speed is the average of so many batches, the last ones.
_MOST_BATCHES = 16

# Second and further texts of a request fill a batch up to this share of its time, if there are other requests: their
# next texts wait for this batch and compute in the one after it.
_SHARE_OF_MORE = 0.5

Item: TypeAlias = tuple[EncodeRequest, int]  # and the index of one of its texts


class EncodeBatcherStatistics(NamedTuple):
    """The requests of an `EncodeBatcher`, and the work that it has done.

    Parameters
    ----------
    waiting, running : int
        Requests with texts that wait; requests whose texts are all done or in the current batch.
    waiting_tokens : int
        Of texts that wait.
    batches, texts, tokens : int
        The work so far. The windows of a long text for a `TokenClassifier` count as texts.
    seconds : float
        Of all batches together.
    tokens_per_second : float
        Of the last 16 batches; NaN before the first one.
    batch_sizes : dict of int to int
        How many batches had so many texts.
    batch_tokens : dict of int to int
        How many batches had at most so many tokens, and more than half of them. The numbers are powers of 2.

    Examples
    --------
    >>> from mha_native.serving import EncodeBatcherStatistics
    >>> EncodeBatcherStatistics(1, 0, 1000, 20, 100, 1100, 0.1, 500.0).waiting_seconds
    2.0
    """

    waiting: int
    running: int
    waiting_tokens: int
    batches: int
    texts: int
    tokens: int
    seconds: float
    tokens_per_second: float
    batch_sizes: Mapping[int, int] = MappingProxyType({})
    batch_tokens: Mapping[int, int] = MappingProxyType({})

    @property
    def waiting_seconds(self) -> float:
        """Time that the waiting texts take by `tokens_per_second`, such as for a header Retry-After."""
        return self.waiting_tokens / self.tokens_per_second


class _Batch(NamedTuple):
    """The size and the time of a batch. Its work is in tokens of a short text."""

    tokens: int
    work: float
    seconds: float


class EncodeQueue:
    """Requests whose texts are computed in batches by one thread.

    A batch takes a text of each request in turn, as many as `target_seconds` and `most_tokens` allow. It begins when
    there is a text, or up to `wait_seconds` later if it and the queue have room for others. `clock` returns seconds
    that never fall.
    """

    def __init__(
        self,
        target_seconds: float,
        most_tokens: int | None,
        wait_seconds: float,
        max_waiting: int,
        max_waiting_tokens: int,
        num_threads: int | None,
        clock: Callable[[], float],
    ) -> None:
        self._target, self._wait = target_seconds, wait_seconds
        self._max_waiting, self._max_tokens = max_waiting, max_waiting_tokens
        self._num_threads, self.clock = num_threads, clock
        self._waiting: deque[EncodeRequest] = deque()  # with texts that wait; the next one to take a text of is first
        self._num_tokens = 0  # of all texts that wait
        self._running: list[Item] = []  # the current batch
        self._token = CancellationToken()  # of the current batch
        self._work = threading.Condition()  # held for moments
        self._thread: threading.Thread | None = None
        self._is_closed = self._is_ended = False
        self.process = os.getpid()
        self._last: deque[_Batch] = deque(maxlen=_MOST_BATCHES)
        self._cap = MOST_TOKENS if most_tokens is None else most_tokens
        self._most_tokens = self._cap  # of a batch; fewer after a MemoryError
        self._done = EncodeBatcherStatistics(0, 0, 0, 0, 0, 0, 0.0, float("nan"))

    @property
    def statistics(self) -> EncodeBatcherStatistics:
        """The requests now, and the work of all batches so far."""
        with self._work:  # a full queue is asked at each refusal, so nothing here goes through those that wait
            waiting, tokens, last = len(self._waiting), self._num_tokens, list(self._last)
            running = {request for request, _ in self._running if not (request._has_next or request.done())}
        seconds = sum(batch.seconds for batch in last)
        return self._done._replace(
            waiting=waiting,
            running=len(running),
            waiting_tokens=tokens,
            tokens_per_second=sum(batch.tokens for batch in last) / seconds if seconds > 0 else float("nan"),
        )

    def check_room(self, function: str) -> None:
        """Raise QueueFull if no request has room, whatever its size: before the work of making tokens."""
        if self._is_closed:
            raise RuntimeError(f"{function}: the {_KIND} is closed")
        if (count := len(self._waiting)) >= self._max_waiting:
            raise QueueFull(f"{function}: {count} requests wait, as many as max_waiting; try again later")

    def add(self, function: str, request: EncodeRequest) -> None:
        """Add a request, or raise QueueFull. An empty queue takes a request of any size."""
        with self._work:
            self.check_room(function)
            if self._waiting and self._num_tokens + request._waiting_tokens > self._max_tokens:
                raise QueueFull(
                    f"{function}: {self._num_tokens} tokens wait, and max_waiting_tokens, {self._max_tokens}, leaves "
                    f"no room for {request._waiting_tokens} more; try again later"
                )
            if self._thread is None or not self._thread.is_alive():  # an exception of a signal may come before `start`
                self._thread = threading.Thread(target=self._run, name=f"mha_native.serving.{_KIND}", daemon=True)
                self._thread.start()
                atexit.register(self.close, 0.0)
            has_texts = request._has_next  # the thread may take them all as soon as the lock is free
            if has_texts:
                self._waiting.append(request)
                self._num_tokens += request._waiting_tokens
                self._work.notify_all()
        if not has_texts:
            self._finish(request)

    def forget(self, request: EncodeRequest) -> None:
        """Drop the texts of a request that was cancelled or has failed, and tell all who wait for several requests."""
        with self._work:
            if request in self._waiting:
                self._waiting.remove(request)
                self._num_tokens -= request._waiting_tokens
            if self._running and all(other.done() for other, _ in self._running):
                self._token.cancel()  # nobody waits for any text of the batch
        self._claim(request)

    def is_computing(self) -> bool:
        """Return whether the calling thread computes: whether it is in a callback."""
        return threading.current_thread() is self._thread

    def check_process(self, function: str) -> None:
        """Raise RuntimeError in a forked process."""
        check_process(function, _KIND, self.process)

    def close(self, timeout: float | None, *, waits: bool = True) -> None:
        """Take no more requests, compute the present ones for `timeout` seconds, and cancel the rest."""
        if os.getpid() != self.process:
            return  # locks may be held for ever here, and there is no thread
        with self._work:
            self._is_closed = True
            self._is_ended = self._is_ended or timeout == 0
            self._work.notify_all()
        if self._thread is None or not self._thread.is_alive() or not waits or self.is_computing():
            return
        self._thread.join(timeout)
        with self._work:
            self._is_ended = True
        self._thread.join()  # until its batch is done

    def _run(self) -> None:
        try:
            while items := self._take():
                try:
                    self._compute(items)
                except BaseException as error:  # without memory for a list, for example
                    for request, _ in items:
                        self._fail(request, error)
                del items  # while the thread waits for others
        finally:
            self._is_closed = True
            with self._work:
                left = dict.fromkeys([*self._waiting, *(request for request, _ in self._running)])
            for request in left:
                with contextlib.suppress(BaseException):  # of a callback
                    request.cancel()
            atexit.unregister(self.close)

    def _take(self) -> list[Item]:
        """Wait for texts, and return the next batch, which is empty at the end."""
        with self._work:
            last, self._running = {id(request) for request, _ in self._running}, []
            self._wait_for_texts()
            if self._is_ended:
                return []
            budget, work, now = self._budget(), 0.0, self.clock()
            self._token = CancellationToken()
            share = _SHARE_OF_MORE if len(last.union(map(id, self._waiting))) > 1 else 1.0
            taken: set[EncodeRequest] = set()
            while self._waiting:
                request = self._waiting[0]
                more = request._next_work
                if taken and work + more > budget * (share if request in taken else 1):
                    break
                self._waiting.popleft()
                taken.add(request)
                before = request._waiting_tokens
                self._running.append((request, request._take(now)))
                self._num_tokens += request._waiting_tokens - before
                if request._has_next:
                    self._waiting.append(request)
                work += more
            return self._running

    def _wait_for_texts(self) -> None:
        """Wait for texts, and then for others, as long as the oldest request may wait. The lock is held."""
        while True:
            self._work.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed or self._wait <= 0 or any(request._num_taken for request in self._waiting):
                return
            left = min(request._begin for request in self._waiting) + self._wait - self.clock()
            is_full = len(self._waiting) >= self._max_waiting or self._num_tokens >= self._max_tokens
            if left <= 0 or is_full or self._num_tokens >= self._budget():
                return
            self._work.wait(left)

    def _budget(self) -> float:
        """Return the work that a batch takes in the time that it may take, by the speed of the last batches."""
        seconds = sum(batch.seconds for batch in self._last)
        if seconds <= 0:
            return min(_FIRST_TOKENS, self._most_tokens)
        work = self._target / seconds * sum(batch.work for batch in self._last)
        return min(max(work, _LEAST_TOKENS), self._most_tokens)

    def _compute(self, items: list[Item], retries: bool = True) -> None:
        """Compute a batch. If it fails, compute its halves, so that one text fails alone."""
        items = [(request, i) for request, i in items if not request.done()]
        if not items:
            return
        call, token = items[0][0]._call, self._token
        texts = [request._call.texts[i] for request, i in items]
        begin = self.clock()
        try:
            with token:
                results = results_of(call.model, texts, self._num_threads)
        except BaseException as error:  # this thread has no signals
            if token.is_cancelled:
                return
            is_memory = isinstance(error, MemoryError)
            if is_memory:
                self._most_tokens = max(self._most_tokens // 2, min(_LEAST_TOKENS, self._cap))
            if len(items) > 1:
                half = len(items) // 2
                self._compute(items[:half])
                self._compute(items[half:])
            elif is_memory and retries:
                self._compute(items, retries=False)
            else:
                self._fail(items[0][0], error)
            return
        end = self.clock()
        self._learn(texts, sum(map(call.work_of, texts)), end - begin)
        for (request, i), result in zip(items, results, strict=True):
            if request._put(i, result, end):
                self._finish(request)

    def _learn(self, texts: list[TokensOfText], work: float, seconds: float) -> None:
        """Keep the size and the time of a batch."""
        tokens, done, size = sum(len(text.ids) for text in texts), self._done, len(texts)
        power = 1 << (tokens - 1).bit_length()
        with self._work:
            self._last.append(_Batch(tokens, work, seconds))
        self._most_tokens = min(self._most_tokens + -(-self._most_tokens // _MOST_BATCHES), self._cap)
        self._done = done._replace(
            batches=done.batches + 1,
            texts=done.texts + size,
            tokens=done.tokens + tokens,
            seconds=done.seconds + seconds,
            batch_sizes={**done.batch_sizes, size: done.batch_sizes.get(size, 0) + 1},
            batch_tokens={**done.batch_tokens, power: done.batch_tokens.get(power, 0) + 1},
        )

    def _finish(self, request: EncodeRequest) -> None:
        """Give a request its result, by the results of all its texts."""
        try:
            value = request._call.result(request._results)
            request._results = []  # each was a view that keeps the rows of a whole batch; `value` may be the list
        except BaseException as error:
            self._fail(request, error)
            return
        if self._claim(request):
            with contextlib.suppress(BaseException):  # of a callback
                request.set_result(value)
            request._let_go()

    def _fail(self, request: EncodeRequest, error: BaseException) -> None:
        """End a request with an error, and drop its other texts."""
        if self._claim(request):
            with contextlib.suppress(BaseException):  # of a callback
                request.set_exception(for_waiters(_KIND, error))
            request._let_go()
        self.forget(request)

    def _claim(self, request: EncodeRequest) -> bool:
        """Return whether the caller must give a request its result: it has none yet, and it was not cancelled."""
        with self._work:
            if request._is_claimed:
                return False
            request._is_claimed = True
            return request.set_running_or_notify_cancel()
