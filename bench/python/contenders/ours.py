"""This library, called as its users call it."""

from __future__ import annotations

from typing import Any

from shapes import Case, Inputs

import mha_native

from .contender import Contender, Program


class Ours(Contender):
    name = "mha_native"

    def description(self) -> str:
        return f"{mha_native.__version__}, {mha_native.active_isa()}; threads by num_threads= of each call"

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        options: dict[str, Any] = {**case.options, "num_threads": threads}
        if case.kind == "sdpa":
            attend = mha_native.scaled_dot_product_attention
            query, key, value = inputs.arrays
            return [Program(self.name, threads, lambda: attend(query, key, value, **options))]
        if case.kind == "ragged":
            attend_ragged, offsets = mha_native.scaled_dot_product_attention_varlen, case.offsets
            query, key, value = inputs.arrays
            return [Program(self.name, threads, lambda: attend_ragged(query, key, value, offsets, offsets, **options))]
        x = inputs.arrays[0]
        layer = mha_native.MultiHeadAttention(case.E, case.H, dtype=case.np_dtype)
        layer.load_state_dict(inputs.state)
        return [Program(self.name, threads, lambda: layer(x, **options))]
