"""Costs beside the cases: a call on the least input, scratch memory of a long one, imports, memory of models."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import mha_native
from mha_native_bench.contenders import Program
from mha_native_bench.measure.model_memory import ModelMemory
from mha_native_bench.measure.rounds import Effort, take_turn
from mha_native_bench.wording import counted

LONG = 16384  # queries and keys of the long call; its scores would take 1 GiB if they were stored

# Run in a process of its own, as the scratch memory of a thread keeps the size of the largest call so far. One head is
# enough: more heads are more tiles of the same size.
SCRATCH_PROGRAM = f"""
import sys
import numpy as np
import mha_native
from mha_native_bench.probes import scratch_bytes
x = np.zeros((1, 1, {LONG}, 64), np.float32)
mha_native.use_isa(sys.argv[1])
mha_native.scaled_dot_product_attention(x, x, x, num_threads=int(sys.argv[2]))
print(scratch_bytes())
"""

# NumPy is imported first, as a program that has arrays has imported it already.
IMPORT_PROGRAM = """
import sys, time
import numpy
start = time.perf_counter()
__import__(sys.argv[1])
print(time.perf_counter() - start)
"""
IMPORTED = ("mha_native", "mha_native.models")


@dataclass(frozen=True)
class Overheads:
    """Costs beside the cases.

    The tiny call has one query, one key and eight features; its times are in seconds. `scratch_bytes` is the scratch
    memory of a call of `LONG` queries and keys, by number of threads. `import_seconds` has the median and the least
    time of importing each module, in a process of its own. `models` has the memory that models take.
    """

    tiny_call_median: float
    tiny_call_best: float
    scratch_bytes: dict[int, int]
    import_seconds: dict[str, tuple[float, float]]
    models: list[ModelMemory]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """The figures as lines of the report."""
        scratch = [
            f"Scratch of attention, T = {LONG}, D = 64, f32, {counted(n, 'thread')}: {size / 2**20:.2f} MiB, "
            f"{size / n / 2**20:.2f} MiB a thread"
            for n, size in self.scratch_bytes.items()
        ]
        median, best = self.tiny_call_median * 1e6, self.tiny_call_best * 1e6
        imports = [
            f"import {module}, after NumPy: median {seconds[0] * 1e3:.1f} ms, best {seconds[1] * 1e3:.1f} ms"
            for module, seconds in self.import_seconds.items()
        ]
        return [
            f"Tiny call from Python, [1, 1, 1, 8]: median {median:.2f} us, best {best:.2f} us",
            *scratch,
            *imports,
            *(model.line() for model in self.models),
        ]


def measure_overheads(thread_counts: list[int], effort: Effort, models: list[ModelMemory]) -> Overheads:
    x = np.ones((1, 1, 1, 8), np.float32)
    attend = mha_native.scaled_dot_product_attention
    tiny = Program("mha_native", 1, lambda: attend(x, x, x))
    turns = [take_turn(tiny, effort) for _ in range(effort.rounds)]
    scratch = {}
    for threads in thread_counts:
        command = [sys.executable, "-c", SCRATCH_PROGRAM, mha_native.active_isa(), str(threads)]
        scratch[threads] = int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    imports = {}
    for module in IMPORTED:
        command = [sys.executable, "-c", IMPORT_PROGRAM, module]
        taken = [float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in turns]
        imports[module] = float(np.median(taken)), min(taken)
    tiny_call = float(np.median([t.median for t in turns])), min(t.best for t in turns)
    return Overheads(*tiny_call, scratch, imports, models)
