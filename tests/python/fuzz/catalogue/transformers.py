"""Encoders and decoders, their layers, and generation."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np

import mha_native as mha

from .entry import (
    BATCH,
    CATALOGUE,
    FEATURES,
    HEADS,
    INNER,
    KEYS,
    KV_HEADS,
    MEMORY,
    MODEL,
    VOCABULARY,
    Arguments,
    Generator,
    Made,
    Maker,
    entry,
    normal,
    score_options,
    some,
)
from .layers import layer_arguments, with_steps


@functools.cache
def module(name: str, **arguments: Any) -> Any:
    sizes = MODEL if name.endswith("Layer") else {"num_layers": 2} | MODEL
    return getattr(mha, name)(**sizes, seed=0, **arguments)


def _maker_of(name: str) -> Maker:
    def make(rng: Generator) -> Made:
        more = {"activation": "gelu", "norm_first": True, "eps": 1e-3, "num_kv_heads": KV_HEADS, "head_dim": 3}
        more |= {"gated": True, "norm": "rms", "output_norms": True}
        arguments = MODEL | some(rng, more) | with_steps(rng, layer_arguments(rng))
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
    if name == "Linear":
        return mha.Linear(FEATURES, INNER, seed=0)
    if name == "RMSNorm":
        return mha.RMSNorm(FEATURES, unit_offset=True)
    if name == "FeedForward":
        return mha.FeedForward(FEATURES, INNER, seed=0)
    if name == "Experts":
        return mha.Experts(FEATURES, INNER, 3, 2, seed=0)
    if name == "MultiHeadAttention":
        return mha.MultiHeadAttention(FEATURES, HEADS, seed=0)
    return getattr(mha, name)(**(MODEL if name.endswith("Layer") else {"num_layers": 2} | MODEL), seed=0)


def _loader_of(name: str) -> Maker:
    def make(_: Generator) -> Made:
        model = _new_module(name)
        return model.load_state_dict, {"state": model.state_dict()}

    return make


def _recorder_of(name: str) -> Maker:
    def make(rng: Generator) -> Made:
        first = "query" if name == "MultiHeadAttention" else "x"
        arguments: Arguments = {first: normal(rng, BATCH, 3, FEATURES)}
        more: Arguments = {"recompute": "layer", "wrt": (first,), "num_threads": 2}
        if name in ("MultiHeadAttention", *STACKS):
            more |= score_options(rng, np.float32, 3)
        if name.startswith("Decoder"):
            arguments["memory"] = normal(rng, BATCH, MEMORY, FEATURES)
            more["memory_lengths"] = np.array([4, 2])
        return _new_module(name).forward_and_record, arguments | some(rng, more)

    return make


@entry("Tape.backward")
def _backward(rng: Generator) -> Made:
    x = normal(rng, BATCH, 3, FEATURES)

    def backward(**given: Any) -> Any:
        return _new_module("EncoderLayer").forward_and_record(x)[1].backward(**given)

    return backward, {"dout": normal(rng, BATCH, 3, FEATURES)}


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
    if name == "RMSNorm":
        return nn.RMSNorm(FEATURES)
    if name == "Linear":
        return nn.Linear(FEATURES, INNER)
    if name.startswith("Decoder"):
        of_layer = nn.TransformerDecoderLayer(**layer)
        return of_layer if name.endswith("Layer") else nn.TransformerDecoder(of_layer, 2)
    of_layer = nn.TransformerEncoderLayer(**layer)
    return of_layer if name.endswith("Layer") else nn.TransformerEncoder(of_layer, 2, enable_nested_tensor=False)


def _weights_taker_of(name: str) -> Maker:
    def make(rng: Generator) -> Made:
        state = _new_module(name).state_dict()
        more: Arguments = some(rng, {"dtype": "float64"} if name.endswith("Norm") else {"weight_dtype": "int8"})
        if name in ("Linear", "LayerNorm", "RMSNorm"):
            return getattr(mha, name).from_weights, state | more
        own = {"num_heads": HEADS} if name == "MultiHeadAttention" else some(rng, {"activation": "gelu"})
        return getattr(mha, name).from_weights, {"weights": state} | own | more

    return make


def _parts_taker_of(name: str) -> Maker:
    def make(rng: Generator) -> Made:
        layer = _new_module(name)
        parts = ["self_attn"] + ["cross_attn"] * name.startswith("Decoder") + ["feed_forward"]
        norms = some(rng, {"norm1": layer.norm1, "norm2": layer.norm2, "norm_first": True})
        return type(layer).from_parts, {part: getattr(layer, part) for part in parts} | norms

    return make


def _layers_taker_of(name: str) -> Maker:
    def make(rng: Generator) -> Made:
        stack = _new_module(name)
        more = some(rng, {"norm": mha.LayerNorm(FEATURES), "layer_options": [{"window": (1, 1)}, {}]})
        return type(stack).from_layers, {"layers": list(stack.layers)} | more

    return make


for _name in STACKS:
    is_layer = _name.endswith("Layer")
    CATALOGUE[f"{_name}.{'from_parts' if is_layer else 'from_layers'}"] = (
        _parts_taker_of(_name) if is_layer else _layers_taker_of(_name)
    )

MODULES = ("MultiHeadAttention", "LayerNorm", "RMSNorm", "Linear", "FeedForward", "Experts", *STACKS)
for _name in MODULES:
    if _name not in ("Experts", *STACKS):
        CATALOGUE[f"{_name}.from_weights"] = _weights_taker_of(_name)
    CATALOGUE[f"{_name}.load_state_dict"] = _loader_of(_name)
    if _name != "Experts":  # which have no gradients
        CATALOGUE[f"{_name}.forward_and_record"] = _recorder_of(_name)
    CATALOGUE[f"{_name}.astype"] = _converter_of(_name, "astype", "dtype", "float16")
    CATALOGUE[f"{_name}.quantize"] = _converter_of(_name, "quantize", "weight_dtype", "int8")
    if _name not in ("FeedForward", "Experts"):
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
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "logit_bias": {3: 1.5},
        "min_new_tokens": 2,
        "seed": 4,
        "num_threads": 1,
        "window": (3, 0),
        "scale": 0.5,
        "softcap": 3.0,
        "alibi_slopes": normal(rng, HEADS),
        "position_bias": normal(rng, HEADS, 5),
        "sinks": normal(rng, HEADS),
    }
    if isinstance(model, mha.Decoder):
        arguments["memory"] = normal(rng, BATCH, MEMORY, FEATURES)
        more["memory_lengths"] = np.array([4, 2])

    def first_steps(**given: Any) -> list[Any]:
        return list(itertools.islice(mha.generate(**given), 3))

    return first_steps, arguments | some(rng, more)
