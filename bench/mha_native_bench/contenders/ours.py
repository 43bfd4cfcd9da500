"""This library, called as its users call it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import mha_native
from mha_native_bench.cases.case import DTYPES, Array, Case
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.contenders.contender import Contender, Program


class Ours(Contender):
    name = "mha_native"
    takes_texts = True

    def description(self) -> str:
        return f"{mha_native.__version__}, {mha_native.active_isa()}; threads by num_threads= of each call"

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        options: dict[str, Any] = {**case.options, "num_threads": threads}
        if case.kind == "sdpa":
            attend = mha_native.scaled_dot_product_attention
            query, key, value = inputs.arrays
            return [Program(self.name, threads, lambda: attend(query, key, value, **options))]
        if case.kind == "ragged":
            attend_ragged, offsets = mha_native.scaled_dot_product_attention_varlen, case.offsets
            query, key, value = inputs.arrays
            return [Program(self.name, threads, lambda: attend_ragged(query, key, value, offsets, offsets, **options))]
        if case.kind == "sentences":
            if case.texts:
                return [of_texts(case, inputs, threads)]
            model = load_model(inputs.model, case.dtype_name, case.weight_dtype)
            texts = [tokens.tolist() for tokens in inputs.arrays]  # as tokenizers return them
            return [
                Program(self.name, threads, lambda: model.encode_tokens(texts, normalize=True, num_threads=threads))
            ]
        x = inputs.arrays[0]
        layer: Any
        formats: dict[str, Any] = {"dtype": case.dtype_name, "weight_dtype": case.weight_dtype}
        if case.kind == "encoder_layer":
            layer = mha_native.EncoderLayer(case.E, case.H, case.F, activation=case.activation, **formats)
        else:
            layer = mha_native.MultiHeadAttention(case.E, case.H, **formats)
        layer.load_state_dict(inputs.state)
        if case.kind == "step":
            return [Program(self.name, threads, step(case, layer, x, threads))]
        return [Program(self.name, threads, lambda: layer(*inputs.arrays, **options))]


def of_texts(case: Case, inputs: Inputs, threads: int) -> Program:
    """The class that stands in the place of that of sentence-transformers."""
    from mha_native.sentence_transformers import SentenceTransformer

    formats = {"dtype": case.dtype_name, "weight_dtype": case.weight_dtype}
    model, texts = SentenceTransformer(inputs.model, model_kwargs=formats), list(inputs.texts)
    return Program(
        Ours.name,
        threads,
        lambda: model.encode(texts, normalize_embeddings=True),
        lambda: mha_native.use_threads(threads),
    )


def step(case: Case, layer: Any, x: Array, threads: int) -> Callable[[], Array]:
    """Appends the last token of each sequence to a cache of the others, attends to all, and rolls the cache back."""
    token = x[:, -1:]
    cache = layer.new_cache(case.B, case.Tk, dtype=DTYPES[case.cache or case.dtype][0])
    layer.append_to(cache, x[:, :-1])

    def run() -> Array:
        out: Array = layer(token, cache=cache, num_threads=threads)
        cache.rollback(1)
        return out

    return run


@lru_cache(maxsize=2)
def load_model(directory: Path, dtype: str, weight_dtype: str | None) -> Any:
    """The model, shared by all numbers of threads; also kept is that of the case that this one goes against."""
    from mha_native.models import SentenceEncoder

    return SentenceEncoder.from_pretrained(directory, dtype=dtype, weight_dtype=weight_dtype)
