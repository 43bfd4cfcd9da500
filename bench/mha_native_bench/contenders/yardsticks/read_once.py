"""Reading keys, values and weights once, without computing: the limit of memory for one query or row."""

from __future__ import annotations

import numpy as np

from mha_native_bench.cases.case import Case
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.contenders.contender import Contender, Program
from mha_native_bench.probes import read_memory


class ReadOnce(Contender):
    name = "read"
    kinds_of_few = frozenset({"linear"})

    def description(self) -> str:
        return "reads keys, values and weights once, by read_memory of the core, and no more; for one query"

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if case.kind not in ("sdpa", "cached", "decoder", "linear") or case.Tq != 1 or case.options:
            return []
        if case.kind != "sdpa":  # as many bytes; written once, or the system would give them all the same page
            streamed = [np.full(case.streamed_bytes, 1, np.uint8)]
        else:
            streamed = [array.view(np.uint8) for array in inputs.arrays[1:]]  # bytes of any type
        return [Program(self.name, threads, lambda: read_memory(streamed, threads), is_checked=False)]
