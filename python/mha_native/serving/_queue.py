"""The queue of a `Batcher`: its requests, and the thread that steps."""

import atexit
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError
from types import MappingProxyType
from typing import NamedTuple

from ..functions.cancellation import CancellationToken
from ..functions.messages import shown
from ..models.generation.sampling import choose
from ._paged_caches import PagedCaches
from ._scheduler import Run, Scheduler, Sequence
from .request import Request, StepEvent, for_waiters, is_of_signal

# How often `Batcher.close` looks whether a step has ended that another thread does. Nobody tells it: a step ends
# without a call.
_SECONDS_BETWEEN_LOOKS = 0.01


class QueueFull(RuntimeError):
    """As many requests wait as may wait: `Batcher.submit` takes no more for now.

    Parameters
    ----------
    message : str

    Examples
    --------
    >>> from mha_native.serving import QueueFull
    >>> issubclass(QueueFull, RuntimeError)
    True
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)


def check_process(function: str, kind: str, process: int) -> None:
    """Raise RuntimeError if an object of a `kind` was made in another `process`, of which this is a fork."""
    if os.getpid() != process:
        raise RuntimeError(
            f"{function}: the {kind} belongs to process {process}, and this is {os.getpid()}, a fork of it; "
            f"make {'an' if kind[0] in 'AEIOU' else 'a'} {kind} in each process"
        )


class BatcherStatistics(NamedTuple):
    """The requests of a `Batcher`, and the work that it has done.

    Parameters
    ----------
    waiting, running : int
        Requests without pages; requests with pages.
    num_pages, free_pages : int
        All pages of a layer; and those that no running request uses, after the last step. Free ones may hold tokens of
        requests that have ended, until they are needed.
    steps : int
    read_tokens : int
        Of prompts and new ones, without those that were shared.
    new_tokens : int
        Tokens that were generated.
    preempted : int
        How often a running request had to wait again, because an older one needed its pages.
    seconds : float
        Of all steps together.
    prefix_queries, prefix_hits : int
        Tokens of prompts that were looked for in the pages of other requests; tokens that were found there. Both are 0
        without `share_prefixes`.
    batch_sizes : dict of int to int
        How many steps read tokens of so many requests.

    Examples
    --------
    >>> from mha_native.serving import BatcherStatistics
    >>> BatcherStatistics(0, 2, 1024, 1000, 50, 900, 100, 0, 2.0).tokens_per_second
    50.0
    """

    waiting: int
    running: int
    num_pages: int
    free_pages: int
    steps: int
    read_tokens: int
    new_tokens: int
    preempted: int
    seconds: float
    prefix_queries: int = 0
    prefix_hits: int = 0
    batch_sizes: Mapping[int, int] = MappingProxyType({})

    @property
    def used_pages(self) -> int:
        """Pages of a layer that running requests use, after the last step."""
        return self.num_pages - self.free_pages

    @property
    def tokens_per_second(self) -> float:
        """New tokens for each second of steps, which read prompts, too; NaN before the first step."""
        return self.new_tokens / self.seconds if self.seconds > 0 else float("nan")


class RequestQueue:
    """Requests that are generated together, step by step.

    One thread at a time steps; all others may add requests, cancel them and wait for them. The scheduler is over
    `caches`. At most `max_waiting` requests have no slot. `clock` returns seconds that never fall. `on_step` gets the
    events of each step.
    """

    def __init__(
        self,
        caches: PagedCaches,
        scheduler: Scheduler,
        max_waiting: int,
        clock: Callable[[], float],
        on_step: Callable[[list[StepEvent]], object] | None,
    ) -> None:
        self._caches, self.scheduler, self._max_waiting, self.clock = caches, scheduler, max_waiting, clock
        self.on_step = on_step
        self._requests: dict[Sequence, Request] = {}  # without the ones that have ended and were forgotten
        self._work = threading.Condition()  # held for moments: for lists, and to wait for something to do
        self._step: tuple[int, object] | None = None  # the current step: its thread, and an object of its own
        self._runs: list[Run] = []  # which the model reads at the moment
        self._token = CancellationToken()  # of these runs
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._process = os.getpid()
        self._done = BatcherStatistics(0, 0, caches.num_pages, caches.num_pages, 0, 0, 0, 0, 0.0)  # by the last step

    @property
    def statistics(self) -> BatcherStatistics:
        """The requests now, and the work of all steps so far."""
        going = [sequence for sequence in self._sequences() if not sequence.has_ended]
        waiting = sum(sequence.slot is None for sequence in going)
        scheduler = self.scheduler
        return self._done._replace(
            waiting=waiting,
            running=len(going) - waiting,
            preempted=scheduler.num_preempted,
            prefix_queries=scheduler.num_queried,
            prefix_hits=scheduler.num_hit,
        )

    def add(self, function: str, requests: list[Request]) -> None:
        """Add requests, which wait for their first step: all of them, or none if there is no room for all."""
        with self._work:
            self._check_open(function)
            num_waiting = self.statistics.waiting
            if num_waiting >= self._max_waiting:
                raise QueueFull(f"{function}: {num_waiting} requests wait, as many as max_waiting; try again later")
            if num_waiting + len(requests) > self._max_waiting:
                raise QueueFull(
                    f"{function}: {num_waiting} requests wait, and max_waiting, {self._max_waiting}, leaves no room "
                    f"for {len(requests)} more; try again later"
                )
            self._requests |= {request._sequence: request for request in requests}
            self._work.notify_all()

    def is_stepping(self) -> bool:
        """Return whether the calling thread is in a step: in a callback."""
        step = self._step
        return step is not None and step[0] == threading.get_ident()

    def wake(self) -> None:
        """Wake the thread, which may have work. End the current step if all requests that it reads have ended."""
        with self._work:
            self._stop_unneeded()
            self._work.notify_all()

    def _stop_unneeded(self) -> None:
        """End the call of the model if all requests that it reads have ended."""
        if self._runs and all(run.sequence.has_ended for run in self._runs):
            self._token.cancel()

    def step(self, function: str) -> bool:
        """Read the next tokens of all requests, and choose a token for each request that has been read to its end.

        Return whether a request is left. The next call retries a step that ends with an exception: no token is lost or
        chosen twice.
        """
        self.check_process(function)
        step = (threading.get_ident(), object())
        try:  # which an exception between any two lines does not leave without its end
            with self._work:
                self._check_open(function)
                if self._thread is not None and self._thread is not threading.current_thread():
                    raise RuntimeError(f"{function}: the Batcher has a thread that steps, since it was started")
                if self._step is not None:
                    raise RuntimeError(f"{function}: another step is under way; one thread at a time may step")
                self._step = step
            begin = self.clock()
            self._settle(begin)
            runs = self.scheduler.plan(self._sequences())
            try:
                num_new = self._read(runs, begin) if runs else 0
            except CancelledError:
                if not self._token.is_cancelled:
                    raise  # it is a token of the caller
                runs, num_new = [], 0
            end = self.clock()
            self._settle(end)
            done = self._done
            self._done = done._replace(
                free_pages=self.scheduler.free_pages(self._sequences()),
                steps=done.steps + bool(runs),
                read_tokens=done.read_tokens + sum(run.end - run.first for run in runs),
                new_tokens=done.new_tokens + num_new,
                seconds=done.seconds + (end - begin),
                batch_sizes=done.batch_sizes
                if not runs
                else {**done.batch_sizes, len(runs): done.batch_sizes.get(len(runs), 0) + 1},
            )
            return bool(self._requests)
        finally:
            # No call comes before this, since a signal might raise there, and the step would never end.
            if self._step is step:
                self._step = None
            if self._is_closed:  # by a callback
                self._end()

    def start(self, function: str) -> None:
        """Start a thread that steps while there are requests."""
        self.check_process(function)
        with self._work:
            self._check_open(function)
            if self._thread is not None:
                raise RuntimeError(f"{function}: the Batcher was started before")
            if self._step is not None:
                raise RuntimeError(f"{function}: a step is under way; one thread at a time may step")
            self._thread = threading.Thread(target=self._run, name="mha_native.serving.Batcher", daemon=True)
            self._thread.start()
        atexit.register(self.close)

    def close(self, *, waits: bool = True) -> None:
        """End all requests and the thread, and free the caches."""
        if os.getpid() != self._process:
            return  # locks may be held for ever here, and there is no thread
        with self._work:
            self._is_closed = True
            self._work.notify_all()
        if self._thread is None:
            self._end()
        elif waits and self._thread is not threading.current_thread():
            self._thread.join()

    def check_process(self, function: str) -> None:
        """Raise RuntimeError in a forked process, where the thread that steps is missing and locks may be held for
        ever."""
        check_process(function, "Batcher", self._process)

    def _check_open(self, function: str) -> None:
        if self._is_closed:
            raise RuntimeError(f"{function}: the Batcher is closed")

    def _run(self) -> None:
        """Step in the thread of the queue until it is closed."""
        while True:
            with self._work:
                self._work.wait_for(lambda: self._is_closed or self._requests)
            if self._is_closed:
                break
            try:
                self.step("Batcher")
            except BaseException as error:  # of one step; whoever waits for a request is told
                if not self._is_closed:
                    self._fail(error)
        self._end()
        atexit.unregister(self.close)

    def _sequences(self) -> list[Sequence]:
        with self._work:
            return list(self._requests)

    def _read(self, runs: list[Run], begin: float) -> int:
        """Read all runs in a step that began at `begin`, and choose a token after each run that ends its sequence.

        Return the number of these.
        """
        for run in runs:
            self._requests[run.sequence]._begin_reading(begin)
        whole = [i for i, run in enumerate(runs) if run.end == len(run.sequence.tokens)]
        with self._work:
            self._runs, self._token = runs, CancellationToken()
            self._stop_unneeded()
        try:
            with self._token:
                rows = self._caches.read(runs)
                logits = self._caches.logits(rows[whole]) if whole else None
        finally:
            self._runs = []
        if logits is None:
            return 0
        requests = [self._requests[runs[i].sequence] for i in whole]
        chosen = choose([request._choice for request in requests], logits)
        now = self.clock()
        for request, token in zip(requests, chosen, strict=True):
            if isinstance(token, Exception):
                request._end(token, "error")
            else:
                request._take(token, now)
        return len(whole)

    def _settle(self, now: float) -> None:
        """Update all requests by their tokens and the time, and forget the ones that have ended."""
        with self._work:
            requests = list(self._requests.values())
        ended = []
        for request in requests:
            request._advance(now)
            if request.done:
                request._forget()
                self.scheduler.forget(request._sequence)
                ended.append(request._sequence)
        self._tell(requests)
        with self._work:
            for sequence in ended:
                del self._requests[sequence]

    def _tell(self, requests: Iterable[Request]) -> None:
        """Call `on_step` with the news of requests, if there are any."""
        if self.on_step is None:
            return
        events = [event for request in requests if (event := request._news()) is not None]
        if not events:
            return
        try:
            self.on_step(events)
        except BaseException as error:
            if is_of_signal(error):
                raise
            for event in events:
                event.request._end(for_waiters("Batcher: on_step", error), "error")

    def _fail(self, error: BaseException) -> None:
        """End the requests that were running in a step that failed."""
        with self._work:
            requests = list(self._requests.values())
        for request in [each for each in requests if each._sequence.slot is not None] or requests:
            failure = RuntimeError(f"Batcher: a step failed with {type(error).__name__}: {shown(str(error))}")
            failure.__cause__ = error
            request._end(failure, "error")

    def _end(self) -> None:
        """End all requests, and free the caches; unless a callback asks for it, whose step does it at its own end."""
        with self._work:
            if self.is_stepping():
                return
            while self._step is not None:
                self._work.wait(_SECONDS_BETWEEN_LOOKS)
            requests = list(self._requests.values())
        for each in requests:  # all of them before any callback, which may wait for another one
            each._end(CancelledError("Batcher.close: the Batcher was closed"), "cancelled")
        while request := self._popped():  # one after another: the next `close` goes on after an exception of a signal
            request._forget()
        self._tell(requests)
        self.on_step = None  # which may keep the Batcher, whose finalizer keeps this queue
        self._caches.close()

    def _popped(self) -> Request | None:
        with self._work:
            return self._requests.pop(next(iter(self._requests))) if self._requests else None
