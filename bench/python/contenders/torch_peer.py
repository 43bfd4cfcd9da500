"""PyTorch: its fused attention, and its layer in three forms, of which the fastest counts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from shapes import Array, Case, Inputs, padded, unpadded
from torch.nn import functional

from .contender import Contender, Program


class Torch(Contender):
    name = "torch"

    def description(self) -> str:
        return f"{torch.__version__}; threads by torch.set_num_threads, in torch.inference_mode"

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        def program(run: Callable[[], Any], variant: str = "") -> Program:
            # The switch exists for the layer only, and says nothing to the other programs.
            return Program(self.name, threads, run, turn(threads, variant != "slow path"), array_of, variant)

        causal = case.causal
        if case.kind in ("sentences", "step"):  # there is a peer for those; there is no cache
            return []
        if case.weights:
            if (case.kind, case.weights) != ("mha", "int8"):
                return []
            return [program(layer_of_int8(case, inputs), "int8")]
        if case.changes_scores:  # a bias for every pair could stand for alibi, and nothing fused for a softcap
            return []
        if case.kind == "sdpa":
            attend = functional.scaled_dot_product_attention
            query, key, value = map(tensor_of, inputs.arrays)
            options: dict[str, Any] = {"is_causal": causal, "enable_gqa": case.Hk != case.H}
            if case.is_masked:  # one mask for everything, since both together are refused
                mask = case.visible(case.Tq if causal or case.window else 1, case.Tk)
                options.update(is_causal=False, attn_mask=torch.from_numpy(mask))
            return [program(lambda: attend(query, key, value, **options))]

        if case.kind == "ragged":  # torch has no ragged attention on a CPU
            if case.causal or case.Hk != case.H:
                return []
            query, key, value = (tensor_of(padded(case, array)) for array in inputs.arrays)
            admitted = torch.arange(case.Tk)[None, None, None] < torch.from_numpy(case.lengths)[:, None, None, None]
            return [
                Program(
                    self.name,
                    threads,
                    lambda: functional.scaled_dot_product_attention(query, key, value, attn_mask=admitted),
                    turn(threads, True),
                    lambda out: unpadded(case, array_of(out)),
                    "padded",
                )
            ]

        x = tensor_of(inputs.arrays[0])
        if case.kind == "encoder_layer":
            encoder = encoder_layer(case, inputs, x.dtype)
            return [program(lambda: encoder(x), variant) for variant in ("fast path", "slow path")]
        layer = torch.nn.MultiheadAttention(case.E, case.H, batch_first=True, dtype=x.dtype).eval()
        layer.load_state_dict({name: tensor_of(array) for name, array in inputs.state.items()})
        hidden = torch.ones(case.Tq, case.Tk, dtype=torch.bool).triu(1) if causal else None

        def forward() -> torch.Tensor:
            out: torch.Tensor = layer(x, x, x, need_weights=False, attn_mask=hidden, is_causal=causal)[0]
            return out

        return [
            program(forward, "fast path"),
            program(forward, "slow path"),
            program(by_hand(x, case, *linear_maps(inputs)), "by hand"),
        ]


def tensor_of(array: Array) -> torch.Tensor:
    """Over the same memory; NumPy has no bfloat16 of its own, and torch does not know that of others."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array_of(tensor: torch.Tensor) -> Array:
    """The same numbers."""
    array: Array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def turn(threads: int, fast_path: bool) -> Callable[[], AbstractContextManager[None]]:
    """The state that a program runs in."""

    @contextmanager
    def context() -> Iterator[None]:
        torch.set_num_threads(threads)
        torch.backends.mha.set_fastpath_enabled(fast_path)
        with torch.inference_mode():
            yield

    return context


def by_hand(
    x: torch.Tensor, case: Case, project: torch.nn.Module, project_out: torch.nn.Module
) -> Callable[[], torch.Tensor]:
    """What models write themselves: one linear map in, fused attention, one linear map out."""

    def run() -> torch.Tensor:
        split = project(x).view(*x.shape[:2], 3, case.H, -1)  # [B, T, 3, H, D]
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=case.causal)
        out: torch.Tensor = project_out(attended.transpose(1, 2).flatten(2))
        return out

    return run


def linear_maps(inputs: Inputs) -> list[torch.nn.Linear]:
    """Into queries, keys and values, and out of the heads."""
    maps = []
    for weight_name, bias_name in (("in_proj_weight", "in_proj_bias"), ("out_proj.weight", "out_proj.bias")):
        weight, bias = tensor_of(inputs.state[weight_name]), tensor_of(inputs.state[bias_name])
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype).eval()
        linear.load_state_dict({"weight": weight, "bias": bias})
        maps.append(linear)
    return maps


def layer_of_int8(case: Case, inputs: Inputs) -> Callable[[], torch.Tensor]:
    """By hand, with its dynamic quantization: weights once, by output feature, rows as they come; attention in f32."""
    maps = torch.nn.Sequential(*linear_maps(inputs))
    qconfig = torch.ao.quantization.per_channel_dynamic_qconfig
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is to come after it, in another package
        quantized: Any = torch.ao.quantization.quantize_dynamic(maps, {torch.nn.Linear: qconfig})
    return by_hand(tensor_of(inputs.arrays[0]), case, *quantized)


def encoder_layer(case: Case, inputs: Inputs, dtype: torch.dtype) -> torch.nn.TransformerEncoderLayer:
    layer = torch.nn.TransformerEncoderLayer(
        case.E, case.H, case.F, activation=case.activation, batch_first=True, dtype=dtype
    ).eval()
    layer.load_state_dict({name: tensor_of(array) for name, array in inputs.state.items()})
    return layer
