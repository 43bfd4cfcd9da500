"""ONNX Runtime: each operator that computes attention, and layers around them. The fastest counts."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import onnxruntime  # type: ignore[import-untyped, unused-ignore]
from shapes import Case, Inputs

from .contender import CannotCompute, Contender, Program
from .onnxruntime_attention import attention_models
from .onnxruntime_graph import Model
from .onnxruntime_layers import layer_models


class OnnxRuntime(Contender):
    name = "onnxruntime"

    def description(self) -> str:
        return (
            f"{onnxruntime.__version__}; threads by intra_op_num_threads, a session for each count; "
            "IO binding, into arrays that are there already"
        )

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        return [
            Program(self.name, threads, bound(model, threads), to_array=model.to_array, variant=model.operator)
            for model in models_of(case, inputs)
        ]


def models_of(case: Case, inputs: Inputs) -> list[Model]:
    if case.kind == "sentences":
        raise CannotCompute("no whole model here")
    if case.dtype not in ("f32", "f16"):  # its kernels of attention and of MatMul are registered for no others
        raise CannotCompute(f"no {'bfloat16' if case.dtype == 'bf16' else 'float64'} on a CPU")
    if not case.is_layer:
        return attention_models(case, inputs)
    if case.dtype == "f16":
        raise CannotCompute("no float16 MatMul on a CPU")
    if case.weights == "bf16" or case.cache:
        raise CannotCompute("no 16 bits behind float32")
    return layer_models(case, inputs)


@lru_cache(maxsize=16)
def session_of(model: bytes, threads: int) -> Any:
    """One for all arrays of its shapes: each has threads of its own."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def bound(model: Model, threads: int) -> Callable[[], None]:
    session = session_of(model.serialized(), threads)
    binding = session.io_binding()
    for name, array in model.inputs.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for name, array in model.outputs.items():
        binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    return lambda: session.run_with_iobinding(binding)
