"""OpenVINO: attention, a layer, and models of transformers, each compiled as a whole."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import openvino
import torch

from mha_native_bench.cases.case import BLOCKED, Array, Case
from mha_native_bench.cases.clip_text import POSITIONS as CLIP_POSITIONS
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.contenders.contender import CannotCompute, Contender, Program, of_arrays
from mha_native_bench.contenders.peers.openvino_graphs import Request, compiled_graph, graph_programs, settings
from mha_native_bench.contenders.peers.openvino_paged import paged_programs
from mha_native_bench.contenders.peers.openvino_products import compress, groups_of, product_graph
from mha_native_bench.contenders.peers.text_batches import Batches, forms, in_order
from mha_native_bench.contenders.peers.transformers_decoder import load_decoder
from mha_native_bench.contenders.peers.transformers_peer import load_embedder, load_vit


class OpenVino(Contender):
    name = "openvino"
    kinds_of_few = frozenset({"linear"})

    def description(self) -> str:
        return (
            f"{openvino.__version__}; LATENCY, INFERENCE_PRECISION_HINT as the case; INFERENCE_NUM_THREADS, "
            "compiled for each; arrays of its own, that are there already"
        )

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if case.kind == "cached":
            paged = paged_programs(self.name, case, inputs, threads)
            return paged if case.cache else self.programs(of_arrays(case), inputs, threads) + paged
        if case.dtype not in ("f32", "bf16"):  # its plugin for CPUs computes f16 and f64 in f32
            raise CannotCompute(f"no {case.dtype_name} on this CPU" if case.dtype == "f16" else "no float64")
        if case.weights == "bf16" or case.cache:
            raise CannotCompute("no 16 bits behind float32")
        if case.kind == "linear":
            return self._product(case, inputs, threads)
        if case.kind == "decoder":
            return self._prompt(case, inputs, threads)
        if case.kind == "images":
            return self._images(case, inputs, threads)
        if case.weights == "int4":
            raise CannotCompute("int4 models are made by another package")
        if case.kind != "sentences":
            return graph_programs(self.name, case, inputs, threads)
        if case.weights:
            raise CannotCompute("int8 models are made by another package")
        if case.family and case.shortest < case.Tq:
            raise CannotCompute("NaN where padding is outside of windows")
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
                        embedding(inputs.model, case, threads, shape, batches),
                        to_array=partial(in_order, order),
                        variant=f"{form}, {'one shape' if shape else 'any shape'}",
                    )
                )
        return programs

    def _images(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if case.weights:
            raise CannotCompute("int8 models are made by another package")
        (pixels,) = inputs.arrays
        model = converted_vit(inputs.model).clone()
        model.reshape(dict.fromkeys(model.inputs, pixels.shape))
        request = openvino.Core().compile_model(model, "CPU", settings(case.dtype, threads)).create_infer_request()
        run = lambda: request.infer([pixels], share_inputs=True, share_outputs=True)[0]  # noqa: E731
        return [Program(self.name, threads, run)]

    def _prompt(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        """A prompt without a cache, of which OpenVINO has only what grows inside of a model."""
        if case.Tq < case.Tk:
            raise CannotCompute("only caches that grow inside of a model")
        tokens = inputs.arrays[0]

        def program(group: int) -> Program:
            request = prompt_request(case, threads, group)

            def run() -> Array:
                logits: Array = request.infer([tokens], share_inputs=True, share_outputs=True)[0]
                return logits

            form = f", groups of {group}" if case.weights else ""
            return Program(self.name, threads, run, variant=f"without a cache{form}")

        return [program(group) for group in groups_of(case)]

    def _product(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        def program(group: int) -> Program:
            graph = product_graph(case, inputs.state["weight"], group)
            request = Request(compiled_graph(graph, "f32", threads, group), inputs.arrays, "f32")
            form = f"groups of {group}" if group else ""
            return Program(self.name, threads, request, to_array=request.result, variant=form)

        return [program(group) for group in groups_of(case)]


@lru_cache(maxsize=2)
def prompt_request(case: Case, threads: int, group: int) -> Any:
    """The Llama of transformers for the tokens of a case, compiled.

    `group` features of compressed weights, and of rows, share a scale; 0: nothing is compressed.
    """
    model = converted_decoder(replace(case, name="", weights=case.weights if case.weights in BLOCKED else "")).clone()
    model.reshape(dict.fromkeys(model.inputs, (case.B, case.Tk)))
    if group:
        compress(model, case.whole_bits, group)
    return compiled_graph(model, "f32", threads, group).create_infer_request()


@lru_cache(maxsize=1)
def converted_decoder(case: Case) -> Any:
    """The model in float32."""
    example = torch.zeros(case.B, case.Tk, dtype=torch.long)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about deprecated functions of torch that the tracing calls
        return openvino.convert_model(LastLogits(load_decoder(case)), example_input=example)


class LastLogits(torch.nn.Module):  # type: ignore[misc]  # a class without types
    """Token ids [B, T] to the logits [B, V] behind the last ones.

    By the modules of a Llama without what it does about masks and caches, some of which OpenVINO does not convert.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        parts: Any = self.model.model
        rows = parts.embed_tokens(ids)
        turns = parts.rotary_emb(rows, torch.arange(ids.shape[1])[None])
        for layer in parts.layers:
            rows = layer(rows, position_embeddings=turns)
        logits: torch.Tensor = self.model.lm_head(parts.norm(rows[:, -1]))
        return logits


def embedding(
    directory: Path, case: Case, threads: int, shape: tuple[int, int] | None, batches: Batches
) -> Callable[[], list[Array]]:
    """A function that computes all batches, compiled at its first call.

    Inputs are not copied. Results are, except those of the last batch, which no other overwrites.
    """
    last = len(batches) - 1

    def run() -> list[Array]:
        request = compiled(directory, case.family, case.dtype, threads, len(batches[0]), shape)
        return [request.infer(batch, share_inputs=True, share_outputs=i == last)[0] for i, batch in enumerate(batches)]

    return run


@cache
def compiled(
    directory: Path, family: str, precision: str, threads: int, num_inputs: int, shape: tuple[int, int] | None
) -> Any:
    model = converted(directory, family, num_inputs).clone()
    if shape is not None:
        model.reshape(dict.fromkeys(model.inputs, shape))
    return openvino.Core().compile_model(model, "CPU", settings(precision, threads)).create_infer_request()


@cache
def converted_vit(directory: Path) -> Any:
    """The ViT of transformers as a model of OpenVINO, of pixels to vectors."""
    model = FirstRow(load_vit(directory, "f32"))
    size = model.encoder.config.image_size
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about deprecated functions of torch that the tracing calls
        return openvino.convert_model(model, example_input=torch.zeros(1, 3, size, size))


class FirstRow(torch.nn.Module):  # type: ignore[misc]  # a class without types
    """Pixels [B, 3, height, width] to vectors [B, E]."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        row: torch.Tensor = self.encoder(pixel_values=pixels).last_hidden_state[:, 0]
        return row


@cache
def converted(directory: Path, family: str, num_inputs: int) -> Any:
    """The encoder of transformers as a model of OpenVINO: of token ids, and of a mask if there are two inputs."""
    # Longer than windows: for a shorter text transformers makes no mask, and what is traced would have none.
    length = CLIP_POSITIONS if family == "clip_text" else 200
    example = tuple(torch.ones(2, length, dtype=torch.long) for _ in range(num_inputs))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about deprecated functions of torch that the tracing calls
        return openvino.convert_model(load_embedder(directory, "f32", family), example_input=example)
