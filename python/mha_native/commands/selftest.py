"""The command ``selftest``: results of the installed library on this machine against the reference."""

import argparse
import contextlib
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .. import _core
from ..functions.dtypes import LAYER_DTYPES, checked_dtype
from ..functions.runtime import active_isa, available_isas, last_used_isa, num_threads, show_config, use_isa
from ._self_checks import CHECKS, Array
from .errors import UserError

about = "check the results of the installed library on this machine; exit code 1 if one is wrong"

# An instruction set takes 1 s, on a busy machine perhaps 10 s.
_LONGEST_SECONDS = 120

# Largest error of a result, in eps of its dtype times the largest number that the reference expects. Sums of up to 200
# terms in float32 or float64, through up to two layers, have errors of some 10 units. 16-bit results are rounded
# between steps and have errors of 1 or 2 units. The error of a wrong kernel is about as large as its results.
_TOLERATED_UNITS = {"float32": 64, "float64": 64, "float16": 8, "bfloat16": 8}
_EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--isa", metavar="NAME", help="this instruction set only, in this process")


def run(options: argparse.Namespace) -> int:
    """Check an instruction set in this process, or each that this machine runs in a process of its own.

    Return 1 if a result is wrong, or a process died.
    """
    if options.isa is not None:
        return _check(options.isa)
    show_config()
    print(flush=True)
    passed = {isa: _passes(isa) for isa in available_isas()}
    print()
    if not all(passed.values()):
        print("FAILED. Please report it, with all of the above.")
        if any(passed.values()):
            best = [isa for isa in passed if passed[isa]][-1]
            print(f"Until it is mended, the environment variable MHA_NATIVE_ISA={best} chooses what works.")
        return 1
    try:
        active_isa()
    except ValueError as error:  # MHA_NATIVE_ISA is not available, or no set of this build runs here
        print(f"FAILED. No call can be computed: {error}.")
        return 1
    print("All is well.")
    return 0


def _passes(isa: str) -> bool:
    """Check `isa` in another process, since an instruction that the machine lacks ends the process."""
    command = [sys.executable, "-m", "mha_native", "selftest", "--isa", isa]
    # The reference computes on one thread: on a busy machine threads of NumPy wait seconds for each other.
    environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ}
    process = None
    try:
        with _interrupts_wait():  # an interrupt between start and assignment would leave a process that nothing ends
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches this process only, which ends the other and reports it once
            )
        output, _ = process.communicate(timeout=_LONGEST_SECONDS)
    except subprocess.TimeoutExpired as late:
        print(f"{_as_text(late.stdout)}{isa}: FAILED, no end after {_LONGEST_SECONDS} s", flush=True)
        return False
    finally:
        if process is not None:
            with process:  # closes the pipe, and waits
                process.kill()
    print(output, end="", flush=True)
    if process.returncode < 0:
        print(f"{isa}: FAILED, the process was ended by {signal.Signals(-process.returncode).name}")
    elif process.returncode > 1:
        print(f"{isa}: FAILED, the process ended with exit code {process.returncode}")
    return process.returncode == 0


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Hold SIGINT back until the end of the block. A mask would not: any other thread may take the signal."""
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def _as_text(output: Any) -> str:
    return output.decode() if isinstance(output, bytes) else output or ""


class _Worst(NamedTuple):
    error: float  # as a multiple of the tolerance
    name: str


def _check(isa: str) -> int:
    """Compare all results in each dtype with the reference, and results on several threads with results on one."""
    if isa not in available_isas():
        raise UserError(f"--isa must be one of {', '.join(available_isas())}; got {isa}")
    several, is_well = max(2, num_threads()), True
    with use_isa(isa):
        for dtype in LAYER_DTYPES:
            worst, count, complaints = _Worst(0, ""), 0, []
            for name, one, many, expected in _results(dtype, several):
                count += 1
                error = _error(one, expected)
                worst = max(worst, _Worst(error, name))
                if not error <= 1:
                    complaints.append(f"{name} is off by {error:.3g} times the tolerance")
                if not _same_bits(one, many):
                    complaints.append(f"{name} has other bits on {several} threads than on 1")
            if last_used_isa() != isa:
                complaints.append(f"computed with {last_used_isa()}")
            is_well = is_well and not complaints
            verdict = "FAILED: " + "; ".join(complaints) if complaints else "ok"
            print(
                f"{isa:<12}{dtype:<10}{count} results, 1 and {several} threads, largest error {worst.error:.2f} of the "
                f"tolerance ({worst.name}): {verdict}",
                flush=True,
            )
    return 0 if is_well else 1


def _results(dtype: str, several: int) -> Iterator[tuple[str, Array, Array, Array]]:
    """Yield the name, the result on one thread and on several, and the result of the reference."""
    for check in CHECKS:
        on_one, on_many = (list(check(checked_dtype("selftest", dtype), threads)) for threads in (1, several))
        for one, many in zip(on_one, on_many, strict=True):
            yield one.name, one.actual, many.actual, one.expected()


def _error(actual: Array, expected: Array) -> float:
    """Return the largest error as a multiple of the tolerance; infinite for NaN and another shape."""
    if actual.shape != expected.shape:
        return math.inf
    dtype = _core.dtype_name(actual.dtype)
    tolerated = _TOLERATED_UNITS[dtype] * _EPS[dtype] * np.abs(expected).max()
    error = float(np.abs(_core.convert(actual, "float64") - expected).max() / tolerated)
    return math.inf if math.isnan(error) else error


def _same_bits(left: Array, right: Array) -> bool:
    return left.tobytes() == right.tobytes()
