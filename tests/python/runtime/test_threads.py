"""Python threads, forks, and the lock between them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cases import CASES, Case, make_call
from tolerance import assert_same_bits

import mha_native
from mha_native import scaled_dot_product_attention


def test_concurrent_calls_of_different_shapes(isa: str) -> None:
    calls = [make_call(case, dtype) for case in CASES[::5] for dtype in (np.float32, np.float64)]
    expected = [scaled_dot_product_attention(*call.arrays, num_threads=1, **call.options) for call in calls]
    layer = mha_native.MultiHeadAttention(64, 4, seed=0)
    x = np.random.default_rng(0).standard_normal((3, 70, 64), dtype=np.float32)
    expected_layer = layer(x, num_threads=1)

    def work(worker: int) -> None:
        order = np.random.default_rng(worker).permutation(len(calls))
        for i in order:
            out = scaled_dot_product_attention(*calls[i].arrays, num_threads=1 + worker % 3, **calls[i].options)
            assert_same_bits(out, expected[i], label=f"worker {worker} call {i}")
        assert_same_bits(layer(x, num_threads=1 + worker % 3), expected_layer)

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(work, worker) for worker in range(6)]:
            future.result()


def test_errors_in_one_thread_do_not_disturb_another() -> None:
    call = make_call(Case("disturbed", "", H=4, Tq=200, D=64), np.float32)
    expected = scaled_dot_product_attention(*call.arrays)

    def fail(_: int) -> None:
        with pytest.raises(ValueError, match="head_dim"):
            scaled_dot_product_attention(call.query[..., :3], call.key, call.value)

    def succeed(_: int) -> None:
        assert_same_bits(scaled_dot_product_attention(*call.arrays), expected)

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit((fail, succeed)[i % 2], i) for i in range(40)]
        for future in futures:
            future.result()


@pytest.mark.parametrize("what", ["attention", "weights", "merge", "layer"])
def test_the_interpreter_runs_meanwhile(what: str) -> None:
    # With a switch interval of an hour no thread is ever made to give up the interpreter. A second thread that counts,
    # and gives way after each step, can then only advance while the first one has let go of its own accord.
    query = np.zeros((1, 4, 1000, 64), np.float32)
    layer = mha_native.MultiHeadAttention(256, 4, seed=0)
    x = np.zeros((1, 1000, 256), np.float32)
    call = {
        "attention": lambda: scaled_dot_product_attention(query, query, query, num_threads=1),
        "weights": lambda: mha_native.attention_weights(query, query, num_threads=1),
        "merge": lambda: mha_native.merge_attention([query] * 8, [query[..., 0]] * 8, num_threads=1),
        "layer": lambda: layer(x, num_threads=1),
    }[what]
    count, done = [0], threading.Event()

    def counts() -> None:
        while not done.is_set():
            count[0] += 1
            time.sleep(0)

    before = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    thread = threading.Thread(target=counts)
    try:
        thread.start()
        start = count[0]
        sum(range(1_000_000))
        assert count[0] == start, "a loop in Python does not let go: else this test shows nothing"
        for _ in range(50):
            start = count[0]
            call()
            if count[0] > start:
                return
        pytest.fail("no call let another thread run")
    finally:
        done.set()
        sys.setswitchinterval(before)
        thread.join()


def test_last_used_isa_belongs_to_the_thread() -> None:
    call = make_call(CASES[0], np.float32)
    scaled_dot_product_attention(*call.arrays)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(mha_native.last_used_isa).result() == ""
        pool.submit(scaled_dot_product_attention, *call.arrays).result()
        assert pool.submit(mha_native.last_used_isa).result() == mha_native.active_isa()


FORK = """
import os, signal, sys, threading, warnings
import numpy as np
import mha_native

rng = np.random.default_rng(0)
query, key, value = rng.standard_normal((3, 2, 8, 300, 64), dtype=np.float32)
layer = mha_native.MultiHeadAttention(512, 8, seed=0)
x = rng.standard_normal((2, 200, 512), dtype=np.float32)

def compute():
    out, lse = mha_native.scaled_dot_product_attention(query, key, value, return_lse=True, num_threads=2)
    return out.tobytes() + lse.tobytes() + layer(x, num_threads=2).tobytes()

if {parallel_before}:
    expected = compute()
if {from_thread}:
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
reader, writer = os.pipe()
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of forking a process with threads, since Python 3.12
    child = os.fork()
if child == 0:
    signal.alarm(60)  # a hang ends here, as a signal
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = compute()
        assert ours == compute()
    os.write(writer, b"%d" % len([w for w in caught if "fork" in str(w.message)]))
    assert not {parallel_before} or ours == expected, "other bits"
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, f"child status {{status}}"
print(os.read(reader, 10).decode())
if {parallel_before}:
    assert compute() == expected, "the parent is disturbed"
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.parametrize(("parallel_before", "from_thread"), [(True, False), (True, True), (False, False)])
def test_after_a_fork(parallel_before: bool, from_thread: bool) -> None:
    code = textwrap.dedent(FORK).format(parallel_before=parallel_before, from_thread=from_thread)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "1", f"warnings of the child: {result.stdout}"


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="only Linux lists the threads of a process")
def test_threads_may_run_where_they_might_before() -> None:
    # A thread that comes late moves itself away from the processor of its caller: for that moment only.
    call = make_call(Case("moved", "", H=8, Tq=64, D=64), np.float32)
    for _ in range(20):
        time.sleep(0.03)  # else no thread sleeps
        scaled_dot_product_attention(*call.arrays, num_threads=2)
    allowed = set()
    for task in os.listdir("/proc/self/task"):
        # A thread of another test may end meanwhile.
        with (
            contextlib.suppress(FileNotFoundError, ProcessLookupError),
            open(f"/proc/self/task/{task}/status", encoding="ascii") as lines,
        ):
            allowed |= {line for line in lines if line.startswith("Cpus_allowed_list")}
    assert len(allowed) == 1
