"""Encoders of images, and of images and texts, with random weights, in the files of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from checkpoints import Array, Shapes, affine, usual_weights, write_folder

WORDS = ["!", *"abcdefg", *map("{}</w>".format, "abcdefg"), "ab</w>", "<|startoftext|>", "<|endoftext|>"]
WIDTH, INNER, TEXT_WIDTH, PATCH = 24, 40, 16, 8

_SIZES = {
    "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": INNER,
    "image_size": 32, "patch_size": PATCH, "hidden_act": "gelu", "layer_norm_eps": 1e-6, "num_channels": 3,
}  # fmt: skip
_TEXT = {
    "hidden_size": TEXT_WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": INNER,
    "max_position_embeddings": 12, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "vocab_size": len(WORDS),
    "eos_token_id": len(WORDS) - 1, "bos_token_id": len(WORDS) - 2, "pad_token_id": len(WORDS) - 1,
}  # fmt: skip
_CLASSES = {"vit": "ViT", "deit": "DeiT", "dinov2": "Dinov2", "dinov2_with_registers": "Dinov2WithRegisters",
            "clip": "CLIP", "siglip": "Siglip"}  # fmt: skip
FAMILIES = tuple(_CLASSES)
PAIRS = ("clip", "siglip")


def config(model_type: str, labels: int | None = None, **changes: Any) -> dict[str, Any]:
    """Return config.json, of a model without a head, or of a classifier with some labels."""
    head = "Model" if labels is None else "ForImageClassification"
    base: dict[str, Any] = {"model_type": model_type, "architectures": [_CLASSES[model_type] + head]}
    if labels is not None:
        base["id2label"] = {str(i): f"label {i}" for i in range(labels)}
    if model_type in PAIRS:
        texts = dict(_TEXT) if model_type == "clip" else _TEXT | {"projection_size": WIDTH, "eos_token_id": 17}
        for part, sizes in {"vision": dict(_SIZES), "text": texts}.items():
            base[f"{part}_config"] = sizes | {"model_type": f"{model_type}_{part}_model"}
        return base | ({"projection_dim": 10} if model_type == "clip" else {}) | changes
    sizes = dict(_SIZES)
    if model_type.startswith("dinov2"):
        del sizes["intermediate_size"]
        sizes |= {"mlp_ratio": 2} | ({"num_register_tokens": 2} if model_type != "dinov2" else {})
    return base | sizes | changes


def tensors(given: dict[str, Any]) -> dict[str, Array]:
    """Return the weights by their names in the files of transformers."""
    model_type, is_classifier = given["model_type"], "id2label" in given
    if model_type in PAIRS:
        shapes = _of_pair(model_type, is_classifier)
    else:
        shapes = _of_images(model_type, given)
        prefix = f"{model_type}." if is_classifier else ""
        shapes = {prefix + name: shape for name, shape in shapes.items()}
        pooled = model_type in ("vit", "deit") and not is_classifier
        shapes |= affine("pooler.dense", WIDTH, WIDTH) if pooled else {}
    if is_classifier:
        features = WIDTH * (2 if model_type.startswith("dinov2") else 1)
        shapes |= affine("classifier", len(given["id2label"]), features)
    return {name: np.asarray(weight) for name, weight in usual_weights(shapes).items()}  # one has no axes


def _of_images(model_type: str, given: dict[str, Any]) -> Shapes:
    rows = (given["image_size"] // given["patch_size"]) ** 2 + (2 if model_type == "deit" else 1)
    special = {"deit": ("cls_token", "distillation_token")}.get(model_type, ("cls_token",))
    shapes: Shapes = {
        "embeddings.patch_embeddings.projection.weight": (WIDTH, 3, given["patch_size"], given["patch_size"]),
        "embeddings.patch_embeddings.projection.bias": (WIDTH,),
        "embeddings.position_embeddings": (1, rows, WIDTH),
        **{f"embeddings.{name}": (1, 1, WIDTH) for name in special},
        **affine("layernorm", WIDTH),
    }
    if "num_register_tokens" in given:
        shapes["embeddings.register_tokens"] = (1, given["num_register_tokens"], WIDTH)
    is_dinov2 = model_type.startswith("dinov2")
    inner = WIDTH * given["mlp_ratio"] if is_dinov2 else given["intermediate_size"]
    up, down = ("mlp.fc1", "mlp.fc2") if is_dinov2 else ("intermediate.dense", "output.dense")
    norms = "norm1 norm2" if is_dinov2 else "layernorm_before layernorm_after"
    for i in range(given["num_hidden_layers"]):
        layer = f"encoder.layer.{i}."
        attention = [f"attention.attention.{part}" for part in ("query", "key", "value")]
        shapes |= affine([*attention, "attention.output.dense"], WIDTH, WIDTH, prefix=layer)
        shapes |= affine(up, inner, WIDTH, prefix=layer) | affine(down, WIDTH, inner, prefix=layer)
        shapes |= affine(norms, WIDTH, prefix=layer)
        if is_dinov2:
            shapes |= {f"{layer}layer_scale{j}.lambda1": (WIDTH,) for j in (1, 2)}
    return shapes


def _of_pair(model_type: str, is_classifier: bool) -> Shapes:
    is_clip, positions = model_type == "clip", (32 // PATCH) ** 2
    vision, text = "vision_model.", "text_model."
    shapes = _layers(vision, WIDTH) | {
        f"{vision}embeddings.patch_embedding.weight": (WIDTH, 3, PATCH, PATCH),
        f"{vision}embeddings.position_embedding.weight": (positions + is_clip, WIDTH),
        **affine("post_layernorm", WIDTH, prefix=vision),
    }
    if is_clip:
        shapes |= {f"{vision}embeddings.class_embedding": (WIDTH,)} | affine("pre_layrnorm", WIDTH, prefix=vision)
    else:
        shapes[f"{vision}embeddings.patch_embedding.bias"] = (WIDTH,)
    if is_classifier:
        return shapes
    if not is_clip:
        head = f"{vision}head."
        shapes |= {f"{head}probe": (1, 1, WIDTH), f"{head}attention.in_proj_weight": (3 * WIDTH, WIDTH)}
        shapes |= {f"{head}attention.in_proj_bias": (3 * WIDTH,)} | affine("layernorm", WIDTH, prefix=head)
        shapes |= affine("attention.out_proj", WIDTH, WIDTH, prefix=head)
        shapes |= affine("mlp.fc1", INNER, WIDTH, prefix=head) | affine("mlp.fc2", WIDTH, INNER, prefix=head)
    shapes |= _layers(text, TEXT_WIDTH) | affine("final_layer_norm", TEXT_WIDTH, prefix=text)
    shapes |= {
        f"{text}embeddings.token_embedding.weight": (len(WORDS), TEXT_WIDTH),
        f"{text}embeddings.position_embedding.weight": (_TEXT["max_position_embeddings"], TEXT_WIDTH),
    }
    if is_clip:
        projections = affine("visual_projection", 10, WIDTH, bias=False)
        return shapes | projections | affine("text_projection", 10, TEXT_WIDTH, bias=False) | {"logit_scale": ()}
    return shapes | affine("head", WIDTH, TEXT_WIDTH, prefix=text) | {"logit_scale": (1,), "logit_bias": (1,)}


def _layers(prefix: str, width: int) -> Shapes:
    shapes: Shapes = {}
    for i in range(2):
        layer = f"{prefix}encoder.layers.{i}."
        parts = [f"self_attn.{part}_proj" for part in ("q", "k", "v", "out")]
        shapes |= affine(parts, width, width, prefix=layer) | affine("layer_norm1 layer_norm2", width, prefix=layer)
        shapes |= affine("mlp.fc1", INNER, width, prefix=layer) | affine("mlp.fc2", width, INNER, prefix=layer)
    return shapes


def tokenizer() -> dict[str, Any]:
    """Return tokenizer.json of CLIP, as transformers writes it."""
    from json import loads

    words = {word: i for i, word in enumerate(WORDS)}
    library = tokenizers.Tokenizer(
        tokenizers.models.BPE(words, [("a", "b</w>")], end_of_word_suffix="</w>", unk_token=WORDS[-1])
    )
    normalizers, parts = tokenizers.normalizers, tokenizers.pre_tokenizers
    library.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(tokenizers.Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    library.pre_tokenizer = parts.Sequence(
        [parts.Split(tokenizers.Regex(pattern), "removed", invert=True), parts.ByteLevel(add_prefix_space=False)]
    )
    ends = ((WORDS[-1], len(WORDS) - 1), (WORDS[-2], len(WORDS) - 2))
    library.post_processor = tokenizers.processors.RobertaProcessing(*ends, trim_offsets=False, add_prefix_space=False)
    library.add_special_tokens(WORDS[-2:])
    contents: dict[str, Any] = loads(library.to_str())
    return contents


def write(folder: Path, given: dict[str, Any]) -> Path:
    """Write a model with its preprocessing, and the tokenizer of a pair. Images are squares of 32 x 32 pixels."""
    side = {"height": 32, "width": 32}
    files: dict[str, Any] = {"config.json": given}
    files["preprocessor_config.json"] = {"image_processor_type": "ViTImageProcessor", "size": side, "resample": 3}
    if given["model_type"] in PAIRS and "id2label" not in given:
        settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 10, "pad_token": WORDS[-1]}
        settings |= {"unk_token": WORDS[-1], "bos_token": WORDS[-2], "eos_token": WORDS[-1]}
        if given["model_type"] == "siglip":
            settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids"]}
        files |= {"tokenizer.json": tokenizer(), "tokenizer_config.json": settings}
    return write_folder(folder, files, tensors(given))
