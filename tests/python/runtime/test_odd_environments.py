"""Environment variables of OpenMP, and processes that are not allowed what they ask for: right results, or an error."""

from __future__ import annotations

import os
import sys
from typing import Any

import fresh_process
import pytest

import mha_native.functions.runtime

# Prints a digest of results by `threads` threads.
COMPUTE = """
import hashlib
rng = np.random.default_rng(0)
query, key, value = rng.standard_normal((3, 2, 8, 200, 64), dtype=np.float32)
with mha.use_threads(1):  # which also pack weights
    layer = mha.MultiHeadAttention(256, 4, seed=0)
x = rng.standard_normal((2, 100, 256), dtype=np.float32)

def compute(threads):
    results = mha.scaled_dot_product_attention(query, key, value, num_threads=threads), layer(x, num_threads=threads)
    return hashlib.sha256(b"".join(result.tobytes() for result in results)).hexdigest()
"""

BINDINGS = [
    {"OMP_PROC_BIND": "true"},
    {"OMP_PROC_BIND": "close"},
    {"OMP_PROC_BIND": "spread"},
    {"OMP_PROC_BIND": "master"},
    {"OMP_PLACES": "cores"},
    {"OMP_PLACES": "threads", "OMP_PROC_BIND": "close"},
    {"GOMP_CPU_AFFINITY": "PROCESSORS"},
]

ODD = [
    *BINDINGS,
    {"OMP_NUM_THREADS": "100000"},
    {"OMP_NUM_THREADS": "0"},
    {"OMP_NUM_THREADS": "1,2,3"},
    {"OMP_DYNAMIC": "true"},
    {"OMP_THREAD_LIMIT": "1"},
    {"OMP_THREAD_LIMIT": "2"},
    {"OMP_NESTED": "true"},
    {"OMP_MAX_ACTIVE_LEVELS": "0"},
    {"OMP_WAIT_POLICY": "active"},
    {"OMP_WAIT_POLICY": "passive"},
    {"OMP_STACKSIZE": "1"},
    {"OMP_STACKSIZE": "64K"},
    {"OMP_STACKSIZE": "nonsense"},
    {"OMP_CANCELLATION": "true"},
    {"OMP_PLACES": "{99999}"},
    {"GOMP_SPINCOUNT": "0"},
    {"KMP_AFFINITY": "compact"},
    {"KMP_BLOCKTIME": "0"},
    {"KMP_STACKSIZE": "64K"},
    {"OMP_STACKSIZE": "1000000G"},  # more than there are addresses: no thread can be made
]


def _named(environment: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in environment.items())


def _parameters(environments: list[dict[str, str]], step: int) -> list[Any]:
    """Every `step`-th of `environments`, and the others as exhaustive ones."""
    return [
        pytest.param(environment, id=_named(environment), marks=[pytest.mark.exhaustive] if i % step else [])
        for i, environment in enumerate(environments)
    ]


def _with_processors(environment: dict[str, str]) -> dict[str, str]:
    """With the numbers of the processors of this machine in the place of their name."""
    numbers = " ".join(map(str, sorted(os.sched_getaffinity(0)))) if hasattr(os, "sched_getaffinity") else "0"
    return {name: value.replace("PROCESSORS", numbers) for name, value in environment.items()}


@pytest.fixture(scope="module")
def expected() -> str:
    return fresh_process.output(COMPUTE + "print(compute(1))")


@pytest.mark.parametrize("environment", [*_parameters(ODD[:-1], 5), _parameters(ODD[-1:], 1)[0]])
def test_an_odd_environment_changes_no_bit(environment: dict[str, str], expected: str) -> None:
    # What the runtime of OpenMP says about it goes to standard error.
    result = fresh_process.run(
        COMPUTE + "print(compute(None), compute(2), compute(3))", **_with_processors(environment)
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [expected] * 3


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux")
@pytest.mark.parametrize("environment", _parameters(BINDINGS, 6))
def test_bound_threads_are_counted(environment: dict[str, str]) -> None:
    if not mha_native.functions.runtime._openmp_runtimes():
        pytest.skip("this build has no OpenMP")
    count = "print(mha.num_threads())"
    plain = fresh_process.output(count)
    bound = _with_processors(environment)
    # A place of hardware threads may be a whole core; the processors in all of them are those of the mask.
    assert fresh_process.output(count, **bound) == plain
    # A mask that the process begins with holds, whatever else is said.
    one = min(os.sched_getaffinity(0))
    restricted = f"""
    import os, subprocess, sys
    os.sched_setaffinity(0, {{{one}}})
    code = "import mha_native as mha; {count}"
    subprocess.run([sys.executable, "-c", code], check=True)
    """
    assert fresh_process.output(restricted, **bound) == "1"


LIMITED = """
import os, resource, sys
alone = compute(1)
{limit}
for threads in {counts}:
    assert compute(threads) == alone, threads
print(len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1)
"""


def _run_limited(limit: str, counts: list[int]) -> int:
    result = fresh_process.run(COMPUTE + LIMITED.format(limit=limit, counts=counts))
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


def test_a_senseless_number_of_threads_is_no_end_of_the_process() -> None:
    assert _run_limited("", [100_000, 2**31]) <= 1024
    code = "import threading; threading.stack_size(2**18)\nthread = threading.Thread(target=lambda: compute(100_000))\n"
    result = fresh_process.run(COMPUTE + code + "thread.start(); thread.join(); print(compute(1))")
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="limits that only Linux keeps")
def test_little_memory_for_stacks() -> None:
    limit = """
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 48 * 2**20,) * 2)
"""
    assert _run_limited(limit, [64, 2, 64]) < 64


@pytest.mark.skipif(sys.platform != "linux", reason="limits that only Linux keeps")
@pytest.mark.parametrize("allowed", [1, 2, 4])
def test_no_more_processes_for_this_user(allowed: int) -> None:
    # The limit counts all processes of a user and binds all users but root. So root becomes somebody who has no others.
    limit = f"""
if os.getuid() == 0:
    try:
        os.setuid(50_000 + os.getpid() % 10_000)
    except OSError:
        sys.exit(77)
    resource.setrlimit(resource.RLIMIT_NPROC, ({allowed},) * 2)
else:
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))  # others of this user exceed that already
"""
    code = COMPUTE + LIMITED.format(limit=limit, counts=[8, 2, 8])
    result = fresh_process.run(code)
    if result.returncode == 77:
        pytest.skip("root is not allowed to become another user here")
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) <= allowed
