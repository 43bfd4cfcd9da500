"""ModernBERT with random weights: its tensors and config.json as transformers saves them, and its rows in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_native import reference
from mha_native_bench.cases.case import FULL_EVERY, Array, Case
from mha_native_bench.cases.language_model import angles
from mha_native_bench.cases.weights import modern_layer_state

POSITIONS = 8192
EPS = 1e-5  # of the norms
FULL_BASE, WINDOW_BASE = 160_000.0, 10_000.0  # of the angles by which heads turn, without and with a window

# Parts of a layer: ModernBERT's names, and this library's. The first layer lacks the first norm.
NAMES = {
    "attn.Wqkv": "self_attn.in_proj_weight",
    "attn.Wo": "self_attn.out_proj.weight",
    "attn_norm": "norm1.weight",
    "mlp_norm": "norm2.weight",
    "mlp.Wo": "linear2.weight",
}
GATED = "mlp.Wi"  # the gate, and below it the other half


def modernbert_tensors(case: Case, vocabulary: int) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    tensors = {
        "embeddings.tok_embeddings.weight": rng.standard_normal((vocabulary, case.E), np.float32) * np.float32(0.1)
    }
    for name in ("embeddings.norm", "final_norm"):
        tensors[f"{name}.weight"] = 1 + rng.uniform(-0.1, 0.1, case.E).astype(np.float32)
    for i in range(case.layers):
        state = modern_layer_state(case, rng)
        tensors |= {f"layers.{i}.{name}.weight": state[ours] for name, ours in NAMES.items()}
        tensors[f"layers.{i}.{GATED}.weight"] = np.concatenate([state["gate.weight"], state["linear1.weight"]])
    del tensors["layers.0.attn_norm.weight"]
    return tensors


def modernbert_config(case: Case) -> dict[str, Any]:
    left, right = case.window or (0, 0)
    if left != right:
        raise ValueError(f"case {case.name}: the window of ModernBERT reaches as far to both sides; got {case.window}")
    return {
        "model_type": "modernbert",
        "architectures": ["ModernBertModel"],
        "intermediate_size": case.F,
        "hidden_activation": case.activation,
        "max_position_embeddings": POSITIONS,
        "local_attention": 2 * left,
        "global_attn_every_n_layers": FULL_EVERY,
        "norm_eps": EPS,
        "global_rope_theta": FULL_BASE,
        "local_rope_theta": WINDOW_BASE,
    }


def modernbert_layer(tensors: dict[str, Array], i: int) -> dict[str, Array]:
    """Layer `i` in the names of `mha_native.EncoderLayer`; the first one has no first norm."""
    state = {ours: tensors.get(f"layers.{i}.{name}.weight") for name, ours in NAMES.items()}
    gate, other = np.split(tensors[f"layers.{i}.{GATED}.weight"], 2)
    state |= {"gate.weight": gate, "linear1.weight": other}
    return {name: array for name, array in state.items() if array is not None}


def modernbert_rows(case: Case, tensors: dict[str, Array], tokens: Array) -> NDArray[np.float64]:
    """The rows [T, E] of a text of T tokens, by `mha_native.reference`."""
    words = tensors["embeddings.tok_embeddings.weight"][tokens]
    x: Any = reference.layer_norm(words, tensors["embeddings.norm.weight"], eps=EPS)[None]
    for i in range(case.layers):
        is_full = i % FULL_EVERY == 0
        turns = angles(len(tokens), case.D, FULL_BASE if is_full else WINDOW_BASE)
        options: Any = {} if is_full else {"window": case.window}
        x = reference.encoder_layer(
            x,
            modernbert_layer(tensors, i),
            case.H,
            activation=case.activation,
            norm_first=True,
            eps=EPS,
            rotary=(*turns, False),
            **options,
        )
    return reference.layer_norm(x[0], tensors["final_norm.weight"], eps=EPS)
