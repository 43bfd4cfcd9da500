"""PyTorch's `flex_attention`, for windows, softcaps and block masks, which its fused attention does not have."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from mha_native_bench.cases.case import BLOCK, Case
from mha_native_bench.contenders.contender import CannotCompute


def flex_attend(case: Case, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A function that is compiled at its first call; it skips blocks of keys that no query of a block sees."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        raise CannotCompute("no C++ compiler for flex_attention")
    blocks_seen = torch.from_numpy(case.block_mask) if case.blocks else None
    softcap, (left, right) = case.softcap, case.window or (-1, -1)

    def capped(score: torch.Tensor, *_: Any) -> torch.Tensor:
        return score if softcap is None else softcap * torch.tanh(score / softcap)

    def seen(_b: Any, _h: Any, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        inside = j < (case.Tk if case.admitted is None else case.admitted)
        if case.causal:
            inside = inside & (j <= i)
        if left >= 0:
            inside = inside & (j >= i - left)
        if right >= 0:
            inside = inside & (j <= i + right)
        if blocks_seen is not None:
            inside = inside & blocks_seen[i // BLOCK, j // BLOCK]
        return inside

    sizes: dict[str, Any] = {"BLOCK_SIZE": BLOCK} if case.blocks else {}  # else its own
    blocks = (
        create_block_mask(seen, None, None, case.Tq, case.Tk, device="cpu", **sizes)
        if case.causal or case.is_masked
        else None
    )
    options: dict[str, Any] = {"block_mask": blocks, "enable_gqa": case.Hk != case.H}
    if softcap is not None:
        options["score_mod"] = capped
    torch.compiler.reset()  # it keeps few compiled forms of a function: drop those of other cases
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(query, key, value, **options)
