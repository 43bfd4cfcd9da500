"""ONNX Runtime: each of its operators of attention, and layers and models around them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import onnxruntime

from mha_native_bench.cases.case import Array, Case
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.contenders.contender import CannotCompute, Contender, Program, of_arrays
from mha_native_bench.contenders.peers.onnxruntime_attention import attention_models
from mha_native_bench.contenders.peers.onnxruntime_graph import Model
from mha_native_bench.contenders.peers.onnxruntime_layers import layer_models
from mha_native_bench.contenders.peers.onnxruntime_models import clip_text_model, image_model, sentence_model
from mha_native_bench.contenders.peers.onnxruntime_modern import (
    decoder_model,
    empty_caches,
    modernbert_model,
    product_model,
)
from mha_native_bench.contenders.peers.text_batches import Batches, forms, in_order


class OnnxRuntime(Contender):
    name = "onnxruntime"
    kinds_of_few = frozenset({"linear"})

    def description(self) -> str:
        return (
            f"{onnxruntime.__version__}; threads by intra_op_num_threads, a session for each count; "
            "IO binding, into arrays that are there already"
        )

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        case = of_arrays(case)
        if case.kind == "decoder":
            return self._decoder(case, inputs, threads)
        if case.kind == "sentences":
            return self._sentences(case, inputs, threads)
        if case.kind == "images":
            return self._images(case, inputs, threads)
        if case.kind == "linear":
            return self._product(case, inputs, threads)
        return [
            Program(self.name, threads, bound(model, threads), to_array=model.to_array, variant=model.operator)
            for model in models_of(case, inputs)
        ]

    def _sentences(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if case.dtype != "f32" or case.weights == "bf16":
            raise CannotCompute("no 16-bit MatMul on a CPU")
        if case.weights == "int4":
            raise CannotCompute("no 4 bits in its operators of encoders")
        if case.family == "clip_text":
            if case.weights:
                raise CannotCompute(f"no {case.weights} here")
            return self._whole(clip_text_model(case, inputs.model, np.stack(inputs.arrays)), threads)
        if case.family:
            return self._modernbert(case, inputs, threads)
        programs = []
        for form, order, batches in forms(case, inputs):
            model = sentence_model(inputs.model, case, len(batches[0]) > 1)
            run, parts = embedding(model, threads, batches, case.E)
            programs.append(Program(self.name, threads, run, to_array=partial(embeddings, order, parts), variant=form))
        return programs

    def _images(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if case.dtype != "f32" or case.weights:
            raise CannotCompute("no 16-bit MatMul on a CPU" if case.dtype != "f32" else f"no {case.weights} here")
        return self._whole(image_model(case, inputs.model, inputs.arrays[0]), threads)

    def _modernbert(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if case.shortest < case.Tq:
            raise CannotCompute("no padding of windows is built here")
        return self._whole(modernbert_model(case, inputs.model, np.stack(inputs.arrays)), threads)

    def _product(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if case.weights == "bf16":
            raise CannotCompute("no 16-bit MatMul on a CPU")
        return self._whole(product_model(case, inputs), threads)  # a session for each copy of a cold case

    def _decoder(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if case.weights == "bf16":
            raise CannotCompute("no 16 bits behind float32")
        before = case.Tk - case.Tq
        if before and case.Tq > 1 and case.B > 1:
            raise CannotCompute("one sequence, if several tokens go to a cache")
        return self._whole(decoder_model(case, before, case.Tk, filled_caches(case)), threads)

    def _whole(self, model: Model, threads: int) -> list[Program]:
        """A session of its own for a graph."""
        run = bound(model, threads, new_session)
        return [Program(self.name, threads, run, to_array=model.to_array, variant=model.operator)]


@lru_cache(maxsize=1)
def filled_caches(case: Case) -> dict[str, Array]:
    """Keys and values of all tokens but the last Tq, which each call writes anew, for all numbers of threads."""
    caches, before = empty_caches(case), case.Tk - case.Tq
    if before:
        bound(decoder_model(case, 0, before, caches), 1, new_session)()
    return caches


def models_of(case: Case, inputs: Inputs) -> list[Model]:
    if case.dtype not in ("f32", "f16"):  # its kernels of attention and MatMul have no others
        raise CannotCompute(f"no {'bfloat16' if case.dtype == 'bf16' else 'float64'} on a CPU")
    if not case.is_layer:
        return attention_models(case, inputs)
    if case.dtype == "f16":
        raise CannotCompute("no float16 MatMul on a CPU")
    if case.weights == "bf16" or case.cache:
        raise CannotCompute("no 16 bits behind float32")
    if case.weights == "int4":
        raise CannotCompute("no 4 bits in its operators of encoders")
    return layer_models(case, inputs)


def new_session(model: bytes, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


# Shared by all inputs of the same shapes, as each session has threads of its own. Whole models are not kept.
session_of = lru_cache(maxsize=8)(new_session)


def embedding(model: bytes, threads: int, batches: Batches, features: int) -> tuple[Callable[[], None], list[Array]]:
    """A function that computes all batches, and the arrays that it writes the embeddings to."""
    session = session_of(model, threads)
    given = [dict(zip(("ids", "mask"), (array.astype(np.int32) for array in batch), strict=False)) for batch in batches]
    parts = [np.empty((len(batch[0]), features), np.float32) for batch in batches]
    bindings = [binding_of(session, inputs, {"out": out}) for inputs, out in zip(given, parts, strict=True)]

    def run() -> None:
        for binding in bindings:
            session.run_with_iobinding(binding)

    return run, parts


def embeddings(order: list[int], parts: list[Array], _: None) -> Array:
    """What `parts` hold after a call, in the order of the texts; the call itself returns None."""
    return in_order(order, parts)


def bound(model: Model, threads: int, of_model: Callable[[bytes, int], Any] = session_of) -> Callable[[], None]:
    session = of_model(model.serialized(), threads)
    binding = binding_of(session, model.inputs, model.outputs)
    return lambda: session.run_with_iobinding(binding)


def binding_of(session: Any, inputs: dict[str, Array], outputs: dict[str, Array]) -> Any:
    """Binds the arrays as memory of inputs and outputs, without a copy."""
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for name, array in outputs.items():
        binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    return binding
