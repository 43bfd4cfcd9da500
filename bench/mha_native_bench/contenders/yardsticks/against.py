"""This library on the case that a case with options goes against: what the options cost.

It computes on the same numbers, unless these are what the two differ in.
"""

from __future__ import annotations

from dataclasses import replace

from mha_native_bench.cases.case import Case
from mha_native_bench.cases.inputs import Inputs, in_dtype, make_inputs
from mha_native_bench.cases.load import plain_case
from mha_native_bench.contenders.contender import Contender, Program
from mha_native_bench.contenders.ours import Ours


class Against(Contender):
    name = "against"

    def description(self) -> str:
        return "this library without the options of the case, or in the dtype or on the numbers that it goes against"

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if not case.against:
            return []
        plain = plain_case(case)
        if case.cold and not plain.cold:  # the same call, if the memory of both is cold
            return []
        same = in_dtype(inputs, plain) if plain.deviations == case.deviations else make_inputs(plain)
        return [
            replace(program, contender=self.name, variant=plain.name, is_checked=False, pairs=plain.visible_pairs)
            for program in Ours(self.thread_counts).programs(plain, same, threads)
        ]
