"""Valid calls of all that is public, for `invalid_calls.py` to change one argument of.

An entry is named as messages name it; what stands behind a blank tells entries of one name apart. It makes new objects
and arguments for each call, since a call may change them.
"""

from __future__ import annotations

import functools
import io
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tiny_bert

import mha_native as mha
from mha_native import reference
from mha_native.models import SentenceEncoder

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
Arguments = dict[str, Any]
Made = tuple[Callable[..., Any], Arguments]  # a function, and all its arguments by name
Maker = Callable[[Generator], Made]

CATALOGUE: dict[str, Maker] = {}

# Sizes of all calls: B, H, Hk, Tq, Tk, D, Dv; then E, F, S, vocabulary.
BATCH, HEADS, KV_HEADS, QUERIES, KEYS, WIDTH, VALUE_WIDTH = 2, 4, 2, 3, 5, 6, 7
FEATURES, INNER, MEMORY, VOCABULARY = 8, 12, 4, 11
MODEL = {"embed_dim": FEATURES, "num_heads": HEADS, "feedforward_dim": INNER}


def entry(name: str) -> Callable[[Maker], Maker]:
    def enter(make: Maker) -> Maker:
        CATALOGUE[name] = make
        return make

    return enter


def normal(rng: Generator, *shape: int, dtype: Any = np.float32) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def some(rng: Generator, arguments: Arguments) -> Arguments:
    """Each of `arguments` with a chance of one half."""
    return {name: value for name, value in arguments.items() if rng.random() < 0.5}


def dtype_of_call(rng: Generator) -> Any:
    return rng.choice([np.float32, np.float32, np.float64, np.float16])


def scores_dtype(dtype: Any) -> Any:
    return np.float64 if dtype == np.float64 else np.float32


def score_options(rng: Generator, dtype: Any, keys: int = KEYS) -> Arguments:
    return some(
        rng,
        {
            "is_causal": True,
            "query_offset": np.array([1, 2]) if rng.random() < 0.5 else 2,
            "key_lengths": np.array([keys, keys - 1]),
            "window": (2, -1),
            "scale": 0.5,
            "softcap": 3.0,
            "alibi_slopes": normal(rng, HEADS, dtype=scores_dtype(dtype)),
            "sinks": normal(rng, HEADS, dtype=scores_dtype(dtype)),
        },
    )


def attention_inputs(rng: Generator, dtype: Any) -> Arguments:
    return {
        "query": normal(rng, BATCH, HEADS, QUERIES, WIDTH, dtype=dtype),
        "key": normal(rng, BATCH, KV_HEADS, KEYS, WIDTH, dtype=dtype),
        "value": normal(rng, BATCH, KV_HEADS, KEYS, VALUE_WIDTH, dtype=dtype),
    }


@entry("scaled_dot_product_attention")
def _attention(rng: Generator) -> Made:
    dtype = dtype_of_call(rng)
    more = {
        "attn_mask": normal(rng, HEADS, QUERIES, KEYS, dtype=dtype) if rng.random() < 0.5 else rng.random(KEYS) < 0.7,
        "return_lse": True,
        "out": np.zeros((BATCH, HEADS, QUERIES, VALUE_WIDTH), dtype),
        "num_threads": 2,
    }
    return mha.scaled_dot_product_attention, attention_inputs(rng, dtype) | score_options(rng, dtype) | some(rng, more)


@entry("scaled_dot_product_attention_varlen")
def _varlen(rng: Generator) -> Made:
    dtype = dtype_of_call(rng)
    arguments = {
        "query": normal(rng, 5, HEADS, WIDTH, dtype=dtype),
        "key": normal(rng, 7, KV_HEADS, WIDTH, dtype=dtype),
        "value": normal(rng, 7, KV_HEADS, VALUE_WIDTH, dtype=dtype),
        "cu_seqlens_q": np.array([0, 2, 5]),
        "cu_seqlens_k": np.array([0, 3, 7]),
    }
    more = {
        "attn_mask": normal(rng, HEADS, 5, 4, dtype=dtype),
        "key_mask": rng.random(7) < 0.7,
        "return_lse": True,
        "out": np.zeros((5, HEADS, VALUE_WIDTH), dtype),
        "num_threads": 2,
    }
    return mha.scaled_dot_product_attention_varlen, arguments | score_options(rng, dtype, 3) | some(rng, more)


@entry("attention_weights")
def _weights(rng: Generator) -> Made:
    dtype = dtype_of_call(rng)
    arguments = attention_inputs(rng, dtype) | score_options(rng, dtype)
    del arguments["value"]
    more = {
        "attn_mask": rng.random((QUERIES, KEYS)) < 0.7,
        "stage": "capped",
        "out": np.zeros((BATCH, HEADS, QUERIES, KEYS), dtype),
        "num_threads": 2,
    }
    return mha.attention_weights, arguments | some(rng, more)


@entry("attention_statistics")
def _statistics(rng: Generator) -> Made:
    dtype = dtype_of_call(rng)
    arguments = attention_inputs(rng, dtype) | score_options(rng, dtype)
    del arguments["value"]
    more = {"attn_mask": rng.random((QUERIES, KEYS)) < 0.7, "num_threads": 2}
    return mha.attention_statistics, arguments | some(rng, more)


@entry("merge_attention")
def _merge(rng: Generator) -> Made:
    dtype, lead = dtype_of_call(rng), [(2, 3), (3,), (1, 2, 1, 2, 3)][rng.integers(3)]
    outs, lses = normal(rng, 3, *lead, 5, dtype=dtype), normal(rng, 3, *lead, dtype=scores_dtype(dtype))
    arguments = {"outs": outs, "lses": lses} if rng.random() < 0.5 else {"outs": list(outs), "lses": list(lses)}
    return mha.merge_attention, arguments | some(rng, {"out": np.zeros((*lead, 5), dtype), "num_threads": 2})


@entry("sinusoidal_positions")
def _positions(rng: Generator) -> Made:
    more = {"first_position": 3, "dtype": "float64"}
    return mha.sinusoidal_positions, {"length": 3, "embed_dim": 4} | some(rng, more)


# Caches.


def cache_of(rng: Generator, dtype: Any = np.float32) -> mha.KVCache:
    cache = mha.KVCache(BATCH, KV_HEADS, KEYS + 4, WIDTH, VALUE_WIDTH, dtype)
    cache.append(*tokens(rng, 4, dtype).values(), np.array([4, 3]))
    return cache


def tokens(rng: Generator, count: int, dtype: Any = np.float32) -> Arguments:
    return {
        "key": normal(rng, BATCH, KV_HEADS, count, WIDTH, dtype=dtype),
        "value": normal(rng, BATCH, KV_HEADS, count, VALUE_WIDTH, dtype=dtype),
    }


@entry("KVCache")
def _cache(rng: Generator) -> Made:
    sizes = {"batch_size": BATCH, "num_kv_heads": KV_HEADS, "capacity": KEYS, "head_dim": WIDTH}
    return mha.KVCache, sizes | some(rng, {"value_head_dim": VALUE_WIDTH, "dtype": "float16"})


@entry("KVCache.append")
def _append(rng: Generator) -> Made:
    return cache_of(rng).append, tokens(rng, 3) | some(rng, {"new_lengths": np.array([1, 3])})


@entry("KVCache.rollback")
def _rollback(rng: Generator) -> Made:
    return cache_of(rng).rollback, {"count": 2 if rng.random() < 0.5 else np.array([1, 3])}


@entry("KVCache.reorder")
def _reorder(rng: Generator) -> Made:
    return cache_of(rng).reorder, {"index": np.array([1, 1])}


@entry("KVCache.keep_last")
def _keep_last(rng: Generator) -> Made:
    return cache_of(rng).keep_last, {"count": 2}


@entry("KVCache.load_state_dict")
def _load_cache(rng: Generator) -> Made:
    return cache_of(rng).load_state_dict, {"state": cache_of(rng).state_dict()}


# Layers.


def layer_arguments(rng: Generator) -> Arguments:
    more = {"bias": False, "dtype": "float32", "weight_dtype": "int8", "seed": 1}
    return some(rng, more) if rng.random() < 0.7 else {"dtype": "float64", "seed": 2}


@entry("MultiHeadAttention constructor")
def _make_layer(rng: Generator) -> Made:
    sizes = {"num_kv_heads": KV_HEADS, "head_dim": 3, "value_head_dim": 5, "kdim": 9, "vdim": 10, "out_dim": 11}
    more = {"add_bias_kv": True, "add_zero_attn": True}
    arguments = {"embed_dim": FEATURES, "num_heads": HEADS} | some(rng, sizes) | some(rng, more)
    return mha.MultiHeadAttention, arguments | layer_arguments(rng)


@functools.cache
def layer(dtype: str = "float32", **arguments: Any) -> mha.MultiHeadAttention:
    return mha.MultiHeadAttention(FEATURES, HEADS, dtype=dtype, seed=0, **arguments)


@entry("MultiHeadAttention")
def _attend(rng: Generator) -> Made:
    arguments = {"query": normal(rng, BATCH, QUERIES, FEATURES)}
    more = {
        "key": normal(rng, BATCH, KEYS, FEATURES),
        "value": normal(rng, BATCH, KEYS, FEATURES),
        "attn_mask": rng.random((BATCH, HEADS, QUERIES, KEYS)) < 0.7,
        "key_mask": rng.random((BATCH, KEYS)) < 0.7,
        "need_weights": True,
        "average_attn_weights": True,
        "out": np.zeros((BATCH, QUERIES, FEATURES), np.float32),
        "num_threads": 2,
    }
    given = some(rng, more)
    if "key" not in given:
        given = {name: x for name, x in given.items() if name not in ("value", "attn_mask", "key_mask")}
    return layer(), arguments | given | score_options(rng, np.float32, KEYS if "key" in given else QUERIES)


@entry("MultiHeadAttention with a cache")
def _attend_to_cache(rng: Generator) -> Made:
    cache = layer().new_cache(BATCH, 9)
    layer().append_to(cache, normal(rng, BATCH, 2, FEATURES))
    arguments = {"query": normal(rng, BATCH, QUERIES, FEATURES), "cache": cache}
    more = {"new_lengths": np.array([3, 2]), "is_causal": True, "need_weights": True, "num_threads": 1}
    given = {"append": False} if rng.random() < 0.3 else some(rng, more)
    return layer(), arguments | given


@entry("MultiHeadAttention of a ragged batch")
def _attend_ragged(rng: Generator) -> Made:
    arguments = {"query": normal(rng, 7, FEATURES), "cu_seqlens_q": np.array([0, 3, 7])}
    more = {"cu_seqlens_k": np.array([0, 3, 7]), "key_mask": rng.random(7) < 0.7, "is_causal": True}
    return layer(), arguments | some(rng, more | {"out": np.zeros((7, FEATURES), np.float32)})


@entry("MultiHeadAttention.new_cache")
def _new_cache(rng: Generator) -> Made:
    return layer().new_cache, {"batch_size": BATCH, "capacity": KEYS} | some(rng, {"dtype": "float16"})


@entry("MultiHeadAttention.append_to")
def _append_to(rng: Generator) -> Made:
    more = {"value": normal(rng, BATCH, 3, FEATURES), "new_lengths": np.array([3, 1]), "num_threads": 1}
    arguments = {"cache": layer().new_cache(BATCH, 4), "key": normal(rng, BATCH, 3, FEATURES)}
    return layer().append_to, arguments | some(rng, more)


@entry("LayerNorm constructor")
def _make_norm(rng: Generator) -> Made:
    return mha.LayerNorm, {"embed_dim": 5} | some(rng, {"eps": 1e-3, "bias": False, "dtype": "float64"})


@entry("FeedForward constructor")
def _make_feed_forward(rng: Generator) -> Made:
    arguments = {"embed_dim": FEATURES, "feedforward_dim": INNER} | some(rng, {"activation": "gelu"})
    return mha.FeedForward, arguments | layer_arguments(rng)


def _rows(rng: Generator) -> Arguments:
    x = normal(rng, BATCH, 3, FEATURES)
    return {"x": x} | some(rng, {"out": np.zeros_like(x), "num_threads": 2})


@entry("LayerNorm")
def _norm(rng: Generator) -> Made:
    return mha.LayerNorm(FEATURES), _rows(rng)


@entry("FeedForward")
def _feed_forward(rng: Generator) -> Made:
    return mha.FeedForward(FEATURES, INNER, seed=0), _rows(rng)


# Encoders and decoders, and their layers.


@functools.cache
def module(name: str, **arguments: Any) -> Any:
    sizes = MODEL if name.endswith("Layer") else {"num_layers": 2} | MODEL
    return getattr(mha, name)(**sizes, seed=0, **arguments)


def _maker_of(name: str) -> Maker:
    def make(rng: Generator) -> Made:
        more = {"activation": "gelu", "norm_first": True, "eps": 1e-3, "num_kv_heads": KV_HEADS, "head_dim": 3}
        arguments = MODEL | some(rng, more) | layer_arguments(rng)
        if name.startswith("Decoder"):
            arguments |= some(rng, {"memory_dim": 5})
        if not name.endswith("Layer"):
            own = {"final_norm": True, "layer_options": [{"window": (1, 1), "scale": 0.5}, {"softcap": 2.0}]}
            arguments |= {"num_layers": 2} | some(rng, own)
        return getattr(mha, name), arguments

    return make


def _caller_of(name: str) -> Maker:
    is_layer, reads_memory = name.endswith("Layer"), name.startswith("Decoder")

    def one_or_all(argument: str, caches: Any) -> Arguments:
        return {argument: caches} if is_layer else {f"{argument}s": caches}

    def make(rng: Generator) -> Made:
        model = module(name)
        arguments: Arguments = {"x": normal(rng, BATCH, 3, FEATURES)}
        more: Arguments = {"need_weights": True, "out": np.zeros((BATCH, 3, FEATURES), np.float32), "num_threads": 1}
        if rng.random() < 0.5:
            new = model.new_cache if is_layer else model.new_caches
            arguments |= one_or_all("cache", new(BATCH, 6))
            more |= {"new_lengths": np.array([3, 2])}
        else:
            more |= score_options(rng, np.float32, 3) | {"attn_mask": rng.random((3, 3)) < 0.7}
            more |= {"key_mask": rng.random((BATCH, 3)) < 0.7}
        if reads_memory:
            memory = normal(rng, BATCH, MEMORY, FEATURES)
            more |= {"memory_attn_mask": rng.random((3, MEMORY)) < 0.7}
            if rng.random() < 0.5:
                arguments |= {"memory": memory}
                more |= {"memory_lengths": np.array([4, 2]), "memory_key_mask": rng.random((BATCH, MEMORY)) < 0.7}
            else:
                arguments |= one_or_all("memory_cache", model.project_memory(memory))
        return model, arguments | some(rng, more)

    return make


def _ragged_caller_of(name: str) -> Maker:
    def make(rng: Generator) -> Made:
        more = {"key_mask": rng.random(7) < 0.7, "is_causal": True}
        return module(name), {"x": normal(rng, 7, FEATURES), "cu_seqlens": np.array([0, 3, 7])} | some(rng, more)

    return make


def _cache_maker_of(name: str) -> Maker:
    def make(rng: Generator) -> Made:
        new = getattr(module(name), "new_cache" if name.endswith("Layer") else "new_caches")
        return new, {"batch_size": BATCH, "capacity": KEYS} | some(rng, {"dtype": "float16"})

    return make


def _projector_of(name: str) -> Maker:
    def make(rng: Generator) -> Made:
        more = {"memory_lengths": np.array([4, 2]), "num_threads": 1}
        return module(name).project_memory, {"memory": normal(rng, BATCH, MEMORY, FEATURES)} | some(rng, more)

    return make


STACKS = ("EncoderLayer", "Encoder", "CausalDecoder", "DecoderLayer", "Decoder")
for _name in STACKS:
    CATALOGUE[f"{_name} constructor"] = _maker_of(_name)
    CATALOGUE[_name] = _caller_of(_name)
    CATALOGUE[f"{_name}.new_cache{'' if _name.endswith('Layer') else 's'}"] = _cache_maker_of(_name)
    if _name.startswith("Decoder"):
        CATALOGUE[f"{_name}.project_memory"] = _projector_of(_name)
    else:
        CATALOGUE[f"{_name} of a ragged batch"] = _ragged_caller_of(_name)


def _new_module(name: str) -> Any:
    if name == "LayerNorm":
        return mha.LayerNorm(FEATURES)
    if name == "FeedForward":
        return mha.FeedForward(FEATURES, INNER, seed=0)
    if name == "MultiHeadAttention":
        return mha.MultiHeadAttention(FEATURES, HEADS, seed=0)
    return getattr(mha, name)(**(MODEL if name.endswith("Layer") else {"num_layers": 2} | MODEL), seed=0)


def _loader_of(name: str) -> Maker:
    def make(_: Generator) -> Made:
        model = _new_module(name)
        return model.load_state_dict, {"state": model.state_dict()}

    return make


def _converter_of(name: str, method: str, argument: str, value: str) -> Maker:
    return lambda _: (getattr(_new_module(name), method), {argument: value})


def _importer_of(name: str) -> Maker:
    def make(_: Generator) -> Made:
        return getattr(mha, name).from_torch, {"module": torch_module(name)}

    return make


def torch_module(name: str) -> Any:
    """The module of torch that `name` is made of; without torch, what is refused."""
    try:
        from torch import nn
    except ImportError:
        return None
    layer = {"d_model": FEATURES, "nhead": HEADS, "dim_feedforward": INNER, "batch_first": True}
    if name == "MultiHeadAttention":
        return nn.MultiheadAttention(FEATURES, HEADS)
    if name == "LayerNorm":
        return nn.LayerNorm(FEATURES)
    if name.startswith("Decoder"):
        of_layer = nn.TransformerDecoderLayer(**layer)
        return of_layer if name.endswith("Layer") else nn.TransformerDecoder(of_layer, 2)
    of_layer = nn.TransformerEncoderLayer(**layer)
    return of_layer if name.endswith("Layer") else nn.TransformerEncoder(of_layer, 2, enable_nested_tensor=False)


MODULES = ("MultiHeadAttention", "LayerNorm", "FeedForward", *STACKS)
for _name in MODULES:
    CATALOGUE[f"{_name}.load_state_dict"] = _loader_of(_name)
    CATALOGUE[f"{_name}.astype"] = _converter_of(_name, "astype", "dtype", "float16")
    CATALOGUE[f"{_name}.quantize"] = _converter_of(_name, "quantize", "weight_dtype", "int8")
    if _name != "FeedForward":
        CATALOGUE[f"{_name}.from_torch"] = _importer_of(_name)


@entry("generate")
def _generate(rng: Generator) -> Made:
    model = module("CausalDecoder" if rng.random() < 0.5 else "Decoder")
    arguments = {
        "model": model,
        "prompts": rng.integers(VOCABULARY, size=(BATCH, 3)),
        "embeddings": normal(rng, VOCABULARY, FEATURES),
        "max_new_tokens": 2,
    }
    more = {
        "prompt_lengths": np.array([3, 1]),
        "output_weight": normal(rng, VOCABULARY, FEATURES),
        "positions": normal(rng, 9, FEATURES),
        "stop_token": 3,
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.9,
        "seed": 4,
        "num_threads": 1,
        "window": (3, 0),
        "scale": 0.5,
        "softcap": 3.0,
        "alibi_slopes": normal(rng, HEADS),
        "sinks": normal(rng, HEADS),
    }
    if isinstance(model, mha.Decoder):
        arguments["memory"] = normal(rng, BATCH, MEMORY, FEATURES)
        more["memory_lengths"] = np.array([4, 2])

    def first_steps(**given: Any) -> list[Any]:
        return list(itertools.islice(mha.generate(**given), 3))

    return first_steps, arguments | some(rng, more)


# Adapters, models, the runtime.


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
    return mha.compat.onnx_attention, arguments | some(rng, more)


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
    return SentenceEncoder.from_pretrained, {"directory": _sentence_folder()[1]} | some(rng, more)


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


@entry("SentenceEncoder.encode_tokens")
def _encode_tokens(rng: Generator) -> Made:
    return sentence_encoder().encode_tokens, {"sequences": [[2, 5, 3], np.array([1])]} | _embedding_options(rng)


@entry("SentenceEncoder.attention_weights")
def _sentence_weights(rng: Generator) -> Made:
    return sentence_encoder().attention_weights, {"text": "the dog"} | some(rng, {"num_threads": 1})


@entry("SentenceEncoder.astype")
def _sentence_astype(_: Generator) -> Made:
    return sentence_encoder().astype, {"dtype": "float64"}


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


# The reference.


@entry("reference.scaled_dot_product_attention")
def _reference_attention(rng: Generator) -> Made:
    arguments = attention_inputs(rng, np.float64) | score_options(rng, np.float64)
    more = {"attn_mask": rng.random((QUERIES, KEYS)) < 0.7, "return_lse": True}
    return reference.scaled_dot_product_attention, arguments | some(rng, more)


@entry("reference.scaled_dot_product_attention_varlen")
def _reference_varlen(rng: Generator) -> Made:
    arguments = _varlen(rng)[1]
    return reference.scaled_dot_product_attention_varlen, _without(arguments, "out", "num_threads")


@entry("reference.attention_weights")
def _reference_weights(rng: Generator) -> Made:
    return reference.attention_weights, _without(_weights(rng)[1], "out", "num_threads")


@entry("reference.attention_statistics")
def _reference_statistics(rng: Generator) -> Made:
    return reference.attention_statistics, _without(_statistics(rng)[1], "num_threads")


@entry("reference.visible_keys")
def _reference_visible(rng: Generator) -> Made:
    options = _without(score_options(rng, np.float64), "scale", "softcap", "alibi_slopes", "sinks")
    return reference.visible_keys, {"shape": (BATCH, HEADS, QUERIES, KEYS)} | options


@entry("reference.multi_head_attention")
def _reference_layer(rng: Generator) -> Made:
    inputs = {name: normal(rng, BATCH, 3, FEATURES) for name in ("query", "key", "value")}
    more = {"need_weights": True, "add_zero_attn": True, "attn_mask": rng.random((3, 3)) < 0.7}
    arguments = inputs | {"state": layer().state_dict(), "num_heads": HEADS} | some(rng, more)
    return reference.multi_head_attention, arguments | score_options(rng, np.float64, 3)


@entry("reference.layer_norm")
def _reference_norm(rng: Generator) -> Made:
    more = {"weight": normal(rng, FEATURES), "bias": normal(rng, FEATURES), "eps": 1e-3}
    return reference.layer_norm, {"x": normal(rng, 3, FEATURES)} | some(rng, more)


@entry("reference.activate")
def _reference_activate(rng: Generator) -> Made:
    return reference.activate, {"x": normal(rng, 3, FEATURES), "name": "gelu"}


@entry("reference.feed_forward")
def _reference_feed_forward(rng: Generator) -> Made:
    state = mha.FeedForward(FEATURES, INNER, seed=0).state_dict()
    return reference.feed_forward, {"x": normal(rng, 3, FEATURES), "state": state} | some(rng, {"activation": "gelu"})


def _reference_caller_of(name: str, model: str) -> Maker:
    def make(rng: Generator) -> Made:
        arguments = {"x": normal(rng, BATCH, 3, FEATURES), "state": module(model).state_dict(), "num_heads": HEADS}
        if name.startswith("decoder"):
            arguments["memory"] = normal(rng, BATCH, MEMORY, FEATURES)
        more = {"activation": "gelu", "norm_first": True, "eps": 1e-3, "is_causal": True}
        return getattr(reference, name), arguments | some(rng, more)

    return make


def _without(arguments: Arguments, *names: str) -> Arguments:
    return {name: value for name, value in arguments.items() if name not in names}


for _name in ("encoder_layer", "encoder", "decoder_layer", "decoder"):
    CATALOGUE[f"reference.{_name}"] = _reference_caller_of(_name, _name.title().replace("_", ""))
