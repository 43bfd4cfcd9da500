"""This library, called as its users call it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import mha_native
from mha_native_bench.cases.case import BLOCK, BLOCKED, DTYPES, Array, Case
from mha_native_bench.cases.inputs import Inputs, make_inputs
from mha_native_bench.cases.language_model import BASE, EMBEDDINGS, EPS, language_model_blocks, language_model_state
from mha_native_bench.cases.oracle import joined
from mha_native_bench.contenders.contender import Contender, Program, scores_in_order


class Ours(Contender):
    name = "mha_native"
    takes_texts = True
    has_gradients = True
    kinds_of_few = frozenset({"experts", "linear", "maxsim"})

    def description(self) -> str:
        return f"{mha_native.__version__}, {mha_native.active_isa()}; threads by num_threads= of each call"

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        options: dict[str, Any] = {**case.options, "num_threads": threads}
        if case.kind == "sdpa":
            attend = mha_native.scaled_dot_product_attention
            query, key, value = inputs.arrays
            return [Program(self.name, threads, lambda: attend(query, key, value, **options))]
        if case.kind == "training":
            return [
                Program(self.name, threads, training(case, inputs, threads), lambda: mha_native.use_threads(threads))
            ]
        if case.is_backward:
            return [Program(self.name, threads, gradients(case, inputs, options), to_array=joined)]
        if case.kind == "cached":
            return [Program(self.name, threads, over_cache(case, inputs, threads))]
        if case.kind == "ragged":
            attend_ragged, offsets = mha_native.scaled_dot_product_attention_varlen, case.offsets
            query, key, value = inputs.arrays
            return [Program(self.name, threads, lambda: attend_ragged(query, key, value, offsets, offsets, **options))]
        if case.kind == "sentences":
            if case.texts:
                return [of_texts(case, inputs, threads)]
            texts = [tokens.tolist() for tokens in inputs.arrays]  # as tokenizers return them
            if case.family == "clip_text":
                return [Program(self.name, threads, of_clip(case, inputs.model, texts, threads))]
            model = load_model(inputs.model, case.dtype_name, case.weight_dtype)
            return [
                Program(self.name, threads, lambda: model.encode_tokens(texts, normalize=True, num_threads=threads))
            ]
        if case.kind == "images":
            images, pixels = load_image_model(inputs.model, case.dtype_name, case.weight_dtype), inputs.arrays[0]
            return [Program(self.name, threads, lambda: images._embed_pixels(pixels, threads))]
        if case.kind == "decoder":
            return [Program(self.name, threads, decoder(case, inputs, threads))]
        if case.kind == "maxsim":
            return [
                Program(self.name, threads, late_interaction(case, inputs, threads), to_array=lambda found: found[0])
            ]
        x = inputs.arrays[0]
        if case.kind == "experts":
            experts = load_experts(case)
            return [Program(self.name, threads, lambda: experts(x, num_threads=threads))]
        if case.kind == "linear":
            product = mha_native.Linear.from_weights(**stored_weight(case), weight_dtype=weight_dtype(case))
            return [Program(self.name, threads, lambda: product(x, num_threads=threads))]
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


def weight_dtype(case: Case) -> Any:
    """The format that numbers are rounded to; None if weights stay as they are, numbers or blocks."""
    return None if case.weights in BLOCKED else case.weight_dtype


@lru_cache(maxsize=1)
def stored_weight(case: Case) -> dict[str, Any]:
    """Return the weight in the format of the case; each layer gets a copy."""
    inputs = make_inputs(case)
    weights: dict[str, Any] = inputs.state | inputs.blocks
    return dict(mha_native.Linear.from_weights(**weights, weight_dtype=weight_dtype(case)).state_dict())


@lru_cache(maxsize=1)
def load_experts(case: Case) -> mha_native.Experts:
    """The layer, shared by all numbers of threads."""
    state = make_inputs(case).state
    formats: dict[str, Any] = {"dtype": case.dtype_name, "weight_dtype": case.weight_dtype}
    return mha_native.Experts.from_weights(state, case.used, **formats)


def late_interaction(case: Case, inputs: Inputs, threads: int) -> Callable[[], Array]:
    """Scores [1, B]; in int8 documents are rounded once, and the query in each call."""
    query, documents = inputs.arrays
    if not case.cache:
        return lambda: mha_native.maxsim(query, documents, num_threads=threads)
    integers, scale = mha_native.quantize_tokens(documents.reshape(-1, case.D))
    integers = integers.reshape(documents.shape)

    def run() -> Array:
        rounded, factors = mha_native.quantize_tokens(query, num_threads=threads)
        scores: Array = mha_native.maxsim(
            rounded, integers, query_scale=factors, document_scale=scale, num_threads=threads
        )
        return scores

    return run


def gradients(case: Case, inputs: Inputs, options: dict[str, Any]) -> Callable[[], tuple[Any, ...]]:
    """Gradients of all arguments; of attention from the results of a call that is not timed."""
    if case.kind == "linear_backward":
        return lambda: mha_native.linear_gradient(*inputs.arrays, **options)
    query, key, value, dout = inputs.arrays
    out, lse = mha_native.scaled_dot_product_attention(query, key, value, return_lse=True, **options)
    return lambda: mha_native.attention_gradient(query, key, value, out, lse, dout, **options)[:3]


def of_texts(case: Case, inputs: Inputs, threads: int) -> Program:
    """The class that stands in the place of that of sentence-transformers."""
    from mha_native.models import SparseEncoder
    from mha_native.sentence_transformers import CrossEncoder, SentenceTransformer

    formats: dict[str, Any] = {"dtype": case.dtype_name, "weight_dtype": case.weight_dtype}
    texts = list(inputs.texts)
    if case.pairs:
        reranker = CrossEncoder(inputs.model, model_kwargs=formats)

        def call() -> Array:
            return scores_in_order(reranker.rank(texts[0], texts[1:]))

    elif case.sparse:
        splade = SparseEncoder.from_pretrained(inputs.model, **formats)
        turn = lambda: mha_native.use_threads(threads)  # noqa: E731
        return Program(Ours.name, threads, lambda: splade.encode(texts), turn, lambda found: found.to_dense())

    else:
        model = SentenceTransformer(inputs.model, model_kwargs=formats)

        def call() -> Array:
            embeddings: Array = model.encode(texts, normalize_embeddings=True)
            return embeddings

    return Program(Ours.name, threads, call, lambda: mha_native.use_threads(threads))


def of_clip(case: Case, directory: Path, texts: list[list[int]], threads: int) -> Callable[[], Array]:
    """What `ImageTextEncoder.encode_texts` does with the tokens of texts."""
    model = load_clip(directory, case.dtype_name, case.weight_dtype)

    def run() -> Array:
        vectors = model._head(model._model, texts, threads)
        normalized: Array = model._finished(vectors, is_one=False, normalize=True, num_threads=threads)
        return normalized

    return run


def over_cache(case: Case, inputs: Inputs, threads: int) -> Callable[[], Array]:
    """The last Tq tokens of each sequence attend to a cache of all Tk, which is not changed."""
    attend, query = mha_native.scaled_dot_product_attention, inputs.arrays[0]
    cache = filled_cache(case, inputs)
    return lambda: attend(query, cache, is_causal=True, num_threads=threads)


def filled_cache(case: Case, inputs: Inputs) -> mha_native.KVCache | mha_native.PagedKVCache:
    """A cache of the tokens of all sequences: dense, or in pages of 64 tokens that lie as the case says.

    In order, sequences are appended one after another, each to neighbouring pages. Shuffled, they grow by a page each
    in turn, in another order in each round. Shared, they are forks of the first one at the end of the prefix.
    """
    _, key, value = inputs.arrays
    sizes: dict[str, Any] = {"batch_size": case.B, "num_kv_heads": case.Hk, "head_dim": case.D}
    sizes["dtype"] = case.cache or case.dtype_name
    if not case.pages:
        dense = mha_native.KVCache(capacity=case.Tk, **sizes)
        dense.append(key, value)
        return dense
    cache = mha_native.PagedKVCache(case.B * -(-case.Tk // BLOCK), BLOCK, **sizes)

    def append(sequence: int, tokens: slice) -> None:
        part = key[:, :, tokens]
        cache.append(part, value[:, :, tokens], part.shape[2] * (np.arange(case.B) == sequence))

    if case.pages == "shuffled":
        rng = np.random.default_rng(0)
        for first in range(0, case.Tk, BLOCK):
            for sequence in rng.permutation(case.B).tolist():
                append(sequence, slice(first, first + BLOCK))
    elif case.pages == "in order":
        for sequence in range(case.B):
            append(sequence, slice(None))
    else:
        append(0, slice(case.prefix))
        for _ in range(1, case.B):
            cache.fork(0)
        cache.append(key[:, :, case.prefix :], value[:, :, case.prefix :])
    return cache


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


def training(case: Case, inputs: Inputs, threads: int) -> Callable[[], Array]:
    """A step of an encoder: forward, backward, and AdamW with a rate of 0, so that each call has the same result."""
    x, dout = inputs.arrays
    model = mha_native.Encoder(case.layers, case.E, case.H, case.F, activation=case.activation)
    model.load_state_dict(inputs.state)
    optimizer = mha_native.optim.AdamW(inputs.state, lr=0.0)

    def run() -> Array:
        _, tape = model.forward_and_record(x, num_threads=threads)
        gradients = tape.backward(dout)
        optimizer.step(gradients.weights)
        model.load_state_dict(optimizer.weights)
        of_x: Array = gradients.inputs["x"]
        return of_x

    return run


def decoder(case: Case, inputs: Inputs, threads: int) -> Callable[[], Array]:
    """Reads the last Tq tokens of each sequence over caches of the others, and rolls the caches back."""
    model, head = load_decoder(case)
    (tokens,) = inputs.arrays
    embeddings, caches = inputs.state[EMBEDDINGS], model.new_caches(case.B, case.Tk)
    before = case.Tk - case.Tq
    if before:
        model(embeddings[tokens[:, :before]], caches=caches)
    new = tokens[:, before:]

    def run() -> Array:
        rows = model(embeddings[new], caches=caches, num_threads=threads)
        logits: Array = head(rows[:, -1], num_threads=threads)
        for cache in caches:
            cache.rollback(case.Tq)
        return logits

    return run


@lru_cache(maxsize=1)
def load_decoder(case: Case) -> tuple[Any, Any]:
    """The layers and the head, shared by all numbers of threads."""
    return make_decoder(case, language_model_state(case) | language_model_blocks(case), weight_dtype(case))


def make_decoder(case: Case, weights: dict[str, Any], stored: Any) -> tuple[Any, Any]:
    """The layers and the head with these weights, whose numbers are stored as `stored`."""
    rotary = mha_native.RotaryEmbedding.from_base(case.D, case.Tk, BASE)

    def part(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}

    def norm(name: str) -> Any:
        return mha_native.RMSNorm.from_weights(**part(f"{name}."), eps=EPS)

    def layer(name: str) -> Any:
        heads: dict[str, Any] = {"num_kv_heads": case.Hk, "rotary": rotary, "weight_dtype": stored}
        attention = mha_native.MultiHeadAttention.from_weights(part(f"{name}.self_attn."), case.H, **heads)
        maps = {of: array for of, array in part(f"{name}.").items() if of.startswith(("gate", "linear"))}
        hidden = mha_native.FeedForward.from_weights(maps, activation=case.activation, weight_dtype=stored)
        norms = norm(f"{name}.norm1"), norm(f"{name}.norm2")
        return mha_native.EncoderLayer.from_parts(attention, hidden, *norms, norm_first=True)

    layers = [layer(f"layers.{i}") for i in range(case.layers)]
    model = mha_native.CausalDecoder.from_layers(layers, norm("norm"))
    head = mha_native.Linear.from_weights(weights[EMBEDDINGS], weight_dtype=stored)
    return model, head


@lru_cache(maxsize=2)
def load_image_model(directory: Path, dtype: str, weight_dtype: str | None) -> Any:
    """The model of images, shared as `load_model`."""
    from mha_native.models import ImageEncoder

    return ImageEncoder.from_pretrained(directory, dtype=dtype, weight_dtype=weight_dtype)


@lru_cache(maxsize=2)
def load_clip(directory: Path, dtype: str, weight_dtype: str | None) -> Any:
    """The model of images and texts, shared as `load_model`."""
    from mha_native.models import ImageTextEncoder

    return ImageTextEncoder.from_pretrained(directory, dtype=dtype, weight_dtype=weight_dtype)


@lru_cache(maxsize=2)
def load_model(directory: Path, dtype: str, weight_dtype: str | None) -> Any:
    """The model, shared by all numbers of threads; also kept is that of the case that this one goes against."""
    from mha_native.models import SentenceEncoder

    return SentenceEncoder.from_pretrained(directory, dtype=dtype, weight_dtype=weight_dtype)
