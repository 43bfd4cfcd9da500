"""The text tower of a CLIP with random weights: its files as transformers saves them, and its vectors in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_native import reference
from mha_native_bench.cases.case import PATCH, Array, Case
from mha_native_bench.cases.weights import LayerNames, encoder_layer_state

POSITIONS = 77
END = 3  # the token that ends texts, whose row counts; [SEP] of the tokenizer
EPS = 1e-5  # of the norms
TEXTS, IMAGES = "text_model.", "vision_model."  # the towers
FINAL_NORM = f"{TEXTS}final_layer_norm"
OF_IMAGES = 16  # features of the other tower, one layer for one patch, which is loaded and not measured

PARTS = {
    "self_attn.out_proj": "self_attn.out_proj",
    "mlp.fc1": "linear1",
    "mlp.fc2": "linear2",
    "layer_norm1": "norm1",
    "layer_norm2": "norm2",
}
PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
CLIP_TEXT, CLIP_IMAGES = (LayerNames(f"{tower}encoder.layers.{{}}.", PROJECTIONS, PARTS) for tower in (TEXTS, IMAGES))


def clip_tensors(case: Case, vocabulary: int) -> dict[str, Array]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        values: Array = rng.standard_normal(shape, np.float32) * np.float32(0.1)
        return values

    tensors: dict[str, Array] = {
        f"{TEXTS}embeddings.token_embedding.weight": normal(vocabulary, case.E),
        f"{TEXTS}embeddings.position_embedding.weight": normal(POSITIONS, case.E),
        "text_projection.weight": normal(case.E, case.E),
        "visual_projection.weight": normal(case.E, OF_IMAGES),
        f"{IMAGES}embeddings.class_embedding": normal(OF_IMAGES),
        f"{IMAGES}embeddings.patch_embedding.weight": normal(OF_IMAGES, 3, PATCH, PATCH),
        f"{IMAGES}embeddings.position_embedding.weight": normal(2, OF_IMAGES),
        "logit_scale": np.array(1, np.float32),
    }
    norms = {FINAL_NORM: case.E, f"{IMAGES}pre_layrnorm": OF_IMAGES, f"{IMAGES}post_layernorm": OF_IMAGES}
    for name, width in norms.items():
        tensors |= {f"{name}.weight": 1 + normal(width), f"{name}.bias": normal(width)}
    for i in range(case.layers):
        tensors |= CLIP_TEXT.to_files(encoder_layer_state(case, rng), i)
    of_images = replace(case, E=OF_IMAGES, D=OF_IMAGES, H=1, Hk=1, F=OF_IMAGES)
    return tensors | CLIP_IMAGES.to_files(encoder_layer_state(of_images, rng), 0)


def clip_config(case: Case, sizes: dict[str, Any]) -> dict[str, Any]:
    """The whole config.json, with `sizes` for the tower of texts."""
    of_both = {"hidden_act": case.activation, "layer_norm_eps": EPS, "projection_dim": case.E}
    texts = {
        "model_type": "clip_text_model",
        "intermediate_size": case.F,
        "max_position_embeddings": POSITIONS,
        "bos_token_id": END - 1,
        "eos_token_id": END,
    }
    images = {
        "model_type": "clip_vision_model",
        "hidden_size": OF_IMAGES,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": OF_IMAGES,
        "image_size": PATCH,
        "patch_size": PATCH,
        "num_channels": 3,
    }
    return {
        "model_type": "clip",
        "architectures": ["CLIPModel"],
        "projection_dim": case.E,
        "text_config": sizes | texts | of_both,
        "vision_config": images | of_both,
    }


def clip_preprocessor() -> dict[str, Any]:
    """The file preprocessor_config.json of the other tower."""
    size = {"height": PATCH, "width": PATCH}
    return {"image_processor_type": "CLIPImageProcessor", "size": size, "crop_size": size, "do_center_crop": False}


def clip_text_vector(case: Case, tensors: dict[str, Array], text: Array) -> NDArray[np.float64]:
    """The vector [E] of a text [T] of tokens, by the reference; its length is not 1."""
    words = tensors[f"{TEXTS}embeddings.token_embedding.weight"].astype(np.float64)[text]
    x = words + tensors[f"{TEXTS}embeddings.position_embedding.weight"][: len(text)]
    state = CLIP_TEXT.all_to_torch(tensors, case.layers)
    options: dict[str, Any] = {"activation": case.activation, "eps": EPS, "norm_first": True, **case.options}
    row = reference.encoder(x[None], state, case.H, **options)[0, np.argmax(text == END)]
    row = reference.layer_norm(row, *(tensors[f"{FINAL_NORM}.{end}"] for end in ("weight", "bias")), eps=EPS)
    return reference.linear(row, tensors["text_projection.weight"])
