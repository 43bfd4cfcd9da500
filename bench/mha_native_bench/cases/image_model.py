"""A ViT with random weights: its tensors and files as transformers saves them, and its vectors in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_native import reference
from mha_native_bench.cases.case import PATCH, Array, Case
from mha_native_bench.cases.weights import LayerNames, encoder_layer_state

EPS = 1e-12  # of the norms
PROJECTION = "embeddings.patch_embeddings.projection"

VIT = LayerNames(
    "encoder.layer.{}.",
    ("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    {
        "attention.output.dense": "self_attn.out_proj",
        "intermediate.dense": "linear1",
        "output.dense": "linear2",
        "layernorm_before": "norm1",
        "layernorm_after": "norm2",
    },
)


def vit_tensors(case: Case) -> dict[str, Array]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        values: Array = rng.standard_normal(shape, np.float32) * np.float32(0.1)
        return values

    tensors = {
        "embeddings.cls_token": normal(1, 1, case.E),
        "embeddings.position_embeddings": normal(1, case.Tq, case.E),
        f"{PROJECTION}.weight": normal(case.E, 3, PATCH, PATCH) / np.float32(3),
        f"{PROJECTION}.bias": normal(case.E),
        "layernorm.weight": 1 + normal(case.E),
        "layernorm.bias": normal(case.E),
    }
    for i in range(case.layers):
        tensors |= VIT.to_files(encoder_layer_state(case, rng), i)
    return tensors


def write_vit(case: Case, directory: Path) -> None:
    """Writes a model of the sizes of `case`, whose vector of an image is the first row."""
    from safetensors.numpy import save_file

    save_file(vit_tensors(case), directory / "model.safetensors", metadata={"format": "pt"})
    config: dict[str, Any] = {
        "model_type": "vit",
        "architectures": ["ViTModel"],
        "hidden_size": case.E,
        "num_hidden_layers": case.layers,
        "num_attention_heads": case.H,
        "intermediate_size": case.F,
        "hidden_act": case.activation,
        "layer_norm_eps": EPS,
        "image_size": case.image_size,
        "patch_size": PATCH,
        "num_channels": 3,
        "qkv_bias": True,
    }
    size = {"height": case.image_size, "width": case.image_size}
    processor = {"image_processor_type": "ViTImageProcessor", "size": size}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (directory / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")


def patches_of(pixels: Array) -> Array:
    """[B, patches, 3 PATCH PATCH] from pixels [B, 3, height, width], row by row."""
    batch, channels, height, width = pixels.shape
    grid = pixels.reshape(batch, channels, height // PATCH, PATCH, width // PATCH, PATCH)
    patches: Array = grid.transpose(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * PATCH * PATCH)
    return patches


def vit_vectors(case: Case, tensors: dict[str, Array], pixels: Array) -> NDArray[np.float64]:
    """The vectors [B, E] of pixels [B, 3, height, width], by the reference."""
    of_all = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    weight = of_all[f"{PROJECTION}.weight"].reshape(case.E, -1)
    rows = patches_of(pixels.astype(np.float64)) @ weight.T + of_all[f"{PROJECTION}.bias"]
    first = np.broadcast_to(of_all["embeddings.cls_token"], (len(pixels), 1, case.E))
    x = np.concatenate([first, rows], axis=1) + of_all["embeddings.position_embeddings"]
    state = VIT.all_to_torch(of_all, case.layers)
    x = reference.encoder(x, state, case.H, activation=case.activation, eps=EPS, norm_first=True)
    vectors: NDArray[np.float64] = reference.layer_norm(
        x[:, 0], of_all["layernorm.weight"], of_all["layernorm.bias"], eps=EPS
    )
    return vectors
