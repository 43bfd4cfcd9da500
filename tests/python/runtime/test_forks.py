"""Processes that are forked: they never hang, and compute the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import fork_cell
import fresh_process
import pytest

import mha_native.functions.runtime

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")

RUNTIMES = mha_native.functions.runtime._openmp_runtimes()
SCRIPT = Path(fork_cell.__file__)

# (start method, where the library is imported, who has computed before, whether somebody computes meanwhile)
QUICK = {
    ("fork", "before", "ours", "busy"),
    ("fork", "child", "openmp", "idle"),
    ("fork", "child", "openmp", "busy"),
    ("forkserver", "child", "nothing", "idle"),
}


def cells() -> Iterator[object]:
    for method in ("fork", "forkserver", "spawn"):
        for imported in ("before", "child"):
            for computed in ("nothing", "ours", "openmp", "torch"):
                if imported == "child" and computed == "ours":
                    continue
                for during in ("idle", "busy"):
                    cell = (method, imported, computed, during)
                    marks = [] if cell in QUICK else [pytest.mark.exhaustive]
                    yield pytest.param(*cell, marks=marks, id="-".join(cell))


@pytest.fixture(scope="module")
def expected() -> str:
    return fork_cell.digest()


@pytest.mark.parametrize(("method", "imported", "computed", "during"), list(cells()))
def test_matrix(method: str, imported: str, computed: str, during: str, expected: str) -> None:
    if computed == "torch" and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    if computed == "openmp":
        if not RUNTIMES:
            pytest.skip("this build has no OpenMP")
        computed = RUNTIMES[0]
    result = subprocess.run(
        [sys.executable, str(SCRIPT), method, imported, computed, during], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    bits, threads = result.stdout.split()
    assert bits == expected
    is_child_of_fork_alone = imported == "before" and method != "spawn"
    if RUNTIMES and int(threads) > 0:  # Linux says how many
        assert (int(threads) > 1) != is_child_of_fork_alone, (
            "only a child forked from the library computes on one thread"
        )


def _run(code: str) -> None:
    prologue = """
    import os, signal, threading, warnings
    warnings.simplefilter("ignore")

    def in_child(check):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            status = 1
            try:
                check()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0, "the child failed"
    """
    result = fresh_process.run(textwrap.dedent(prologue) + textwrap.dedent(code))
    assert result.returncode == 0, result.stderr


def test_a_cache_that_a_call_appends_to_is_free_in_the_child() -> None:
    _run("""
    layer = mha.MultiHeadAttention(64, 4, seed=0)
    cache = layer.new_cache(1, 8_001)
    layer(np.ones((1, 1, 64), np.float32), cache=cache)
    x = np.ones((1, 8_000, 64), np.float32)

    def code_of_child():
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            code = 1
            try:
                if cache.lengths[0] == 8_001:
                    os._exit(2)  # the fork came after the call
                check()
                code = 0
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def check():
        assert cache.lengths[0] == 1
        layer(x[:, :2], cache=cache)
        assert cache.lengths[0] == 3
        in_child(lambda: cache.rollback(1))

    code = 2
    for _ in range(50):
        thread = threading.Thread(target=lambda: layer(x, cache=cache, is_causal=True))
        thread.start()
        busy = False
        while thread.is_alive() and not busy:
            try:
                cache.rollback(0)
            except RuntimeError as error:
                busy = "another thread" in str(error)
        if busy:
            code = code_of_child()
        thread.join()
        assert cache.lengths[0] == 8_001
        if code != 2:
            break
        cache.rollback(8_000)
    assert code == 0, code
    """)


def test_a_cache_whose_tokens_are_being_moved_must_be_cleared_in_the_child() -> None:
    _run("""
    cache = mha.KVCache(1, 1, 2**18, 64)
    x = np.ones((1, 1, 2**18, 64), np.float32)
    cache.append(x, x)
    done = False

    def move():
        while not done:
            cache.keep_last(2**18 - 1)
            cache.append(x[:, :, :1], x[:, :, :1])

    def check():
        try:
            cache.rollback(1)
        except RuntimeError as error:
            os._exit(0 if "forked" in str(error) and cleared() else 1)
        os._exit(2)  # the fork came between two moves

    def cleared():
        cache.clear()
        cache.append(x[:, :, :2], x[:, :, :2])
        return cache.lengths[0] == 2

    thread = threading.Thread(target=move, daemon=True)
    thread.start()
    seen = set()
    for _ in range(200):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            check()
        seen.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        if 0 in seen:
            break
    done = True
    thread.join()
    assert 0 in seen and 1 not in seen, seen
    """)
