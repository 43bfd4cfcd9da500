"""A thread of calls: each can be cancelled while it waits and while it is computed."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, wait

import numpy as np
import pytest

pytest.importorskip("starlette")

import mha_native as mha
from mha_native.server.worker import CancellableCall, Worker

SECONDS = 30.0


def test_calls_are_cancelled_while_they_wait_and_while_they_are_computed() -> None:
    worker, has_begun, times = Worker("test"), threading.Event(), [0]
    x = np.ones((1, 1, 4, 8), np.float32)

    def endless() -> None:
        while True:
            mha.scaled_dot_product_attention(x, x, x)
            times[0] += 1
            has_begun.set()

    running, waiting, other = worker.submit(endless), worker.submit(endless), worker.submit(lambda: 5)
    assert has_begun.wait(SECONDS)
    assert worker.queued() == (2, 1)
    assert waiting.cancel()
    assert running.cancel()
    before = times[0]
    assert other.result(SECONDS) == 5
    assert times[0] <= before + 1
    assert not other.cancel()
    assert worker.queued() == (0, 0)
    ended: CancellableCall[int] = CancellableCall(lambda: 5)  # and its callbacks come later
    worker._calls.add(ended)
    ended.compute()
    assert worker.queued() == (0, 0)
    assert not wait([running, waiting], SECONDS).not_done
    with pytest.raises(CancelledError):
        running.result(SECONDS)
    with pytest.raises(ZeroDivisionError):
        worker.submit(lambda: 1 / 0).result(SECONDS)
    has_begun.clear()
    last = [worker.submit(endless) for _ in range(3)]
    assert has_begun.wait(SECONDS)
    worker.close()
    assert all(call.cancelled() for call in last)
