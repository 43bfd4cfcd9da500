"""This library on the sequences of a ragged batch padded to the longest: what padding costs."""

from __future__ import annotations

from typing import Any

import mha_native
from mha_native_bench.cases.case import Case
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.cases.padding import padded, padded_pairs, unpadded
from mha_native_bench.contenders.contender import Contender, Program


class Padded(Contender):
    name = "padded"

    def description(self) -> str:
        return "this library, sequences padded to the longest, with key_lengths"

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if case.kind != "ragged":
            return []
        attend = mha_native.scaled_dot_product_attention
        query, key, value = (padded(case, array) for array in inputs.arrays)
        options: dict[str, Any] = {"is_causal": case.causal, "key_lengths": case.lengths, "num_threads": threads}
        return [
            Program(
                self.name,
                threads,
                lambda: attend(query, key, value, **options),
                to_array=lambda out: unpadded(case, out),
                pairs=padded_pairs(case),
            )
        ]
