"""This library on the case that a case with options goes against, on the same numbers: what the options cost."""

from __future__ import annotations

from dataclasses import replace

from mha_native_bench.cases.case import Case
from mha_native_bench.cases.inputs import Inputs, in_dtype
from mha_native_bench.cases.load import plain_case
from mha_native_bench.contenders.contender import Contender, Program
from mha_native_bench.contenders.ours import Ours


class Against(Contender):
    name = "against"

    def description(self) -> str:
        return "this library without the options of the case, or in the dtype that it goes against"

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if not case.against or case.cold:
            return []
        plain = plain_case(case)
        return [
            replace(program, contender=self.name, variant=plain.name, is_checked=False, pairs=plain.visible_pairs)
            for program in Ours(self.thread_counts).programs(plain, in_dtype(inputs, plain), threads)
        ]
