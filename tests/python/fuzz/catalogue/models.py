"""Adapters, models and the runtime."""

from __future__ import annotations

import functools
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tiny_bert
import tiny_multi_vector
import tiny_sparse

import mha_native as mha
import mha_native.interop.onnx
from mha_native.models import BGEM3Encoder, MultiVectorEncoder, SentenceEncoder, SparseEncoder, TokenEmbeddings

from .entry import (
    BATCH,
    CATALOGUE,
    HEADS,
    KEYS,
    KV_HEADS,
    QUERIES,
    VALUE_WIDTH,
    WIDTH,
    Arguments,
    Generator,
    Made,
    Maker,
    attention_inputs,
    dtype_of_call,
    entry,
    normal,
    some,
)


@entry("onnx_attention")
def _onnx(rng: Generator) -> Made:
    dtype = dtype_of_call(rng)
    names = dict(zip(("query", "key", "value"), "QKV", strict=True))
    arguments = {names[name]: x for name, x in attention_inputs(rng, dtype).items()}
    more = {
        "attn_mask": rng.random((QUERIES, KEYS)) < 0.7,
        "is_causal": 1,
        "scale": 0.5,
        "softcap": 3.0,
        "qk_matmul_output_mode": 2,
        "softmax_precision": 1,
        "left_window_size": 2,
        "right_window_size": 3,
    }
    if rng.random() < 0.5:
        arguments["nonpad_kv_seqlen"] = np.array([KEYS, KEYS - 1])
    elif rng.random() < 0.5:
        past = zip(("past_key", "past_value"), (WIDTH, VALUE_WIDTH), strict=True)
        arguments |= {name: normal(rng, BATCH, KV_HEADS, 2, width, dtype=dtype) for name, width in past}
        del more["attn_mask"]
    else:
        arguments |= {name: x.swapaxes(1, 2).reshape(*x.shape[::2], -1) for name, x in arguments.items()}
        arguments |= {"q_num_heads": HEADS, "kv_num_heads": KV_HEADS}
    return mha.interop.onnx.onnx_attention, arguments | some(rng, more)


@functools.cache
def _sentence_folder() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    folder = tempfile.TemporaryDirectory()
    return folder, tiny_bert.write(Path(folder.name))


@functools.cache
def sentence_encoder() -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(_sentence_folder()[1])


@entry("SentenceEncoder.from_pretrained")
def _from_pretrained(rng: Generator) -> Made:
    more = {"dtype": "float32", "weight_dtype": "int8"}
    return SentenceEncoder.from_pretrained, {"model": _sentence_folder()[1]} | some(rng, more)


def _embedding_options(rng: Generator) -> Arguments:
    return some(rng, {"normalize": True, "truncate_dim": 5, "num_threads": 1})


def _prompt(rng: Generator) -> Arguments:
    return some(rng, {"prompt": "the "} if rng.random() < 0.5 else {"prompt_name": "query"})


@entry("SentenceEncoder.encode")
def _encode(rng: Generator) -> Made:
    texts: Any = ["the dog", "", "a b c"] if rng.random() < 0.5 else "the dog"
    return sentence_encoder().encode, {"texts": texts} | _embedding_options(rng) | _prompt(rng)


@entry("SentenceEncoder.encode_batches")
def _encode_batches(rng: Generator) -> Made:
    def all_batches(**given: Any) -> list[Any]:
        return list(sentence_encoder().encode_batches(**given))

    return all_batches, {"texts": ["the dog", "", "a b c"]} | _embedding_options(rng) | _prompt(rng)


@entry("SentenceEncoder.encode_to_rows")
def _encode_to_rows(rng: Generator) -> Made:
    def all_rows(**given: Any) -> list[Any]:
        return [array for pair in sentence_encoder().encode_to_rows(**given) for array in pair]

    return all_rows, {"texts": ["the dog", "", "a b c"]} | some(rng, {"num_threads": 1}) | _prompt(rng)


@entry("SentenceEncoder.encode_tokens")
def _encode_tokens(rng: Generator) -> Made:
    return sentence_encoder().encode_tokens, {"sequences": [[2, 5, 3], np.array([1])]} | _embedding_options(rng)


def _texts(rng: Generator) -> Arguments:
    texts: Any = ["the dog", "", "a b c"] if rng.random() < 0.5 else "the dog"
    return {"texts": texts} | some(rng, {"add_special_tokens": False}) | _prompt(rng)


@entry("SentenceEncoder.tokens_of")
def _tokens_of(rng: Generator) -> Made:
    return sentence_encoder().tokens_of, _texts(rng)


@entry("SentenceEncoder.count_tokens")
def _count_tokens(rng: Generator) -> Made:
    return sentence_encoder().count_tokens, _texts(rng)


@entry("SentenceEncoder.attention_weights")
def _sentence_weights(rng: Generator) -> Made:
    return sentence_encoder().attention_weights, {"text": "the dog"} | some(rng, {"num_threads": 1})


@entry("SentenceEncoder.astype")
def _sentence_astype(_: Generator) -> Made:
    return sentence_encoder().astype, {"dtype": "float64"}


@entry("SentenceEncoder.quantize")
def _sentence_quantize(_: Generator) -> Made:
    return sentence_encoder().quantize, {"weight_dtype": "int8"}


@functools.cache
def _sparse_folder() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    folder = tempfile.TemporaryDirectory()
    return folder, tiny_sparse.write_files(Path(folder.name))


@functools.cache
def _sparse_encoder() -> SparseEncoder:
    return SparseEncoder.from_pretrained(_sparse_folder()[1])


@entry("SparseEncoder.from_pretrained")
def _sparse_from_pretrained(rng: Generator) -> Made:
    more = {"dtype": "float32", "weight_dtype": "int8"}
    return SparseEncoder.from_pretrained, {"model": _sparse_folder()[1]} | some(rng, more)


def _sparse_options(rng: Generator) -> Arguments:
    return some(rng, {"max_active_dims": 3, "num_threads": 1, "task": "query"}) | _prompt(rng)


@entry("SparseEncoder.encode")
def _sparse_encode(rng: Generator) -> Made:
    def arrays(**given: Any) -> Any:
        return list(_sparse_encoder().encode(**given)[:3])

    return arrays, {"texts": ["the dog", "", "a b c"]} | _sparse_options(rng)


@entry("SparseEncoder.encode_batches")
def _sparse_batches(rng: Generator) -> Made:
    def arrays(**given: Any) -> Any:
        return [array for found in _sparse_encoder().encode_batches(**given) for array in found[:3]]

    return arrays, {"texts": ["the dog", "", "a b c"]} | _sparse_options(rng)


@entry("SparseEncoder.encode_query")
def _sparse_query(rng: Generator) -> Made:
    def arrays(**given: Any) -> Any:
        return list(_sparse_encoder().encode_query(**given)[:3])

    return arrays, {"texts": ["the dog", "", "a b c"]} | some(rng, {"max_active_dims": 3, "num_threads": 1})


@entry("SparseEncoder.encode_document")
def _sparse_document(rng: Generator) -> Made:
    def arrays(**given: Any) -> Any:
        return list(_sparse_encoder().encode_document(**given)[:3])

    return arrays, {"texts": ["the dog", "", "a b c"]} | some(rng, {"max_active_dims": 3, "num_threads": 1})


@entry("SparseEncoder.looks_up")
def _sparse_looks_up(_: Generator) -> Made:
    return _sparse_encoder().looks_up, {"task": "query"}


@entry("SparseEncoder.token")
def _sparse_token(rng: Generator) -> Made:
    return _sparse_encoder().token, {"index": int(rng.integers(30))}


@functools.cache
def _bge_folder() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    folder = tempfile.TemporaryDirectory()
    return folder, tiny_sparse.write_bge(Path(folder.name))


@functools.cache
def _bge_m3() -> BGEM3Encoder:
    return BGEM3Encoder.from_pretrained(_bge_folder()[1])


@entry("BGEM3Encoder.from_pretrained")
def _bge_from_pretrained(rng: Generator) -> Made:
    more = {"dtype": "float32", "weight_dtype": "int8"}
    return BGEM3Encoder.from_pretrained, {"model": _bge_folder()[1]} | some(rng, more)


@entry("BGEM3Encoder.encode")
def _bge_encode(rng: Generator) -> Made:
    more = {"return_dense": False, "return_sparse": True, "return_colbert_vecs": True, "num_threads": 1}
    return _bge_m3().encode, {"texts": ["the dog", "", "a b c"]} | some(rng, more)


@entry("BGEM3Encoder.encode_sparse")
def _bge_encode_sparse(rng: Generator) -> Made:
    def arrays(**given: Any) -> Any:
        return list(_bge_m3().encode_sparse(**given)[:3])

    return arrays, {"texts": ["the dog", "", "a b c"]} | some(rng, {"num_threads": 1})


@entry("BGEM3Encoder.compute_score")
def _bge_score(rng: Generator) -> Made:
    more = {"weights_for_different_modes": [0.4, 0.2, 0.4], "num_threads": 1}
    return _bge_m3().compute_score, {"sentence_pairs": [("the dog", "a"), ("", "b")]} | some(rng, more)


@entry("BGEM3Encoder.compute_lexical_matching_score")
def _bge_lexical(rng: Generator) -> Made:
    weights = {"lexical_weights_1": {"5": 0.5, "7": 1.0}, "lexical_weights_2": {"7": 0.25}}
    return BGEM3Encoder.compute_lexical_matching_score, weights


@entry("BGEM3Encoder.colbert_score")
def _bge_colbert(rng: Generator) -> Made:
    return BGEM3Encoder.colbert_score, {"query": normal(rng, 2, 24), "document": normal(rng, 3, 24)}


@entry("BGEM3Encoder.tokens_of")
def _bge_tokens_of(rng: Generator) -> Made:
    return _bge_m3().tokens_of, _texts(rng)


@entry("BGEM3Encoder.count_tokens")
def _bge_count_tokens(rng: Generator) -> Made:
    return _bge_m3().count_tokens, _texts(rng)


@entry("BGEM3Encoder.attention_weights")
def _bge_weights(rng: Generator) -> Made:
    return _bge_m3().attention_weights, {"text": "the dog"} | some(rng, {"num_threads": 1})


@entry("BGEM3Encoder.astype")
def _bge_astype(_: Generator) -> Made:
    return _bge_m3().astype, {"dtype": "float64"}


@entry("BGEM3Encoder.quantize")
def _bge_quantize(_: Generator) -> Made:
    return _bge_m3().quantize, {"weight_dtype": "int8"}


@entry("SparseEncoder.decode")
def _sparse_decode(rng: Generator) -> Made:
    embeddings = _sparse_encoder().encode(["the dog", ""])
    return functools.partial(_sparse_encoder().decode, embeddings), {"top_k": 2}


@entry("SparseEncoder.tokens_of")
def _sparse_tokens_of(rng: Generator) -> Made:
    return _sparse_encoder().tokens_of, _texts(rng)


@entry("SparseEncoder.count_tokens")
def _sparse_count_tokens(rng: Generator) -> Made:
    return _sparse_encoder().count_tokens, _texts(rng)


@entry("SparseEncoder.attention_weights")
def _sparse_weights(rng: Generator) -> Made:
    return _sparse_encoder().attention_weights, {"text": "the dog"} | some(rng, {"num_threads": 1})


@entry("SparseEncoder.astype")
def _sparse_astype(_: Generator) -> Made:
    return _sparse_encoder().astype, {"dtype": "float64"}


@entry("SparseEncoder.quantize")
def _sparse_quantize(_: Generator) -> Made:
    return _sparse_encoder().quantize, {"weight_dtype": "int8"}


@functools.cache
def _late_folder() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    folder = tempfile.TemporaryDirectory()
    return folder, tiny_multi_vector.write_pylate(Path(folder.name))


@functools.cache
def _late_encoder() -> MultiVectorEncoder:
    return MultiVectorEncoder.from_pretrained(_late_folder()[1])


@functools.cache
def _late_documents() -> TokenEmbeddings:
    return _late_encoder().encode_document(["the dog", "", "a b c"])


@entry("MultiVectorEncoder.from_pretrained")
def _late_from_pretrained(rng: Generator) -> Made:
    more = {"dtype": "float32", "weight_dtype": "int8"}
    return MultiVectorEncoder.from_pretrained, {"model": _late_folder()[1]} | some(rng, more)


def _late_encode(name: str) -> Maker:
    def make(rng: Generator) -> Made:
        def arrays(**given: Any) -> Any:
            return list(getattr(_late_encoder(), name)(**given)[:2])

        return arrays, {"texts": ["the dog", "", "a b c"]} | some(rng, {"num_threads": 1}) | _prompt(rng)

    return make


for _name in ("encode_query", "encode_document"):
    CATALOGUE[f"MultiVectorEncoder.{_name}"] = _late_encode(_name)


@entry("MultiVectorEncoder.scores")
def _late_scores(rng: Generator) -> Made:
    return functools.partial(_late_encoder().scores, _late_documents(), _late_documents()), {"num_threads": 1}


@entry("MultiVectorEncoder.rank")
def _late_rank(rng: Generator) -> Made:
    def numbers(**given: Any) -> Any:
        return np.array([entry["score"] for entry in _late_encoder().rank(documents=_late_documents(), **given)])

    return numbers, {"query": "the dog"} | some(rng, {"top_k": 2, "num_threads": 1})


@entry("MultiVectorEncoder.tokens_of")
def _late_tokens_of(rng: Generator) -> Made:
    return _late_encoder().tokens_of, _texts(rng)


@entry("MultiVectorEncoder.count_tokens")
def _late_count_tokens(rng: Generator) -> Made:
    return _late_encoder().count_tokens, _texts(rng)


@entry("MultiVectorEncoder.attention_weights")
def _late_weights(rng: Generator) -> Made:
    return _late_encoder().attention_weights, {"text": "the dog"} | some(rng, {"num_threads": 1})


@entry("MultiVectorEncoder.astype")
def _late_astype(_: Generator) -> Made:
    return _late_encoder().astype, {"dtype": "float64"}


@entry("MultiVectorEncoder.quantize")
def _late_quantize(_: Generator) -> Made:
    return _late_encoder().quantize, {"weight_dtype": "int8"}


@entry("use_isa")
def _use_isa(_: Generator) -> Made:
    def in_block(**given: Any) -> None:
        with mha.use_isa(**given):
            pass

    return in_block, {"name": mha.available_isas()[0]}


@entry("use_threads")
def _use_threads(_: Generator) -> Made:
    def in_block(**given: Any) -> None:
        with mha.use_threads(**given):
            pass

    return in_block, {"n": 2}


@entry("set_num_threads")
def _set_num_threads(_: Generator) -> Made:
    def and_back(**given: Any) -> None:
        try:
            mha.set_num_threads(**given)
        finally:
            mha.set_num_threads(None)

    return and_back, {"n": 2}


@entry("show_config")
def _show_config(_: Generator) -> Made:
    return mha.show_config, {"file": io.StringIO()}
