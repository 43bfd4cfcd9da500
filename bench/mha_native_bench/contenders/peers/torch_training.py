"""A training step of an encoder in PyTorch: eager, and compiled."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch.nn import functional

from mha_native_bench.cases.case import Case
from mha_native_bench.cases.inputs import Inputs

Run = Callable[[], torch.Tensor]
Model = Callable[[torch.Tensor], torch.Tensor]


def layer(case: Case, weights: dict[str, torch.nn.Parameter], x: torch.Tensor) -> torch.Tensor:
    """An encoder layer as models write it, with the weights of a `torch.nn.TransformerEncoderLayer`."""

    def linear(rows: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(rows, weights[f"{name}weight"], weights[f"{name}bias"])

    def norm(rows: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(rows, (case.E,), weights[f"{name}.weight"], weights[f"{name}.bias"])

    heads = linear(x, "self_attn.in_proj_").view(*x.shape[:2], 3, case.H, case.D)
    query, key, value = heads.permute(2, 0, 3, 1, 4).unbind()
    attended = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    rows = norm(x + linear(attended, "self_attn.out_proj."), "norm1")
    hidden: torch.Tensor = getattr(functional, case.activation)(linear(rows, "linear1."))
    return norm(rows + linear(hidden, "linear2."), "norm2")


def training_steps(case: Case, inputs: Inputs) -> Iterator[tuple[str, Run]]:
    """Forward, backward, and fused AdamW with a rate of 0, so that each call has the same result."""
    yield "eager", step(case, inputs, lambda function: function)
    if shutil.which(os.environ.get("CXX", "g++")) is not None:
        yield "compiled", step(case, inputs, torch.compile)


def step(case: Case, inputs: Inputs, compiled: Callable[[Model], Model]) -> Run:
    weights = {name: torch.nn.Parameter(torch.from_numpy(array.copy())) for name, array in inputs.state.items()}
    of_layers = [
        {name.removeprefix(prefix): x for name, x in weights.items() if name.startswith(prefix)}
        for prefix in (f"layers.{i}." for i in range(case.layers))
    ]

    def model(x: torch.Tensor) -> torch.Tensor:
        for of_layer in of_layers:
            x = layer(case, of_layer, x)
        return x

    call = compiled(model)
    optimizer = torch.optim.AdamW(weights.values(), lr=0.0, fused=True)
    given, dout = (torch.from_numpy(array) for array in inputs.arrays)

    def run() -> torch.Tensor:
        x = given.detach().requires_grad_()
        optimizer.zero_grad()
        call(x).backward(dout)
        optimizer.step()
        gradient = x.grad
        assert gradient is not None
        return gradient

    return run


def training_turn(threads: int) -> Callable[[], AbstractContextManager[None]]:
    """Sets the number of threads in which a program runs, with gradients."""

    @contextmanager
    def context() -> Iterator[None]:
        torch.set_num_threads(threads)
        with torch.enable_grad():
            yield

    return context
