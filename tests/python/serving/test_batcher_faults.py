"""What goes wrong with a Batcher: no page is lost, no thread hangs, and the tokens of the others do not change."""

from __future__ import annotations

import asyncio
import gc
import linecache
import os
import sys
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

import fresh_process
import tiny_language_model
from tiny_language_model import VOCABULARY

import mha_native.serving
from mha_native.models import CausalLM
from mha_native.serving import Batcher, Request

PACKAGE = os.path.dirname(mha_native.serving.__file__)
SMALL: dict[str, Any] = {
    "max_sequences": 3,
    "num_pages": 5,
    "tokens_per_step": 60,
}  # requests wait, and give pages back


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_language_model.write(tmp_path_factory.mktemp("model") / "tiny", n_positions=300)


@pytest.fixture(scope="module")
def model(directory: Path) -> CausalLM:
    return CausalLM.from_pretrained(directory)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Five, of one to three pages; some begin alike."""
    rng = np.random.default_rng(0)
    beginning = rng.integers(2, VOCABULARY, 130).tolist()
    return [beginning[:cut] + rng.integers(2, VOCABULARY, 5).tolist() for cut in (50, 130, 0, 126, 70)]


OPTIONS: list[dict[str, Any]] = [
    {"max_new_tokens": 150},
    {"max_new_tokens": 9, "temperature": 1.5, "seed": 4},
    {"max_new_tokens": 140, "repetition_penalty": 1.3, "temperature": 0.7, "seed": 5},
    {"max_new_tokens": 12, "stop": ["never in the text"]},
    {"max_new_tokens": 1},
]


@pytest.fixture(scope="module")
def expected(model: CausalLM, prompts: list[list[int]]) -> list[list[int]]:
    found = []
    for prompt, options in zip(prompts, OPTIONS, strict=True):
        found.append(model.generate_tokens(prompt, **{k: v for k, v in options.items() if k != "stop"}).tolist())
    return found


def submit_all(batcher: Batcher, prompts: list[list[int]], **more: Any) -> list[Request]:
    return [batcher.submit(prompt, **options, **more) for prompt, options in zip(prompts, OPTIONS, strict=True)]


def pages_lost(batcher: Batcher) -> int:
    """When all requests have ended."""
    assert not batcher._queue._requests
    scheduler = batcher._queue.scheduler
    assert scheduler.free_pages([]) == batcher.statistics.free_pages == batcher.statistics.num_pages
    scheduler.release_kept()
    return scheduler._pool.num_pages - scheduler._pool.free_pages


def wait_for_pages(batcher: Batcher) -> None:
    """Until the thread has forgotten all requests, which have ended."""
    deadline = time.monotonic() + 30
    while batcher.statistics.free_pages < batcher.statistics.num_pages and time.monotonic() < deadline:
        time.sleep(0.001)
    while batcher._queue._requests and time.monotonic() < deadline:
        time.sleep(0.001)


def finish(batcher: Batcher) -> None:
    for _ in range(2000):
        if not batcher.run_step():
            return
    raise AssertionError(batcher)


def num_steps(model: CausalLM, prompts: list[list[int]]) -> int:
    batcher, steps = Batcher(model, **SMALL), 1
    submit_all(batcher, prompts)
    while batcher.run_step():
        steps += 1
    assert batcher.statistics.preempted > 0
    return steps


@pytest.mark.parametrize("every", [113, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_request_is_cancelled_before_any_step(
    model: CausalLM, prompts: list[list[int]], expected: list[list[int]], every: int
) -> None:
    steps = num_steps(model, prompts)
    for victim in range(len(prompts)):
        for when in range(victim % every, steps, every):
            batcher = Batcher(model, **SMALL)
            requests = submit_all(batcher, prompts)
            for _ in range(when):
                batcher.run_step()
            was_going = not requests[victim].done
            assert requests[victim].cancel() == was_going
            finish(batcher)
            assert pages_lost(batcher) == 0
            for k, request in enumerate(requests):
                if k == victim and was_going:
                    assert (
                        requests[k]._sequence.tokens[len(prompts[k]) :] == expected[k][: request.statistics.new_tokens]
                    )
                    with pytest.raises(CancelledError, match=r"Request.cancel: the request was cancelled"):
                        request.result(0)
                else:
                    assert list(request.tokens()) == expected[k]


@pytest.mark.parametrize("at", [0, 1, 5, "end"])
@pytest.mark.parametrize("victim", [0, 3, 4])
def test_an_exception_in_a_callback_ends_its_request_only(
    model: CausalLM, prompts: list[list[int]], expected: list[list[int]], victim: int, at: Any
) -> None:
    class Broken(Exception):
        pass

    calls: list[str | None] = []
    has_raised = False

    def on_text(piece: str | None) -> None:
        nonlocal has_raised
        calls.append(piece)
        if len(calls) - 1 == at or (at == "end" and piece is None):
            has_raised = True
            raise Broken

    batcher = Batcher(model, **SMALL)
    requests = [
        batcher.submit(prompt, **options, on_text=on_text if k == victim else None)
        for k, (prompt, options) in enumerate(zip(prompts, OPTIONS, strict=True))
    ]
    finish(batcher)
    assert pages_lost(batcher) == 0
    assert calls.count(None) == 1
    for k, request in enumerate(requests):
        if k == victim and has_raised:
            with pytest.raises(Broken):
                request.result(0)
        else:
            assert list(request.tokens()) == expected[k]


def test_logits_that_are_no_numbers_end_their_request_only(
    model: CausalLM, prompts: list[list[int]], expected: list[list[int]], monkeypatch: Any
) -> None:
    batcher = Batcher(model, **SMALL)
    requests = submit_all(batcher, prompts)
    pool, places = batcher._queue._caches, []
    original = type(pool).read

    def read(runs: Any) -> Any:
        places[:] = [run.sequence is requests[2]._sequence and run.end > 20 for run in runs]
        rows = original(pool, runs)
        rows[places] = np.nan
        return rows

    monkeypatch.setattr(pool, "read", read)
    finish(batcher)
    assert pages_lost(batcher) == 0
    with pytest.raises(ValueError, match=r"Batcher.submit: the largest logit is nan"):
        requests[2].result(0)
    assert [list(requests[k].tokens()) for k in (0, 1, 3, 4)] == [expected[k] for k in (0, 1, 3, 4)]


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("is_behind", [False, True])
def test_a_step_that_fails_can_be_done_again(
    model: CausalLM, prompts: list[list[int]], expected: list[list[int]], error: Any, is_behind: bool, monkeypatch: Any
) -> None:
    batcher = Batcher(model, **SMALL)
    requests = submit_all(batcher, prompts)
    pool, num_calls = batcher._queue._caches, 0
    original = type(pool).read

    def read(runs: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls % 3 == 0 and not is_behind:
            raise error
        rows = original(pool, runs)
        if num_calls % 3 == 0:
            raise error
        return rows

    monkeypatch.setattr(pool, "read", read)
    while True:
        try:
            if not batcher.run_step():
                break
        except error:
            pass
    assert num_calls > 30
    assert pages_lost(batcher) == 0
    assert [list(request.tokens()) for request in requests] == expected


def test_a_step_that_is_interrupted_at_any_line_can_be_done_again(
    model: CausalLM, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """A signal raises KeyboardInterrupt wherever Python is: here at random lines of the Batcher, again and again."""
    rng = np.random.default_rng(0)
    left, num_interrupts = 0, 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left, num_interrupts
        if not frame.f_code.co_filename.startswith((PACKAGE, model_files)):
            return None
        # Signals are handled at calls and at ends of loops, and in the statements that end a step there are none of
        # these.
        if event == "line" and "self._step" not in linecache.getline(frame.f_code.co_filename, frame.f_lineno):
            left -= 1
            if left == 0:
                num_interrupts += 1
                raise KeyboardInterrupt
        return trace

    model_files = os.path.join(os.path.dirname(PACKAGE), "models")
    gc.collect()  # a Batcher of another test would end here, and Python drops the error of a finalizer
    for _ in range(2):
        batcher = Batcher(model, **SMALL)
        texts: list[list[str | None]] = [[] for _ in prompts]
        requests = [
            batcher.submit(prompt, **options, on_text=heard.append)
            for prompt, options, heard in zip(prompts, OPTIONS, texts, strict=True)
        ]
        old, is_going = sys.gettrace(), True
        while is_going:
            left = int(rng.integers(1, 6000))
            sys.settrace(trace)
            try:
                is_going = batcher.run_step()
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(old)
        assert pages_lost(batcher) == 0
        assert [list(request.tokens()) for request in requests] == expected
        for request, heard in zip(requests, texts, strict=True):
            assert heard[-1] is None
            pieces = iter(request)
            assert all(piece in pieces for piece in heard[:-1]), "none comes twice; one may be lost with its interrupt"
    assert num_interrupts > 20


def test_a_thread_whose_step_fails_goes_on(
    model: CausalLM, prompts: list[list[int]], expected: list[list[int]], monkeypatch: Any
) -> None:
    batcher = Batcher(model, **SMALL)
    pool, is_broken = batcher._queue._caches, True
    original = type(pool).read

    def read(runs: Any) -> Any:
        if is_broken:
            raise MemoryError("no room")
        return original(pool, runs)

    monkeypatch.setattr(pool, "read", read)
    with batcher:
        for request in submit_all(batcher, prompts):
            with pytest.raises(RuntimeError, match="Batcher: a step failed with MemoryError: 'no room'"):
                request.result(30)
        is_broken = False
        requests = submit_all(batcher, prompts)
        for request in requests:
            request.result(30)
        assert [list(request.tokens()) for request in requests] == expected


def test_a_callback_that_ends_its_thread_ends_nothing_else(model: CausalLM) -> None:
    def on_text(piece: str | None) -> None:
        raise SystemExit

    with Batcher(model) as batcher:
        request = batcher.submit([5, 6], max_new_tokens=3, on_text=on_text)
        with pytest.raises(RuntimeError, match="SystemExit"):
            request.result(30)
        assert batcher.submit([5, 7], max_new_tokens=3).result(30) == model.generate([5, 7], max_new_tokens=3)


class Ending(BaseException):
    """No Exception, like the others that end a thread or a task."""


@pytest.mark.parametrize("at", [1, 3, "end", "cancelled"])
@pytest.mark.parametrize(
    "error",
    [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit, Ending, StopIteration, CancelledError],
)
def test_an_error_of_any_kind_in_a_callback_ends_its_request_only(
    model: CausalLM, prompts: list[list[int]], expected: list[list[int]], error: type[BaseException], at: Any
) -> None:
    """In the thread of the Batcher, where no signal is handled."""
    victim, calls, has_raised = 2, 0, threading.Event()

    def on_text(piece: str | None) -> None:
        nonlocal calls
        calls += 1
        if at == "cancelled" and calls == 1:
            requests[victim].cancel()
        if calls == at or (at in ("end", "cancelled") and piece is None):
            has_raised.set()
            raise error("of its own")

    batcher = Batcher(model, **SMALL)
    requests = [
        batcher.submit(prompt, **options, on_text=on_text if k == victim else None)
        for k, (prompt, options) in enumerate(zip(prompts, OPTIONS, strict=True))
    ]
    with batcher:
        for k, request in enumerate(requests):
            if k != victim:
                request.result(30)
                assert list(request.tokens()) == expected[k]
        if at == "cancelled":
            with pytest.raises(CancelledError, match=r"Request\.cancel"):
                requests[victim].result(30)
        else:
            with pytest.raises((error, RuntimeError)) as caught:
                requests[victim].result(30)
            assert isinstance(caught.value, Exception), "it does not end the thread that waits"
            assert issubclass(error, Exception) or isinstance(caught.value.__cause__, error)
            assert "of its own" in str(caught.value)
            with pytest.raises((type(caught.value), RuntimeError)):  # Python lets no StopIteration out of a generator
                list(requests[victim])
        wait_for_pages(batcher)
        assert has_raised.is_set()
        assert pages_lost(batcher) == 0
        assert batcher.submit(prompts[4], **OPTIONS[4]).result(30) == model.generate(prompts[4], **OPTIONS[4])


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("is_main", [True, False])
def test_what_may_be_of_a_signal_leaves_a_step_and_ends_no_request(
    model: CausalLM, prompts: list[list[int]], expected: list[list[int]], error: type[BaseException], is_main: bool
) -> None:
    victim, calls = 0, 0

    def on_text(piece: str | None) -> None:
        nonlocal calls
        calls += 1
        if calls in (2, 5) or piece is None:
            raise error

    batcher = Batcher(model, **SMALL)
    requests = [
        batcher.submit(prompt, **options, on_text=on_text if k == victim else None)
        for k, (prompt, options) in enumerate(zip(prompts, OPTIONS, strict=True))
    ]
    num_left = 0

    def drive() -> None:
        nonlocal num_left
        for _ in range(2000):
            try:
                if not batcher.run_step():
                    return
            except error:
                num_left += 1

    if is_main:
        drive()
    else:
        thread = threading.Thread(target=drive)
        thread.start()
        thread.join(60)
    assert pages_lost(batcher) == 0
    leaves = is_main and error is not asyncio.CancelledError
    assert num_left == (3 if leaves else 0)
    for k, request in enumerate(requests):
        if k == victim and not leaves:
            with pytest.raises(RuntimeError, match=f"on_text failed with {error.__name__}"):
                request.result(0)
        else:
            assert list(request.tokens()) == expected[k]


def test_closing_ends_all_requests_although_their_callbacks_fail(model: CausalLM) -> None:
    has_begun = threading.Event()

    def on_text(piece: str | None) -> None:
        has_begun.set()
        end = time.monotonic() + 30
        while not batcher._queue._is_closed:  # no text comes to its end before
            assert time.monotonic() < end
            time.sleep(0.001)
        if piece is None:
            for request in requests:
                with pytest.raises(CancelledError):
                    request.result()
            raise SystemExit

    batcher = Batcher(model, max_sequences=2)
    requests = [batcher.submit([5, 6, 7], max_new_tokens=250, on_text=on_text) for _ in range(4)]
    with batcher:
        assert has_begun.wait(30)
    for request in requests:
        with pytest.raises(CancelledError, match=r"Batcher\.close"):
            request.result(30)
    assert batcher._queue._caches.free_pages == batcher.statistics.num_pages


@pytest.mark.parametrize("has_thread", [True, False])
def test_what_a_callback_may_do_with_its_batcher(model: CausalLM, has_thread: bool) -> None:
    """It may submit, cancel and close. Waits would have no end, and another step or thread is refused."""
    refused: list[str] = []
    more: list[Request] = []

    def on_text(piece: str | None) -> None:
        if refused or piece is None:
            return
        calls = (
            other.result,
            lambda: next(iter(waiting)),
            lambda: list(own[0].tokens()),
            batcher.run_step,
            batcher.start,
        )
        for call in calls:
            with pytest.raises(RuntimeError) as error:
                call()
            refused.append(str(error.value))
        with pytest.raises(TimeoutError):
            other.result(0.0)
        more.append(batcher.submit([8, 9], max_new_tokens=3))
        assert other.cancel()
        with pytest.raises(CancelledError):
            other.result()

    def closes(piece: str | None) -> None:
        batcher.close()

    batcher = Batcher(model, max_sequences=2)
    own = [batcher.submit([5, 6], max_new_tokens=20, on_text=on_text)]
    other, waiting = (batcher.submit([7, 8, 9], max_new_tokens=250) for _ in range(2))
    if has_thread:
        batcher.start()
        assert own[0].result(30) == model.generate([5, 6], max_new_tokens=20)
        assert more[0].result(30) == model.generate([8, 9], max_new_tokens=3)
        last = batcher.submit([5, 6], max_new_tokens=20, on_text=closes)
        batcher._queue._thread.join(30)  # type: ignore[union-attr]
        assert not batcher._queue._thread.is_alive()  # type: ignore[union-attr]
    else:
        finish(batcher)
        last = batcher.submit([5, 6], max_new_tokens=20, on_text=closes)
        while not last.done:
            batcher.run_step()
    assert sum("a callback must not wait for a request" in message for message in refused) == 3
    steps = "Batcher.run_step: another step is under way; one thread at a time may step"
    starts = "Batcher.start: a step is under way; one thread at a time may step"
    assert refused[3:] == [steps, "Batcher.start: the Batcher was started before" if has_thread else starts]
    with pytest.raises(CancelledError):
        last.result(30)


def test_consumers_that_go_away_change_nothing(
    model: CausalLM, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """Iterators that are closed early, and tasks of asyncio that are cancelled while they wait."""

    async def consume(request: Request) -> list[str]:
        pieces, end = iter(request), object()
        found: list[Any] = []
        while not found or found[-1] is not end:
            found.append(await asyncio.to_thread(next, pieces, end))
        return found[:-1]

    async def consume_all() -> list[Any]:
        tasks = [asyncio.create_task(consume(request)) for request in requests]
        await asyncio.sleep(0.01)
        for task in tasks[1:]:
            task.cancel()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)

    with Batcher(model, **SMALL) as batcher:
        requests = submit_all(batcher, prompts)
        closed = iter(requests[0].tokens())
        next(closed)
        closed.close()  # type: ignore[attr-defined]
        first, *_ = asyncio.run(consume_all())
        assert "".join(first) == requests[0].result(30)
        for request, tokens in zip(requests, expected, strict=True):
            request.result(30)
            assert list(request.tokens()) == tokens


def test_requests_come_and_go_in_random_threads(
    model: CausalLM, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    wrong: list[object] = []

    def client(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(6):
            k = int(rng.integers(len(prompts)))
            try:
                request = batcher.submit(prompts[k], **OPTIONS[k])
                for _, token in zip(range(int(rng.integers(1, 20))), request.tokens(), strict=False):
                    assert 0 <= token < VOCABULARY
                if rng.random() < 0.5:
                    request.cancel()
                elif list(request.tokens()) != expected[k]:
                    wrong.append((k, list(request.tokens())))
            except Exception as error:
                wrong.append(error)

    with Batcher(model, **SMALL) as batcher:
        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert wrong == []
        wait_for_pages(batcher)
        assert pages_lost(batcher) == 0


def test_a_batcher_that_nobody_has_ends_its_thread(model: CausalLM) -> None:
    batcher = Batcher(model).start()
    thread: Any = batcher._queue._thread
    may_go_on = threading.Event()
    request = batcher.submit([5] * 30, max_new_tokens=200, on_text=lambda _: may_go_on.wait(30))
    next(iter(request.tokens()))
    del batcher
    gc.collect()
    may_go_on.set()
    thread.join(30)
    assert not thread.is_alive()
    with pytest.raises(CancelledError):
        request.result(0)


def test_a_program_ends_while_a_batcher_runs(directory: Path) -> None:
    fresh_process.output(
        f"""
        from mha_native.models import CausalLM
        from mha_native.serving import Batcher
        batcher = Batcher(CausalLM.from_pretrained({str(directory)!r})).start()
        requests = [batcher.submit([5] * 100, max_new_tokens=200) for _ in range(9)]
        next(iter(requests[0]))
        """
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_fork_is_told_that_it_has_no_batcher(directory: Path) -> None:
    printed = fresh_process.output(
        f"""
        import os, warnings
        from mha_native.models import CausalLM
        from mha_native.serving import Batcher
        warnings.simplefilter("ignore")
        batcher = Batcher(CausalLM.from_pretrained({str(directory)!r})).start()
        request = batcher.submit([5] * 100, max_new_tokens=150)
        next(iter(request))
        child = os.fork()
        if child == 0:
            for call in (lambda: batcher.submit([5]), lambda: batcher.statistics, request.result, request.cancel,
                         batcher.start, batcher.run_step, lambda: next(iter(request))):
                try:
                    call()
                    print("not refused", flush=True)
                except RuntimeError as error:
                    assert "a fork of it" in str(error), error
            batcher.close()
            del batcher, request
            raise SystemExit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert request.result() == batcher._model.generate([5] * 100, max_new_tokens=150)
        print("whole")
        """
    )
    assert printed == "whole"
