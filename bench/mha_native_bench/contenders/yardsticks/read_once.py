"""Reading keys and values once, by as many threads, without computing: the limit of memory for one query."""

from __future__ import annotations

import numpy as np

from mha_native_bench.cases.case import Case
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.contenders.contender import Contender, Program
from mha_native_bench.probes import read_memory


class ReadOnce(Contender):
    name = "read"

    def description(self) -> str:
        return "no attention: reads keys and values once, by read_memory of this library's core; for one query"

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if case.kind != "sdpa" or case.Tq != 1 or case.options:
            return []
        keys_and_values = [array.view(np.uint8) for array in inputs.arrays[1:]]  # bytes of any type
        return [Program(self.name, threads, lambda: read_memory(keys_and_values, threads), is_checked=False)]
