"""The arrays and weights that all contenders of a case compute on."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from mha_native import BlockMatrix
from mha_native_bench.cases.blocks import random_blocks
from mha_native_bench.cases.case import BLOCKED, Array, Case
from mha_native_bench.cases.clip_text import END
from mha_native_bench.cases.language_model import language_model_blocks, language_model_state
from mha_native_bench.cases.sentence_model import VOCABULARY, pairs_of_lengths, texts_of_lengths
from mha_native_bench.cases.weights import attention_state, encoder_layer_state, experts_state, uniform_weights
from mha_native_bench.machine import last_cache_bytes

# Copies of a cold case fill the last cache so many times over, so that each is evicted before it is used again.
COLD_CACHES = 4


@dataclass(frozen=True)
class Inputs:
    """What a case computes on.

    Parameters
    ----------
    arrays : tuple of array
        Attention: query, key and value; what a cache holds is given so, too. A layer: x [B, Tq, E], and the memory
        [B, Tk, E] if it attends to one. Gradients: the arguments, a bias left out, and the gradient by the result.
        Training: x, and the gradient by the result. A step: all tokens [B, Tk, E], of which it computes the last.
        Late interaction: vectors of a query [Tq, D], and of documents [B, Tk, D].
        Sentences: the token ids of each text. A decoder: those of all sequences [B, Tk]. Images: pixels
        [B, 3, height, width].
    state : dict
        Weights of the layer, as torch names them; of a decoder, those of the whole model.
    model : path
        The directory of the model that sentences or images are for.
    texts : tuple of str
        Whose tokens the arrays are, if the case begins with texts; of pairs the query, and then the documents.
    blocks : dict
        The same weights as matrices of a GGUF file, if they are in one of its formats.
    """

    arrays: tuple[Array, ...]
    state: dict[str, Array]
    model: Path = Path()
    texts: tuple[str, ...] = ()
    blocks: dict[str, BlockMatrix] = field(default_factory=dict)


def make_inputs(case: Case, model: Path | None = None) -> Inputs:
    """Normal arrays, standard ones unless the case says otherwise, the same in each run. Sentences need a `model`."""
    seed = zlib.crc32(case.name.encode())
    rng = np.random.default_rng(seed)
    if case.kind == "linear_backward":
        shapes: tuple[tuple[int, ...], ...] = (case.B, case.Tq, case.E), (case.F, case.E), (case.B, case.Tq, case.F)
        return in_dtype(Inputs(tuple(rng.standard_normal(shape) for shape in shapes), {}), case)
    if case.kind in ("sdpa", "cached", "attention_backward"):
        queries, keys = (case.B, case.H, case.Tq, case.D), (case.B, case.Hk, case.Tk, case.D)
        # A score, the product over sqrt(D), has the deviation of the queries.
        deviations = {"query": (queries, case.scores), "key": (keys, 1.0), "value": (keys, case.values)}
        sdpa = tuple(rng.standard_normal(shape) * deviation for shape, deviation in deviations.values())
        if case.is_backward:
            return in_dtype(Inputs((*sdpa, rng.standard_normal(queries)), {}), case)
        for array in sdpa[1:]:
            array[1:, :, : case.prefix] = array[:1, :, : case.prefix]
        return in_dtype(Inputs(sdpa, {}), case)
    if case.kind == "ragged":
        rows = int(case.lengths.sum())
        heads = (case.H, case.Hk, case.Hk)
        return Inputs(tuple(rng.standard_normal((rows, n, case.D)).astype(case.np_dtype) for n in heads), {})
    if case.kind == "sentences":
        if model is None:
            raise ValueError(f"{case.name} needs a model")
        if case.texts:
            of_lengths = pairs_of_lengths if case.pairs else texts_of_lengths
            texts, tokens = of_lengths(model, case.lengths.tolist(), rng)
            return Inputs(tokens, {}, model, texts)
        of_all = np.random.default_rng(0)  # the same tokens for all formats of weights
        if case.family == "clip_text":
            tokens = tuple(np.append(of_all.integers(END + 1, VOCABULARY, case.Tq - 1), END) for _ in range(case.B))
            return Inputs(tokens, {}, model)
        return Inputs(tuple(of_all.integers(0, VOCABULARY, length) for length in case.lengths.tolist()), {}, model)
    if case.kind == "images":
        if model is None:
            raise ValueError(f"{case.name} needs a model")
        size = case.image_size
        pixels = np.random.default_rng(0).standard_normal((case.B, 3, size, size), np.float32)
        return Inputs((pixels,), {}, model)  # the same pixels for all dtypes of the model
    if case.kind == "decoder":
        of_prompts = np.random.default_rng(0).integers(0, case.V, (case.B, case.Tk))
        return Inputs((of_prompts,), language_model_state(case), blocks=language_model_blocks(case))
    if case.kind == "linear":
        return linear_map(case)
    if case.kind == "maxsim":
        return in_dtype(vectors_of_tokens(case), case)
    if case.kind == "encoder_layer":
        x = rng.standard_normal((case.B, case.Tq, case.E))
        return in_dtype(Inputs((x,), encoder_layer_state(case, rng)), case)
    if case.kind == "experts":
        of_rows = np.random.default_rng(0)  # the same rows and weights for all formats
        x = of_rows.standard_normal((case.B, case.Tq, case.E))
        return in_dtype(Inputs((x,), experts_state(case, of_rows)), case)
    if case.kind == "training":
        both = rng.standard_normal((2, case.B, case.Tq, case.E))
        layers = [encoder_layer_state(case, rng) for _ in range(case.layers)]
        state = {f"layers.{i}.{name}": array for i, layer in enumerate(layers) for name, array in layer.items()}
        return in_dtype(Inputs(tuple(both), state), case)
    state = attention_state(case, rng, seed)
    lengths = (case.Tq, case.Tk) if case.is_cross else (case.Tk,)
    arrays = tuple(rng.standard_normal((case.B, length, case.E)) for length in lengths)
    return in_dtype(Inputs(arrays, state), case)


def linear_map(case: Case) -> Inputs:
    """The same rows for all formats of the weight."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((case.B, case.Tq, case.E), np.float32)
    weight = uniform_weights(rng)(case.F, case.E).astype(np.float32)
    if case.weights not in BLOCKED:
        return Inputs((x,), {"weight": weight})
    matrix = random_blocks(case.weights, weight, rng)
    return Inputs((x,), {"weight": matrix.dequantize()}, blocks={"weight": matrix})


def vectors_of_tokens(case: Case) -> Inputs:
    """Vectors of length 1, the same for all formats. Documents have from none to all tokens of the query in common."""
    rng = np.random.default_rng(0)
    query, documents = rng.standard_normal((case.Tq, case.D)), rng.standard_normal((case.B, case.Tk, case.D))
    for document, count in zip(documents, rng.integers(0, min(case.Tq, case.Tk) + 1, case.B), strict=True):
        document[rng.permutation(case.Tk)[:count]] = query[:count]
    arrays = (query, documents)
    return Inputs(tuple(array / np.linalg.norm(array, axis=-1, keepdims=True) for array in arrays), {})


def in_dtype(inputs: Inputs, case: Case) -> Inputs:
    """The same numbers rounded to the dtype of `case`. Token ids, and models in files, stay as they are."""
    if case.kind in ("sentences", "images", "decoder"):
        return inputs
    arrays = tuple(array.astype(case.np_dtype, copy=False) for array in inputs.arrays)
    return Inputs(arrays, {name: array.astype(case.np_dtype, copy=False) for name, array in inputs.state.items()})


def copies(case: Case, inputs: Inputs) -> list[Inputs]:
    """`inputs` alone; for a cold case so many copies that each has left the caches before it is used again."""
    if not case.cold:
        return [inputs]
    of_arrays = sum(array.nbytes for array in inputs.arrays)
    of_one = {"cached": case.key_value_bytes, "linear": case.weight_bytes}.get(case.kind, of_arrays)
    count = -(-COLD_CACHES * last_cache_bytes() // of_one)
    return [replace(inputs, arrays=tuple(array.copy() for array in inputs.arrays)) for _ in range(max(2, count))]
