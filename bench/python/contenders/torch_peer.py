"""PyTorch: its fused attention, and its layer in three forms, of which the fastest counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from shapes import Case, Inputs, padded, unpadded
from torch.nn import functional

from .contender import Contender, Program


class Torch(Contender):
    name = "torch"

    def description(self) -> str:
        return f"{torch.__version__}; threads by torch.set_num_threads, in torch.inference_mode"

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        def program(run: Callable[[], Any], variant: str = "") -> Program:
            # The switch exists for the layer only, and says nothing to the other programs.
            return Program(self.name, threads, run, turn(threads, variant != "slow path"), torch.Tensor.numpy, variant)

        causal = case.causal
        if case.kind == "sentences":  # there is a peer for those
            return []
        if case.changes_scores:  # a bias for every pair could stand for alibi, and nothing fused for a softcap
            return []
        if case.kind == "sdpa":
            attend = functional.scaled_dot_product_attention
            query, key, value = map(torch.from_numpy, inputs.arrays)
            options: dict[str, Any] = {"is_causal": causal, "enable_gqa": case.Hk != case.H}
            if case.is_masked:  # one mask for everything, since both together are refused
                mask = case.visible(case.Tq if causal or case.window else 1, case.Tk)
                options.update(is_causal=False, attn_mask=torch.from_numpy(mask))
            return [program(lambda: attend(query, key, value, **options))]

        if case.kind == "ragged":  # torch has no ragged attention on a CPU
            if case.causal or case.Hk != case.H:
                return []
            query, key, value = (torch.from_numpy(padded(case, array)) for array in inputs.arrays)
            admitted = torch.arange(case.Tk)[None, None, None] < torch.from_numpy(case.lengths)[:, None, None, None]
            return [
                Program(
                    self.name,
                    threads,
                    lambda: functional.scaled_dot_product_attention(query, key, value, attn_mask=admitted),
                    turn(threads, True),
                    lambda out: unpadded(case, out.numpy()),
                    "padded",
                )
            ]

        x = torch.from_numpy(inputs.arrays[0])
        if case.kind == "encoder_layer":
            encoder = encoder_layer(case, inputs, x.dtype)
            return [program(lambda: encoder(x), variant) for variant in ("fast path", "slow path")]
        layer = torch.nn.MultiheadAttention(case.E, case.H, batch_first=True, dtype=x.dtype).eval()
        layer.load_state_dict({name: torch.from_numpy(array) for name, array in inputs.state.items()})
        hidden = torch.ones(case.Tq, case.Tk, dtype=torch.bool).triu(1) if causal else None

        def forward() -> torch.Tensor:
            out: torch.Tensor = layer(x, x, x, need_weights=False, attn_mask=hidden, is_causal=causal)[0]
            return out

        return [
            program(forward, "fast path"),
            program(forward, "slow path"),
            program(by_hand(x, layer, causal), "by hand"),
        ]


def turn(threads: int, fast_path: bool) -> Callable[[], AbstractContextManager[None]]:
    """The state that a program runs in."""

    @contextmanager
    def context() -> Iterator[None]:
        torch.set_num_threads(threads)
        torch.backends.mha.set_fastpath_enabled(fast_path)
        with torch.inference_mode():
            yield

    return context


def by_hand(x: torch.Tensor, layer: Any, causal: bool) -> Callable[[], torch.Tensor]:
    """What models write themselves: one linear map in, fused attention, one linear map out."""
    in_weight, in_bias = layer.in_proj_weight, layer.in_proj_bias
    out_weight, out_bias, heads = layer.out_proj.weight, layer.out_proj.bias, layer.num_heads

    def run() -> torch.Tensor:
        split = functional.linear(x, in_weight, in_bias).view(*x.shape[:2], 3, heads, -1)  # [B, T, 3, H, D]
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return functional.linear(attended.transpose(1, 2).flatten(2), out_weight, out_bias)

    return run


def encoder_layer(case: Case, inputs: Inputs, dtype: torch.dtype) -> torch.nn.TransformerEncoderLayer:
    layer = torch.nn.TransformerEncoderLayer(
        case.E, case.H, case.F, activation=case.activation, batch_first=True, dtype=dtype
    ).eval()
    layer.load_state_dict({name: torch.from_numpy(array) for name, array in inputs.state.items()})
    return layer
