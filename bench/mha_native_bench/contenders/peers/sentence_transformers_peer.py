"""Sentence-transformers on torch, from texts, with its default batches and with smaller ones."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import sentence_transformers
import torch

from mha_native_bench.cases.case import Array, Case
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.contenders.contender import CannotCompute, Contender, Program, scores_in_order
from mha_native_bench.contenders.peers.text_batches import SORTED_BATCHES
from mha_native_bench.contenders.peers.torch_peer import turn


class SentenceTransformers(Contender):
    name = "sentence-transformers"
    takes_texts = True

    def description(self) -> str:
        return f"{sentence_transformers.__version__} on torch {torch.__version__}; threads as torch"

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if not case.texts:
            raise CannotCompute("begins with texts")
        if case.weights or case.dtype not in ("f32", "bf16"):
            raise CannotCompute(f"no {case.weights or case.dtype_name} here")
        model, texts = load_model(inputs.model, case.dtype, class_of(case)), list(inputs.texts)

        def call(size: int) -> Any:
            if case.sparse:
                return model.encode(texts, batch_size=size)
            if case.pairs:
                return scores_in_order(model.rank(texts[0], texts[1:], batch_size=size))
            embeddings: Array = model.encode(texts, batch_size=size, normalize_embeddings=True)
            return embeddings

        def program(size: int) -> Program:
            return Program(
                self.name,
                threads,
                lambda: call(size),
                turn(threads, True),
                to_array=lambda found: found.to_dense().numpy() if case.sparse else found,
                variant=f"batches of {size}",
            )

        return [program(size) for size in SORTED_BATCHES[: 1 if case.B == 1 else None]]


def class_of(case: Case) -> Any:
    """The class that computes a case."""
    if case.sparse:
        return sentence_transformers.SparseEncoder
    return sentence_transformers.CrossEncoder if case.pairs else sentence_transformers.SentenceTransformer


@lru_cache(maxsize=1)
def load_model(directory: Path, dtype: str, kind: Any) -> Any:
    """The model, shared by all numbers of threads."""
    kwargs = {"dtype": torch.bfloat16 if dtype == "bf16" else torch.float32}
    return kind(str(directory), device="cpu", model_kwargs=kwargs)
