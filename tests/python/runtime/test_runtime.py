"""Which instruction set, how many threads, how much memory; and what a call leaves behind in the process: nothing."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import fresh_process
import numpy as np
import pytest
from cases import CASES, make_call
from tolerance import assert_same_bits

import mha_native
from mha_native import _core, scaled_dot_product_attention


def _run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return fresh_process.run(f"x = np.ones((2, 3), np.float32)\n{code}", **environment)


def _output(code: str, **environment: str) -> str:
    return fresh_process.output(f"x = np.ones((2, 3), np.float32)\n{code}", **environment)


COMPUTE = "mha.scaled_dot_product_attention(x, x, x); print(mha.last_used_isa())"


@pytest.mark.parametrize("name", mha_native.available_isas())
def test_the_environment_chooses_the_instruction_set(name: str) -> None:
    assert _output(f"{COMPUTE}; print(mha.active_isa())", MHA_NATIVE_ISA=name).split() == [name, name]


def test_without_a_choice_the_best_is_taken() -> None:
    # On which processor which one is the best: tests/cpp/test_dispatch.cpp.
    paying = [name for name in mha_native.available_isas() if "not by default" not in _core.isa_reason(name)]
    best = _output(COMPUTE)
    assert best == paying[-1]
    assert _output(COMPUTE, MHA_NATIVE_ISA="") == best


def test_use_isa_wins_over_the_environment() -> None:
    first, last = mha_native.available_isas()[0], mha_native.available_isas()[-1]
    code = f"with mha.use_isa({first!r}): {COMPUTE}\n{COMPUTE}"
    assert _output(code, MHA_NATIVE_ISA=last).split() == [first, last]


@pytest.mark.parametrize("name", ["avx1024", "AVX2", " avx2", "avx2,avx512"])
def test_an_impossible_instruction_set_is_an_error(name: str) -> None:
    result = _run(COMPUTE, MHA_NATIVE_ISA=name)
    assert result.returncode != 0
    message = result.stderr.strip().splitlines()[-1]
    assert message.startswith("ValueError: "), result.stderr
    for word in ("MHA_NATIVE_ISA", repr(name), *mha_native.available_isas()):
        assert word in message, message
    assert _output("mha.show_config()", MHA_NATIVE_ISA=name), "the configuration can still be shown"


def test_use_isa_refuses_and_restores() -> None:
    before = mha_native.active_isa()
    with pytest.raises(ValueError, match=f"unknown instruction set 'mmx'.*{before}"):
        mha_native.use_isa("mmx")
    assert mha_native.active_isa() == before
    with pytest.raises(KeyError), mha_native.use_isa("baseline" if before != "baseline" else None):
        raise KeyError
    assert mha_native.active_isa() == before


def test_use_isa_nests() -> None:
    names = mha_native.available_isas()
    before = mha_native.active_isa()
    with mha_native.use_isa(names[0]):
        with mha_native.use_isa(names[-1]):
            assert mha_native.active_isa() == names[-1]
        assert mha_native.active_isa() == names[0]
        with mha_native.use_isa(None):
            assert mha_native.active_isa() == before
        assert mha_native.active_isa() == names[0]
    assert mha_native.active_isa() == before


def test_available_isas_are_built_and_ordered() -> None:
    built = _core.built_isas()
    available = mha_native.available_isas()
    assert available
    assert [name for name in built if name in available] == list(available)


@pytest.mark.parametrize(
    ("code", "environment", "expected"),
    [
        ("print(mha.num_threads())", {"OMP_NUM_THREADS": "5"}, "5"),
        ("print(mha.num_threads())", {"OMP_NUM_THREADS": "3,2"}, "3"),
        ("mha.set_num_threads(4); print(mha.num_threads())", {"OMP_NUM_THREADS": "5"}, "4"),
        ("mha.set_num_threads(4); mha.set_num_threads(None); print(mha.num_threads())", {"OMP_NUM_THREADS": "5"}, "5"),
        (
            "with mha.use_threads(4): print(mha.num_threads())\nprint(mha.num_threads())",
            {"OMP_NUM_THREADS": "5"},
            "4\n5",
        ),
    ],
)
def test_thread_precedence(code: str, environment: dict[str, str], expected: str) -> None:
    assert _output(code, **environment) == expected


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="only Linux lists the threads of a process")
@pytest.mark.parametrize(
    ("environment", "threads", "reason"),
    [
        ({"OMP_THREAD_LIMIT": "1"}, 1, "OMP_THREAD_LIMIT"),
        ({"OMP_NUM_THREADS": "8", "OMP_THREAD_LIMIT": "3"}, 3, "OMP_THREAD_LIMIT"),
        ({"OMP_NUM_THREADS": "2", "OMP_THREAD_LIMIT": "3"}, 2, "OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "2", "OMP_MAX_ACTIVE_LEVELS": "0"}, 1, "OMP_MAX_ACTIVE_LEVELS"),
        ({"OMP_NUM_THREADS": "5000"}, 1024, "no call uses more"),
        ({"OMP_NUM_THREADS": "900", "OMP_DYNAMIC": "true"}, len(os.sched_getaffinity(0)), "OMP_DYNAMIC"),
    ],
)
def test_no_more_threads_are_reported_than_a_call_gets(environment: dict[str, str], threads: int, reason: str) -> None:
    code = """
started = len(os.listdir("/proc/self/task"))
rows = np.ones((1, 64, 256, 64), np.float32)
mha.scaled_dot_product_attention(rows, rows, rows)
started = len(os.listdir("/proc/self/task")) - started + 1
print(mha.num_threads(), started <= mha.num_threads(), mha._core.num_threads_reason())
"""
    found, is_limit, why = _output(f"import os{code}", **environment).split(maxsplit=2)
    assert (int(found), is_limit) == (threads, "True")
    assert reason in why


@pytest.mark.parametrize("nonsense", ["", "0", "-2", "many"])
def test_a_senseless_environment_is_passed_over(nonsense: str) -> None:
    # The runtime of OpenMP may have its own word to say about it, on its own channel.
    plain = _output("print(mha.num_threads())")
    result = _run("print(mha.num_threads())", OMP_NUM_THREADS=nonsense)
    assert result.returncode == 0
    assert result.stdout.strip() == plain


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux")
def test_the_default_is_within_the_affinity_mask() -> None:
    assert 1 <= int(_output("print(mha.num_threads())")) <= len(os.sched_getaffinity(0))
    # The mask is read once, at first use: here after it has shrunk.
    one = min(os.sched_getaffinity(0))
    assert _output(f"import os; os.sched_setaffinity(0, {{{one}}}); print(mha.num_threads())") == "1"


@pytest.mark.parametrize("n", [0, -1])
def test_set_num_threads_refuses(n: int) -> None:
    before = mha_native.num_threads()
    with pytest.raises(ValueError, match=r"num_threads must be at least 1"):
        mha_native.set_num_threads(n)
    assert mha_native.num_threads() == before
    with pytest.raises(TypeError):
        mha_native.set_num_threads(1.5)  # type: ignore[arg-type]


def test_use_threads_restores_after_an_error() -> None:
    before = mha_native.num_threads()
    with pytest.raises(ZeroDivisionError), mha_native.use_threads(before + 1):
        (mha_native.num_threads() - before - 1) / 0
    assert mha_native.num_threads() == before


def test_floating_point_state_survives(isa: str, dtype: type) -> None:
    call = make_call(next(case for case in CASES if case.name == "subnormal-values"), dtype)
    scaled_dot_product_attention(*call.arrays, num_threads=2)
    info = np.finfo(dtype)
    least = np.full(64, info.smallest_subnormal, dtype)
    assert (least + least == 2 * info.smallest_subnormal).all(), "subnormal operands are taken for zero"
    assert (np.full(64, info.tiny, dtype) / 2 > 0).all(), "subnormal results are flushed to zero"
    one = np.ones(64, dtype)
    assert (one + info.eps / 4 == 1).all(), "rounds upwards"
    assert (one - dtype(info.eps / 8) == 1).all(), "rounds downwards"
    assert (-one - dtype(info.eps / 4) == -1).all(), "rounds away from zero"


def test_nothing_is_printed(isa: str, capfd: pytest.CaptureFixture[str]) -> None:
    call = make_call(CASES[0], np.float32)
    scaled_dot_product_attention(*call.arrays, num_threads=2)
    mha_native.MultiHeadAttention(8, 2)(np.ones((3, 8), np.float32))
    with pytest.raises(ValueError, match="head_dim"):
        scaled_dot_product_attention(call.query, call.key[..., :0], call.value)
    assert capfd.readouterr() == ("", "")


def test_importing_prints_nothing_and_starts_no_thread() -> None:
    code = "import os; print(len(os.listdir('/proc/self/task')) if os.path.exists('/proc/self/task') else 1)"
    numpy_alone = subprocess.run(
        [sys.executable, "-c", f"import numpy\n{code}"], capture_output=True, text=True, timeout=60, check=True
    )
    assert _output(code) == numpy_alone.stdout.strip()


@pytest.mark.parametrize("threads", [1, 2])
def test_scratch_is_small_at_any_length(threads: int) -> None:
    # Of a process of its own: the arena keeps the most that it has ever held.
    code = f"""
rows = np.ones((1, 1, 16384, 64), np.float32)
few = np.ones((1, 2, 64, 64), np.float32)
keys = np.broadcast_to(rows, (1, 2, 16384, 64))
mha.scaled_dot_product_attention(few, keys, keys, num_threads={threads}, return_lse=True)
short = mha._core.scratch_bytes()
mha.scaled_dot_product_attention(rows, rows, rows, num_threads={threads}, is_causal=True)
print(short, mha._core.scratch_bytes())
"""
    short, whole = map(int, _output(code).split())
    assert 0 < short <= threads * 2**21
    assert 0 < whole <= threads * 2**21


def test_show_config_says_what_a_report_needs() -> None:
    text = io.StringIO()
    mha_native.show_config(text)
    for word in (
        mha_native.__version__,
        mha_native.active_isa(),
        str(mha_native.num_threads()),
        "float32",
        np.__version__,
    ):
        assert word in text.getvalue()
    for name in _core.built_isas():
        reason = _core.isa_reason(name)
        assert reason.startswith("runs here") == (name in mha_native.available_isas())
        assert f"\n{'  ' + name:<24}{reason}\n" in text.getvalue()


def test_bits_are_those_of_the_environment_and_of_use_isa() -> None:
    name = mha_native.available_isas()[0]
    code = (
        "rng = np.random.default_rng(3); x = rng.standard_normal((4, 50, 16), dtype=np.float32)\n"
        "print(mha.scaled_dot_product_attention(x, x, x).tobytes().hex())"
    )
    x = np.random.default_rng(3).standard_normal((4, 50, 16), dtype=np.float32)
    with mha_native.use_isa(name):
        ours = scaled_dot_product_attention(x, x, x)
    theirs = np.frombuffer(bytes.fromhex(_output(code, MHA_NATIVE_ISA=name)), np.float32).reshape(ours.shape)
    assert_same_bits(theirs, ours)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 511, 513, 262143, 262145, 1_000_003])
def test_memory_is_read_once_and_whole(size: int, num_threads: int, rng: np.random.Generator) -> None:
    arrays = [rng.integers(0, 256, size, dtype=np.uint8) for _ in range(3)]
    words = [np.concatenate([array, np.zeros(-size % 8, np.uint8)]).view(np.uint64) for array in arrays]
    expected = int(np.bitwise_xor.reduce(np.concatenate(words)))
    for name in mha_native.available_isas():  # not the fixture: this is no call that dispatches
        with mha_native.use_isa(name):
            assert _core.read_memory(arrays, num_threads) == expected


def test_memory_that_is_no_block_is_not_read() -> None:
    x = np.ones((4, 4), np.float32)
    for arrays, threads, message in (
        ([x.T], 1, "contiguous"),
        ([x[:, :2]], 1, "contiguous"),
        ([x, x[:2]], 1, "one size"),
        ([x], 0, "num_threads"),
    ):
        with pytest.raises(ValueError, match=message):
            _core.read_memory(arrays, threads)
    x.flags.writeable = False
    assert _core.read_memory([x], 1) == _core.read_memory([], 1) == 0
