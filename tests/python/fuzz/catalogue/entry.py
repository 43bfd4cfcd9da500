"""What an entry of the catalogue is, the sizes that all have, and the arguments that many have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

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
            "block_mask": np.array([[rng.random() < 0.8]]),  # fewer than 64 rows and keys are one block
            "window": (2, -1),
            "scale": 0.5,
            "softcap": 3.0,
            "alibi_slopes": normal(rng, HEADS, dtype=scores_dtype(dtype)),
            "position_bias": normal(rng, HEADS, 5, dtype=scores_dtype(dtype)),
            "sinks": normal(rng, HEADS, dtype=scores_dtype(dtype)),
        },
    )


def attention_inputs(rng: Generator, dtype: Any) -> Arguments:
    return {
        "query": normal(rng, BATCH, HEADS, QUERIES, WIDTH, dtype=dtype),
        "key": normal(rng, BATCH, KV_HEADS, KEYS, WIDTH, dtype=dtype),
        "value": normal(rng, BATCH, KV_HEADS, KEYS, VALUE_WIDTH, dtype=dtype),
    }
