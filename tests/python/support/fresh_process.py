"""A Python program in a process of its own, for what is read once, or ends the process, or changes it for good."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

# What a user may have set, and what a test sets where it matters.
OF_THREADS = ("OMP_", "GOMP_", "KMP_", "MHA_NATIVE_ISA")


def run(code: str, *, seconds: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `code`, which finds the library as ``mha`` and NumPy as ``np``; a hang is a subprocess.TimeoutExpired."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_THREADS)}
    return subprocess.run(
        [sys.executable, "-c", "import mha_native as mha, numpy as np\n" + textwrap.dedent(code)],
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def output(code: str, **environment: str) -> str:
    """What `code` prints; it must end well and say nothing on standard error."""
    result = run(code, **environment)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout.strip()
