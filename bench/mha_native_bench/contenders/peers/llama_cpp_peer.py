"""llama.cpp: the decoder of a language model, with as many bits a weight."""

from __future__ import annotations

import ctypes
import weakref
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import llama_cpp
import numpy as np

from mha_native_bench.cases.case import Array, Case
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.contenders.contender import CannotCompute, Contender, Program
from mha_native_bench.contenders.peers.gguf_model import TYPES, write_gguf

CONTEXT_STEP = 256  # llama.cpp rounds the length of its caches up to a multiple of this


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]  # a function of C without types
def say_nothing(*_: Any) -> None:
    """Of what llama.cpp says while it loads a model."""


class LlamaCpp(Contender):
    name = "llama.cpp"

    def description(self) -> str:
        features = llama_cpp.llama_print_system_info().decode().strip()
        return f"llama-cpp-python {llama_cpp.__version__}, {features}; n_threads, a context for each count"

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if case.kind != "decoder":
            raise CannotCompute("decoders only")
        model = load_model(case)
        forms = {"unfused": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED}
        if case.weights:  # it rounds keys and values to F16
            forms["flash attention"] = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        return [
            Program(
                self.name,
                threads,
                context.decode,
                variant=f"{TYPES[case.weights].name}, {form}",
                to_array=context.logits,
            )
            for form, kind in forms.items()
            for context in [Context(case, inputs.arrays[0], model, threads, kind)]
        ]


class Model:
    """A model, and the memory that it holds."""

    def __init__(self, case: Case) -> None:
        llama_cpp.llama_log_set(say_nothing, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        with TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write_gguf(case, path)
            settings = llama_cpp.llama_model_default_params()
            settings.use_mmap = False  # the file goes
            self.pointer = llama_cpp.llama_model_load_from_file(str(path).encode(), settings)
        if not self.pointer:
            raise RuntimeError(f"llama.cpp does not load the model of {case.name}")
        weakref.finalize(self, llama_cpp.llama_model_free, self.pointer)


@lru_cache(maxsize=1)
def load_model(case: Case) -> Model:
    """The model, shared by all numbers of threads."""
    return Model(case)


class Context:
    """The last Tq tokens of each sequence over a cache of the others, which is cut back behind each call.

    The cache is in F32 where weights are, and else in F16, the default of llama.cpp.
    """

    def __init__(self, case: Case, tokens: Array, model: Model, threads: int, flash_attention: int) -> None:
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = case.B * -(-case.Tk // CONTEXT_STEP) * CONTEXT_STEP
        settings.n_batch = settings.n_ubatch = case.B * case.Tk
        settings.n_seq_max = case.B
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type = flash_attention
        if not case.weights:
            settings.type_k = settings.type_v = llama_cpp.GGML_TYPE_F32
        self.model = model  # which must outlive it
        self.case = case
        self.pointer = llama_cpp.llama_init_from_model(model.pointer, settings)
        if not self.pointer:
            raise RuntimeError(f"llama.cpp makes no context for {case.name}")
        weakref.finalize(self, llama_cpp.llama_free, self.pointer)  # before the model, as it was made after it
        self.memory = llama_cpp.llama_get_memory(self.pointer)
        self.before = case.Tk - case.Tq
        if self.before:
            batch, _ = batch_of(tokens[:, : self.before], 0)
            self.checked(llama_cpp.llama_decode(self.pointer, batch))
            llama_cpp.llama_batch_free(batch)
        self.batch, self.last = batch_of(tokens[:, self.before :], self.before)
        weakref.finalize(self, llama_cpp.llama_batch_free, self.batch)

    def decode(self) -> list[Any]:
        """Pointers to the logits behind the last token of each sequence."""
        self.checked(llama_cpp.llama_decode(self.pointer, self.batch))
        found = [llama_cpp.llama_get_logits_ith(self.pointer, i) for i in self.last]  # which waits for them
        llama_cpp.llama_memory_seq_rm(self.memory, -1, self.before, -1)
        return found

    def logits(self, found: list[Any]) -> Array:
        return np.stack([np.ctypeslib.as_array(pointer, (self.case.V,)) for pointer in found])

    def checked(self, status: int) -> None:
        if status:
            raise RuntimeError(f"llama_decode returned {status}")


def batch_of(tokens: Array, first: int) -> tuple[Any, list[int]]:
    """Tokens [B, T] at the positions from `first` on, and which of them end a sequence: those that give logits."""
    count, length = tokens.shape
    batch = llama_cpp.llama_batch_init(tokens.size, 0, 1)
    batch.n_tokens = tokens.size
    for i, token in enumerate(tokens.ravel().tolist()):
        sequence, place = divmod(i, length)
        batch.token[i], batch.pos[i] = token, first + place
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        batch.logits[i] = place == length - 1
    return batch, [length * (sequence + 1) - 1 for sequence in range(count)]
