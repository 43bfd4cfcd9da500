"""The decoder of a language model: its weights, and its logits in float64."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mha_native import BlockMatrix, reference
from mha_native_bench.cases.blocks import random_blocks
from mha_native_bench.cases.case import BLOCKED, Array, Case
from mha_native_bench.cases.weights import modern_layer_state

BASE, EPS = 100_000.0, 1e-5  # of the angles by which heads turn, and of the norms, as in SmolLM2

EMBEDDINGS = "embeddings.weight"  # [V, E]; also the weight of the head


def language_model_state(case: Case) -> dict[str, Array]:
    """The weights in float32, as `mha_native.CausalDecoder` names them, and the embeddings: the same in each run."""
    return _state(_model_of(case)) | {name: one.dequantize() for name, one in language_model_blocks(case).items()}


def language_model_blocks(case: Case) -> dict[str, BlockMatrix]:
    """The matrices of a case in a format of GGUF files; none in others."""
    return _blocks(_model_of(case), case.weights) if case.weights in BLOCKED else {}


def _model_of(case: Case) -> Case:
    return replace(case, name="", B=1, Tq=1, Tk=1, weights="", against="", quick=False, extra=False)


@lru_cache(maxsize=1)
def _blocks(case: Case, weights: str) -> dict[str, BlockMatrix]:
    rng = np.random.default_rng(0)
    return {name: random_blocks(weights, array, rng) for name, array in _state(case).items() if array.ndim == 2}


@lru_cache(maxsize=1)
def _state(case: Case) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    state = {EMBEDDINGS: rng.standard_normal((case.V, case.E), np.float32) * np.float32(0.1)}
    for i in range(case.layers):
        state |= {f"layers.{i}.{name}": array for name, array in modern_layer_state(case, rng).items()}
    state["norm.weight"] = 1 + rng.uniform(-0.1, 0.1, case.E).astype(np.float32)
    return state


def angles(positions: int, head_dim: int, base: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cosine and sine [positions, D / 2], in float64."""
    pairs = head_dim // 2
    turned = np.arange(positions)[:, None] * base ** (-np.arange(pairs) / pairs)
    return np.cos(turned), np.sin(turned)


def language_model_logits(case: Case, tokens: Array, state: dict[str, Array]) -> NDArray[np.float64]:
    """The logits [B, V] behind the last token of each sequence, by `mha_native.reference`."""
    rows = reference.encoder(
        state[EMBEDDINGS][tokens],
        {name: array for name, array in state.items() if name != EMBEDDINGS},
        case.H,
        num_kv_heads=case.Hk,
        activation=case.activation,
        norm_first=True,
        norm="rms",
        eps=EPS,
        is_causal=True,
        rotary=(*angles(case.Tk, case.D, BASE), False),
    )
    return reference.linear(rows[:, -1], state[EMBEDDINGS])
