"""OpenVINO: attention, a layer, and the BERT of transformers with its pooling, each compiled as a whole."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import openvino
import torch

from mha_native_bench.cases.case import Array, Case
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.contenders.contender import CannotCompute, Contender, Program
from mha_native_bench.contenders.peers.openvino_graphs import graph_programs, settings
from mha_native_bench.contenders.peers.text_batches import Batches, forms, in_order
from mha_native_bench.contenders.peers.transformers_peer import load_embedder


class OpenVino(Contender):
    name = "openvino"

    def description(self) -> str:
        return (
            f"{openvino.__version__}; LATENCY, INFERENCE_PRECISION_HINT as the case; INFERENCE_NUM_THREADS, "
            "compiled for each; arrays of its own, that are there already"
        )

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if case.dtype not in ("f32", "bf16"):  # its plugin for CPUs computes f16 and f64 in f32
            raise CannotCompute(f"no {case.dtype_name} on this CPU" if case.dtype == "f16" else "no float64")
        if case.weights == "bf16" or case.cache:
            raise CannotCompute("no 16 bits behind float32")
        if case.kind != "sentences":
            return graph_programs(self.name, case, inputs, threads)
        if case.weights:
            raise CannotCompute("int8 models are made by another package")
        programs = []
        for form, order, batches in forms(case, inputs):
            shapes: list[tuple[int, int] | None] = [None]
            if len(batches) == 1:
                shapes.append(batches[0][0].shape)
            for shape in shapes:
                programs.append(
                    Program(
                        self.name,
                        threads,
                        embedding(inputs.model, case.dtype, threads, shape, batches),
                        to_array=partial(in_order, order),
                        variant=f"{form}, {'one shape' if shape else 'any shape'}",
                    )
                )
        return programs


def embedding(
    directory: Path, precision: str, threads: int, shape: tuple[int, int] | None, batches: Batches
) -> Callable[[], list[Array]]:
    """A function that computes all batches, compiled at its first call.

    Inputs are not copied. Results are, except those of the last batch, which no other overwrites.
    """
    last = len(batches) - 1

    def run() -> list[Array]:
        request = compiled(directory, precision, threads, len(batches[0]), shape)
        return [request.infer(batch, share_inputs=True, share_outputs=i == last)[0] for i, batch in enumerate(batches)]

    return run


@cache
def compiled(directory: Path, precision: str, threads: int, num_inputs: int, shape: tuple[int, int] | None) -> Any:
    model = converted(directory, num_inputs).clone()
    if shape is not None:
        model.reshape(dict.fromkeys(model.inputs, shape))
    return openvino.Core().compile_model(model, "CPU", settings(precision, threads)).create_infer_request()


@cache
def converted(directory: Path, num_inputs: int) -> Any:
    """The BERT of transformers as a model of OpenVINO: of token ids, and of a mask if there are two inputs."""
    example = tuple(torch.ones(2, 7, dtype=torch.long) for _ in range(num_inputs))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about deprecated functions of torch that the tracing calls
        return openvino.convert_model(load_embedder(directory, "f32"), example_input=example)
