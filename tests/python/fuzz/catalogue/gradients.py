"""Gradients of the parts around attention, and what they are trained with."""

from __future__ import annotations

from typing import Any

import numpy as np

import mha_native as mha
from mha_native import reference

from .entry import (
    BATCH,
    CATALOGUE,
    FEATURES,
    VOCABULARY,
    Arguments,
    Generator,
    Made,
    Maker,
    dtype_of_call,
    entry,
    normal,
    some,
)


def _norm(name: str) -> Maker:
    def make(rng: Generator) -> Made:
        dtype = dtype_of_call(rng)
        x, dout = (normal(rng, BATCH, 3, FEATURES, dtype=dtype) for _ in range(2))
        more: Arguments = {"eps": 1e-3, "wrt": ("x",), "num_threads": 2}
        if name.startswith("rms"):
            more["unit_offset"] = True
        arguments = {"x": x, "weight": normal(rng, FEATURES, dtype=dtype), "dout": dout}
        return getattr(mha, name), arguments | some(rng, more)

    return make


@entry("activation")
def _activation(rng: Generator) -> Made:
    dtype = dtype_of_call(rng)
    x, up = (normal(rng, BATCH, 3, FEATURES, dtype=dtype) for _ in range(2))
    return mha.activation, {"x": x, "activation": "gelu"} | some(rng, {"up": up, "num_threads": 2})


@entry("activation_gradient")
def _activation_gradient(rng: Generator) -> Made:
    arguments = _activation(rng)[1]
    return mha.activation_gradient, arguments | {"dout": normal(rng, *arguments["x"].shape, dtype=arguments["x"].dtype)}


@entry("embedding_gradient")
def _embedding_gradient(rng: Generator) -> Made:
    dout = normal(rng, BATCH, 3, FEATURES, dtype=dtype_of_call(rng))
    arguments = {"ids": rng.integers(VOCABULARY, size=(BATCH, 3)), "dout": dout, "num_embeddings": VOCABULARY}
    return mha.embedding_gradient, arguments | some(rng, {"num_threads": 2})


@entry("cross_entropy")
def _cross_entropy(rng: Generator) -> Made:
    dtype = dtype_of_call(rng)
    arguments = {
        "x": normal(rng, BATCH, 3, FEATURES, dtype=dtype),
        "weight": normal(rng, VOCABULARY, FEATURES, dtype=dtype),
        "targets": rng.integers(VOCABULARY, size=(BATCH, 3)),
    }
    more = {
        "bias": normal(rng, VOCABULARY, dtype=dtype),
        "ignore_index": 3,
        "label_smoothing": 0.1,
        "reduction": "sum",
        "wrt": ("x", "weight"),
        "num_threads": 2,
    }
    return mha.cross_entropy, arguments | some(rng, more)


@entry("maxsim")
def _maxsim(rng: Generator) -> Made:
    dtype = dtype_of_call(rng)
    arguments = {
        "queries": normal(rng, 5, FEATURES, dtype=dtype),
        "documents": normal(rng, 7, FEATURES, dtype=dtype),
        "cu_seqlens_q": np.array([0, 2, 5]),
        "cu_seqlens_k": np.array([0, 3, 3, 7]),
    }
    return mha.maxsim, arguments | some(rng, {"pairs": np.array([[1, 2], [0, 0]]), "num_threads": 2})


@entry("quantize_tokens")
def _quantize_tokens(rng: Generator) -> Made:
    return mha.quantize_tokens, {"x": normal(rng, 5, FEATURES)} | some(rng, {"num_threads": 2})


@entry("reference.maxsim")
def _reference_maxsim(rng: Generator) -> Made:
    arguments = _maxsim(rng)[1]
    return reference.maxsim, {name: x for name, x in arguments.items() if name not in ("pairs", "num_threads")}


def _rotation(name: str) -> Maker:
    def make(rng: Generator) -> Made:
        rotary = mha.RotaryEmbedding.from_base(4, 9, interleaved=rng.random() < 0.5)
        x = normal(rng, BATCH, 2, 3, FEATURES, dtype=rng.choice([np.float32, np.float16]))
        positions = rng.integers(9, size=(BATCH, 3) if rng.random() < 0.5 else 3)
        more = {"positions": positions, "num_threads": 2}
        return getattr(rotary, name), {"x" if name == "__call__" else "dout": x} | some(rng, more)

    return make


CATALOGUE["RotaryEmbedding"] = _rotation("__call__")
CATALOGUE["RotaryEmbedding.gradient"] = _rotation("gradient")


def _weights(rng: Generator) -> Arguments:
    return {"w": normal(rng, 3, FEATURES), "b": normal(rng, FEATURES, dtype=np.float64)}


@entry("AdamW constructor")
def _make_optimizer(rng: Generator) -> Made:
    more = {"betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1, "max_grad_norm": 1.0}
    return mha.optim.AdamW, {"weights": _weights(rng), "lr": 0.1} | some(rng, more)


@entry("AdamW.step")
def _step(rng: Generator) -> Made:
    optimizer = mha.optim.AdamW(_weights(rng), lr=0.1, max_grad_norm=1.0 if rng.random() < 0.5 else None)
    return optimizer.step, {"gradients": _weights(rng)} | some(rng, {"num_threads": 2})


@entry("AdamW.load_state_dict")
def _load_optimizer(rng: Generator) -> Made:
    optimizer = mha.optim.AdamW(_weights(rng), lr=0.1)
    return optimizer.load_state_dict, {"state": optimizer.state_dict()}


@entry("warmup_cosine")
def _schedule(rng: Generator) -> Made:
    arguments = {"warmup_steps": 2, "total_steps": 9}
    return mha.optim.warmup_cosine, arguments | some(rng, {"min_factor": 0.5})


def _reference_of(name: str, left_out: tuple[str, ...] = ("wrt", "num_threads")) -> Maker:
    def make(rng: Generator) -> Made:
        function: Any = getattr(reference, name)
        return function, {key: x for key, x in CATALOGUE[name](rng)[1].items() if key not in left_out}

    return make


for _name in ("layer_norm_gradient", "rms_norm_gradient"):
    CATALOGUE[_name] = _norm(_name)
for _name in ("layer_norm_gradient", "rms_norm_gradient", "activation_gradient", "embedding_gradient", "cross_entropy"):
    CATALOGUE[f"reference.{_name}"] = _reference_of(_name)
