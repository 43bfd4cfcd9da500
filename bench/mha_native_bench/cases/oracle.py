"""The expected result of a case in float64, and how far a contender may be from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mha_native
from mha_native import reference
from mha_native_bench.cases.case import BLOCKED, DTYPES, QUERY_TOKENS, WEIGHTS, Array, Case
from mha_native_bench.cases.clip_text import clip_text_vector
from mha_native_bench.cases.image_model import vit_vectors
from mha_native_bench.cases.inputs import Inputs, make_inputs
from mha_native_bench.cases.language_model import language_model_logits, language_model_state
from mha_native_bench.cases.modernbert import modernbert_rows
from mha_native_bench.cases.sentence_model import BERT
from mha_native_bench.cases.weights import SHARPNESS

Texts = tuple[tuple[int, ...], ...]  # tokens


def oracle(case: Case, inputs: Inputs) -> NDArray[np.float64]:
    """The result by `mha_native.reference`, from weights that no layer has rounded to its format yet."""
    if case.kind in ("sentences", "decoder"):
        # Formats that round the same weights have the same expected result, which takes a minute of the largest models.
        weights = case.weights if case.weights in BLOCKED else ""
        same = replace(case, name="", dtype="f32", weights=weights, against="", quick=False, extra=False)
        sequences = inputs.arrays if case.kind == "sentences" else inputs.arrays[0]
        texts = tuple(tuple(tokens.tolist()) for tokens in sequences)
        with one_blas_thread():
            return sentence_oracle(same, texts, inputs.model) if case.kind == "sentences" else logits(same, texts)
    if case.kind == "images":
        same = replace(case, name="", dtype="f32", weights="", against="", quick=False, extra=False)
        with one_blas_thread():
            return image_oracle(same, inputs.model)
    arrays = [array.astype(np.float64) for array in inputs.arrays]
    if case.kind == "experts":
        return experts(case, arrays[0], inputs.state)
    if case.kind == "maxsim":
        query, documents = arrays
        ends = np.arange(case.B + 1) * case.Tk
        rows = documents.reshape(-1, case.D)
        of_query: NDArray[np.float64] = reference.maxsim(query, rows, cu_seqlens_q=[0, case.Tq], cu_seqlens_k=ends)[0]
        return of_query
    if case.kind == "linear":
        return reference.linear(arrays[0], inputs.state["weight"])
    state = {name: array.astype(np.float64) for name, array in inputs.state.items()}
    if case.kind == "training":  # the tests of the library compare this with differences of the encoder and with torch
        encoder = mha_native.Encoder(case.layers, case.E, case.H, case.F, activation=case.activation, dtype="float64")
        encoder.load_state_dict(state)
        _, tape = encoder.forward_and_record(arrays[0], wrt=("x",))
        of_x: NDArray[np.float64] = tape.backward(arrays[1]).inputs["x"]
        return of_x
    if case.is_backward:
        gradients: dict[str, Callable[..., dict[str, Array]]] = {
            "attention_backward": reference.attention_gradient,
            "linear_backward": reference.linear_gradient,
        }
        return joined(gradients[case.kind](*arrays, **case.options).values())
    if case.kind in ("sdpa", "cached"):
        options = case.options if case.kind == "sdpa" else {"is_causal": case.Tq > 1}
        result: NDArray[np.float64] = reference.scaled_dot_product_attention(*arrays, **options)
    elif case.kind == "ragged":
        query, key, value = arrays
        result = reference.scaled_dot_product_attention_varlen(
            query, key, value, case.offsets, case.offsets, is_causal=case.causal
        )
    elif case.kind == "encoder_layer":
        result = reference.encoder_layer(arrays[0], state, case.H, activation=case.activation, is_causal=case.causal)
    else:
        query, memory = arrays[0][:, -case.Tq :], arrays[-1]
        result = reference.multi_head_attention(query, memory, memory, state, case.H, is_causal=case.causal)
    return result


def experts(case: Case, x: NDArray[np.float64], state: dict[str, Array]) -> NDArray[np.float64]:
    """The weighted sum of the experts that each row chooses, each computed for its rows alone."""
    rows = x.reshape(-1, case.E)
    logits = reference.linear(rows, state["router.weight"])
    chosen = np.argsort(-logits, axis=-1, kind="stable")[:, : case.used]
    powers = np.exp(np.take_along_axis(logits, chosen, -1))
    weights = powers / powers.sum(-1, keepdims=True)
    result = np.zeros_like(rows)
    with one_blas_thread():
        for i in range(case.X):
            own, places = np.nonzero(chosen == i)
            weighted = weights[own, places, None]
            prefix = f"experts.{i}."
            of_expert = {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
            result[own] += weighted * reference.feed_forward(rows[own], of_expert, activation="silu")
    return result.reshape(x.shape)


def joined(gradients: Iterable[Array]) -> Array:
    """Gradients of all arguments, one after another."""
    return np.concatenate([np.ravel(gradient) for gradient in gradients])


@lru_cache(maxsize=1)
def logits(case: Case, sequences: Texts) -> NDArray[np.float64]:
    """The logits [B, V] behind the last token of each sequence."""
    return language_model_logits(case, np.array(sequences), language_model_state(case))


@lru_cache(maxsize=1)
def image_oracle(case: Case, directory: Path) -> NDArray[np.float64]:
    """The vectors [B, E] of images by the model in `directory`."""
    from safetensors.numpy import load_file

    (pixels,) = make_inputs(case, directory).arrays
    return vit_vectors(case, load_file(directory / "model.safetensors"), pixels)


@lru_cache(maxsize=1)
def sentence_oracle(case: Case, texts: Texts, directory: Path) -> NDArray[np.float64]:
    """Embeddings [B, E] of length 1, sparse ones [B, V], or scores [B] of pairs, by the model in `directory`."""
    from safetensors.numpy import load_file

    tensors = {
        name.removeprefix("bert."): tensor for name, tensor in load_file(directory / "model.safetensors").items()
    }
    if case.family == "clip_text":
        vectors = np.array([clip_text_vector(case, tensors, np.array(text)) for text in texts])
        of_length_1: NDArray[np.float64] = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
        return of_length_1
    rows_of = partial(modernbert_rows, case, tensors) if case.family else bert(case, tensors, directory)
    results = np.empty(case.B if case.pairs else (case.B, case.V or case.E))
    for i, text in enumerate(texts):
        rows = rows_of(np.array(text))
        if case.pairs:
            results[i] = score(rows[0], tensors)
            continue
        if case.sparse:
            results[i] = sparse_numbers(rows, tensors)
            continue
        mean = rows.mean(axis=0)
        results[i] = mean / np.linalg.norm(mean)
    return results


def bert(case: Case, tensors: dict[str, Array], directory: Path) -> Callable[[Array], NDArray[np.float64]]:
    """A function from the tokens [T] of a text to its rows [T, E]."""
    eps = json.loads((directory / "config.json").read_text(encoding="utf-8"))["layer_norm_eps"]
    state = BERT.all_to_torch(tensors, case.layers)
    tables = [tensors[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
    words, positions, types = (table.astype(np.float64) for table in tables)
    norm = [tensors[f"embeddings.LayerNorm.{end}"] for end in ("weight", "bias")]

    def rows_of(text: Array) -> NDArray[np.float64]:
        of_type = types[(case.pairs * np.arange(len(text)) >= QUERY_TOKENS - 1).astype(int)]
        x = reference.layer_norm(words[text] + positions[: len(text)] + of_type, *norm, eps=eps)
        rows: NDArray[np.float64] = reference.encoder(x[None], state, case.H, activation=case.activation, eps=eps)[0]
        return rows

    return rows_of


def score(first: NDArray[np.float64], tensors: dict[str, Array]) -> float:
    """The score of a pair from the vector of its first token [E]."""
    pooled = np.tanh(tensors["pooler.dense.weight"].astype(np.float64) @ first + tensors["pooler.dense.bias"])
    logit = tensors["classifier.weight"][0].astype(np.float64) @ pooled + tensors["classifier.bias"][0]
    return float(1 / (1 + np.exp(-logit)))


def sparse_numbers(rows: NDArray[np.float64], tensors: dict[str, Array]) -> NDArray[np.float64]:
    """The numbers [V] of a text from its rows [T, E]: ``log(1 + relu(largest logit))``."""
    head = {name: tensor.astype(np.float64) for name, tensor in tensors.items() if name.startswith("cls.predictions.")}
    dense, norm = "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"
    states = reference.linear(rows, head[f"{dense}.weight"], head[f"{dense}.bias"])
    states = reference.activate(states, "gelu")
    states = reference.layer_norm(states, head[f"{norm}.weight"], head[f"{norm}.bias"], eps=1e-12)
    words = tensors["embeddings.word_embeddings.weight"].astype(np.float64)
    numbers: NDArray[np.float64] = np.log1p(
        np.maximum((states @ words.T).max(axis=0) + head["cls.predictions.bias"], 0)
    )
    return numbers


def one_blas_thread() -> AbstractContextManager[Any]:
    """Limits NumPy's BLAS to one thread: its threads spin between small products for longer than these take."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext()
    limit: AbstractContextManager[Any] = threadpool_limits(1, user_api="blas")
    return limit


def tolerance(case: Case, expected: NDArray[np.float64]) -> float:
    """What the largest error of any contender must stay below: ``8 eps sqrt(n) max|expected| scores``.

    n is the number of terms of the longest sum of the case, over features, keys, or the rows of a linear map. Rounding
    errors of a sum grow like sqrt(n), so a correct computation in the dtype, in whatever order, stays well below the
    bound, and a wrong mask, layout or scale is far above it. In reduced precision sums are kept in f32 and only results
    of steps are rounded: there n is the number of layers. A weight is as uncertain as its score, and scores are so
    large as the case says, or as the weights of ModernBERT and of decoders make them. Results below the smallest normal
    number of f32 may be 0. The bound asks whether this is the same computation; the tests ask how accurate the library
    is.
    """
    of_cache = (WEIGHTS | DTYPES)[case.cache or case.dtype][1]  # int8 rounds rows of keys as rows of weights
    eps = max(DTYPES[case.dtype][1], WEIGHTS[case.weights][1], of_cache)
    n = (
        case.layers
        if eps > 2**-11
        else max(case.D, case.Tk * (case.B if case.kind == "linear_backward" else 1), case.E, case.F)
    )
    scores = SHARPNESS if case.is_modern else max(case.scores, 1)
    return float(8 * eps * np.sqrt(n) * scores * np.abs(expected).max() + np.finfo(np.float32).tiny)


def largest_error(result: Array, expected: NDArray[np.float64]) -> float:
    """The largest absolute difference; NaN if `result` contains one."""
    if result.shape != expected.shape:
        raise ValueError(f"a result of shape {result.shape}; expected {expected.shape}")
    return float(np.abs(result.astype(np.float64) - expected).max())
