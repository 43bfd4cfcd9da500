"""The floating-point state of the calling thread, changed as any library of the process may change it.

`fesetenv` of the C library takes all of it: on x86-64 the environment of the x87 unit, 28 bytes, and MXCSR; on 64-bit
Arm FPCR and FPSR.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import platform
import sys
from collections.abc import Iterator

IS_X86 = platform.machine() in ("x86_64", "AMD64")

# By their names: what takes the place of the control register. "trapping" makes a signal of every exception, that of an
# inexact result included. Not every Arm processor can, so there it is like "usual".
STATES = (
    {
        "usual": 0x1F80,
        "flushing": 0x1F80 | 0x8040,
        "upwards": 0x1F80 | 0x4000,
        "downwards": 0x1F80 | 0x2000,
        "to zero": 0x1F80 | 0x6000,
        "trapping": 0,
    }
    if IS_X86
    else {"usual": 0, "flushing": 1 << 24, "upwards": 1 << 22, "downwards": 2 << 22, "to zero": 3 << 22, "trapping": 0}
)


class _Environment(ctypes.Structure):
    _fields_ = [
        ("x87", ctypes.c_uint32 * (7 if IS_X86 else 0)),
        ("control", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    ]


def can_be_set() -> bool:
    return sys.platform == "linux" and (IS_X86 or platform.machine() == "aarch64")


def _environment() -> _Environment:
    environment = _Environment()
    _LIBRARY.fegetenv(ctypes.byref(environment))
    return environment


def control() -> int:
    """The control register; on x86-64 the flags of exceptions are its lowest six bits."""
    return int(_environment().control)


@contextlib.contextmanager
def state(name: str) -> Iterator[None]:
    """Sets a state of `STATES`, and the one from before at the end. Nothing else may compute in it.

    Garbage is collected outside: callbacks of the collector (Hypothesis measures its time) compute with floats.
    """
    collects = gc.isenabled()
    gc.disable()
    before = _environment()
    other = _Environment.from_buffer_copy(before)
    other.control = STATES[name]
    _LIBRARY.fesetenv(ctypes.byref(other))
    try:
        yield
    finally:
        _LIBRARY.fesetenv(ctypes.byref(before))
        if collects:
            gc.enable()


_LIBRARY = ctypes.CDLL("libm.so.6" if platform.libc_ver()[0] == "glibc" else None) if can_be_set() else None
