"""Threads and instruction sets that several threads and tasks choose for overlapping times."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import fresh_process
import numpy as np
import pytest
import tiny_bert

import mha_native as mha
from mha_native.functions.runtime import CallThreads, _threads, threads_of_call
from mha_native.models import SentenceEncoder

ISAS = mha.available_isas()
SETTINGS: list[tuple[Any, Callable[[], Any], list[Any]]] = [
    (mha.use_threads, mha.num_threads, [3, 4, 5]),
    (mha.use_isa, mha.active_isa, [ISAS[0], ISAS[-1], ISAS[len(ISAS) // 2]]),
]


@pytest.fixture(params=SETTINGS, ids=["threads", "isa"])
def setting(request: pytest.FixtureRequest) -> tuple[Any, Callable[[], Any], list[Any]]:
    found: tuple[Any, Callable[[], Any], list[Any]] = request.param
    return found


@pytest.fixture(autouse=True)
def _untouched() -> Iterator[None]:
    before = mha.num_threads(), mha.active_isa()
    yield
    assert (mha.num_threads(), mha.active_isa()) == before


def test_blocks_end_in_any_order(setting: Any) -> None:
    use, current, (first, second, third) = setting
    with use(third):
        blocks = [use(value) for value in (first, second)]
        for block in blocks:
            block.__enter__()
        assert current() == second
        blocks[0].__exit__(None, None, None)
        assert current() == second  # the newest choice counts until its own end
        blocks[1].__exit__(None, None, None)
        assert current() == third
        with blocks[0]:  # once more
            assert current() == first
        assert current() == third


def test_blocks_of_two_threads_overlap(setting: Any) -> None:
    use, current, (first, second, _) = setting
    before, is_open, may_end = current(), threading.Event(), threading.Event()

    def hold() -> None:
        with use(first):
            is_open.set()
            may_end.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    is_open.wait(10)
    assert current() == first  # in the whole process
    with use(second):
        may_end.set()
        thread.join()
        assert current() == second
    assert current() == before


def test_blocks_of_tasks_overlap(setting: Any) -> None:
    use, current, values = setting
    before = current()

    async def hold(value: Any, seconds: float) -> None:
        with use(value):
            await asyncio.sleep(seconds)

    async def all_of_them() -> None:
        await asyncio.gather(*(hold(value, 0.03 / (i + 1)) for i, value in enumerate(values)))

    asyncio.run(all_of_them())
    assert current() == before


def test_many_threads_leave_what_was_there(setting: Any) -> None:
    use, current, values = setting

    def churn(seed: int) -> None:
        for i in np.random.default_rng(seed).integers(0, len(values), 300):
            with use(values[i]), use(None):
                pass

    with use(values[0]), ThreadPoolExecutor(4) as pool:
        list(pool.map(churn, range(4)))
        assert current() == values[0]


def test_a_choice_in_a_block_ends_with_it_and_one_outside_lasts() -> None:
    before = mha.num_threads()
    try:
        with mha.use_threads(3):
            mha.set_num_threads(4)
            assert mha.num_threads() == 4
            mha.use_threads(6)  # not in a with statement
            assert mha.num_threads() == 6
            thread = threading.Thread(target=mha.set_num_threads, args=(5,))  # outside the block
            thread.start()
            thread.join()
            assert mha.num_threads() == 5  # the newest one
        assert mha.num_threads() == 5
    finally:
        mha.set_num_threads(None)
    assert mha.num_threads() == before


def test_choices_that_no_block_ends_are_not_kept() -> None:
    try:
        for n in range(100):
            mha.set_num_threads(1 + n % 2)
            mha.use_threads(1 + n % 3)
        gc.collect()
        assert len(_threads._current) < 5
    finally:
        mha.set_num_threads(None)


def test_a_refused_choice_changes_nothing() -> None:
    with mha.use_threads(3):
        for wrong in (0, "x"):
            with pytest.raises((TypeError, ValueError), match="use_threads: n"):
                mha.use_threads(wrong)  # type: ignore[arg-type]
            assert mha.num_threads() == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_has_no_blocks_of_other_threads() -> None:
    code = """
import os, threading, warnings
warnings.simplefilter("ignore")
first = mha.available_isas()[0]
outside, is_open, done = mha.active_isa(), threading.Event(), threading.Event()
def hold():
    with mha.use_isa(first):
        is_open.set()
        done.wait()
thread = threading.Thread(target=hold)
thread.start()
is_open.wait()
child = os.fork()
if child == 0:
    os._exit(mha.active_isa() != outside or mha.num_threads() != 1)
print(os.waitpid(child, 0)[1])
done.set()
"""
    assert fresh_process.output(code) == "0"


def test_the_steps_of_a_call_have_one_setting() -> None:
    with mha.use_isa(ISAS[0]), mha.use_threads(3):
        threads = threads_of_call("f", None)
    assert threads == 3
    x = np.ones((2, 3), np.float32)
    mha.scaled_dot_product_attention(x, x, x, num_threads=threads)
    assert mha.last_used_isa() == ISAS[0]
    assert mha.active_isa() != ISAS[0] or len(ISAS) == 1
    assert threads_of_call("f", threads) is threads
    unknown = CallThreads(1)
    unknown.isa = 99
    with pytest.raises(ValueError, match="isa index"):
        mha.scaled_dot_product_attention(x, x, x, num_threads=unknown)


def _flipping(seconds: float) -> AbstractContextManager[Any]:
    end = threading.Event()

    class Flipping:
        def __enter__(self) -> None:
            self.thread = threading.Thread(target=self.flip)
            self.thread.start()

        def flip(self) -> None:
            while not end.is_set():
                for name in (ISAS[0], ISAS[-1]):
                    with mha.use_isa(name):
                        time.sleep(seconds)

        def __exit__(self, *exception: object) -> None:
            end.set()
            self.thread.join()

    return Flipping()


@pytest.mark.skipif(len(ISAS) < 2, reason="needs two instruction sets")
def test_a_model_does_not_mix_instruction_sets(tmp_path: Path) -> None:
    model = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path, tiny_bert.config()))
    rng = np.random.default_rng(0)
    sequences = [rng.integers(1, 20, 12).tolist() for _ in range(4)]
    allowed = set()
    for name in ISAS:
        with mha.use_isa(name):
            allowed.add(model.encode_tokens(sequences, num_threads=1).tobytes())
    assert len(allowed) > 1, "else this test shows nothing"
    with _flipping(2e-5):
        found = {model.encode_tokens(sequences, num_threads=1).tobytes() for _ in range(1500)}
    assert found <= allowed
