"""Whisper models with random weights, in the files of transformers and of CTranslate2."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import tiny_bert
from checkpoints import Shapes, affine, usual_weights, write_folder

Array = np.ndarray[Any, Any]

VOCABULARY, WIDTH, ROWS, TOKENS = 40, 24, 20, 16

# Tiny to large-v2; large-v3; turbo and distil, with decoders of few layers.
VARIANTS: dict[str, dict[str, Any]] = {
    "whisper": {},
    "128 mel bins": {"num_mel_bins": 128},
    "turbo": {"num_mel_bins": 128, "encoder_layers": 4, "decoder_layers": 1},
    "distil": {"encoder_layers": 3, "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 28},
}

GENERATION = {
    "decoder_start_token_id": 3,
    "eos_token_id": 2,
    "suppress_tokens": [7, 11],
    "begin_suppress_tokens": [5, 2],
    "alignment_heads": [[0, 1], [0, 0]],
}


def config(variant: str = "whisper", **changes: Any) -> dict[str, Any]:
    """Return config.json."""
    base = {
        "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "is_encoder_decoder": True,
        "vocab_size": VOCABULARY, "d_model": WIDTH, "num_mel_bins": 80, "activation_function": "gelu",
        "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 3, "decoder_attention_heads": 3,
        "encoder_ffn_dim": 40, "decoder_ffn_dim": 32, "max_source_positions": ROWS, "max_target_positions": TOKENS,
        "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 2, "decoder_start_token_id": 3,
    }  # fmt: skip
    return base | VARIANTS[variant] | changes


def shapes(given: dict[str, Any]) -> Shapes:
    """Return the names and shapes of all tensors."""
    width = given["d_model"]
    result: Shapes = {
        "model.encoder.conv1.weight": (width, given["num_mel_bins"], 3),
        "model.encoder.conv2.weight": (width, width, 3),
        "model.encoder.conv1.bias": (width,),
        "model.encoder.conv2.bias": (width,),
        "model.encoder.embed_positions.weight": (given["max_source_positions"], width),
        "model.decoder.embed_tokens.weight": (given["vocab_size"], width),
        "model.decoder.embed_positions.weight": (given["max_target_positions"], width),
    }
    for stack in ("encoder", "decoder"):
        inner = given[f"{stack}_ffn_dim"]
        result |= affine("layer_norm", width, prefix=f"model.{stack}.")
        for i in range(given[f"{stack}_layers"]):
            prefix = f"model.{stack}.layers.{i}."
            for attention in ("self_attn", "encoder_attn") if stack == "decoder" else ("self_attn",):
                result |= affine("q_proj v_proj out_proj", width, width, prefix=f"{prefix}{attention}.")
                result |= affine("k_proj", width, width, prefix=f"{prefix}{attention}.", bias=False)
                result |= affine(f"{attention}_layer_norm", width, prefix=prefix)
            result |= affine("fc1", inner, width, prefix=prefix) | affine("fc2", width, inner, prefix=prefix)
            result |= affine("final_layer_norm", width, prefix=prefix)
    return result


def write(folder: Path, given: dict[str, Any], files: dict[str, Any] | None = None) -> Path:
    """Write a model as transformers does."""
    library = tiny_bert.tokenizer()
    others = {"generation_config.json": GENERATION, "tokenizer.json": library.to_str()}
    others["preprocessor_config.json"] = json.dumps(
        {"feature_size": given["num_mel_bins"], "sampling_rate": 16000, "hop_length": 160, "n_fft": 400}
    )
    weights = usual_weights(shapes(given))
    return write_folder(folder, {"config.json": given, **others, **(files or {})}, weights)


_TYPES = ["float32", "int8", "int16", "int32", "float16", "bfloat16"]
_SETTINGS = {
    "decoder/activation": np.int8(3), "decoder/alibi": np.int8(0), "decoder/alignment_heads": np.int16(1),
    "decoder/alignment_layer": np.int16(-1), "decoder/pre_norm": np.int8(1), "decoder/scale_embeddings": np.int8(0),
    "decoder/start_from_zero_embedding": np.int8(0), "decoder/scale_alibi": np.int8(0),
    "decoder/alibi_use_positive_positions": np.int8(1),
}  # fmt: skip


def variables(given: dict[str, Any], weights: dict[str, Array]) -> dict[str, Any]:
    """Return the variables of CTranslate2 for the tensors of transformers."""
    found: dict[str, Any] = {name: np.array(value) for name, value in _SETTINGS.items()}
    for stack in ("encoder", "decoder"):
        found[f"{stack}/num_heads"] = np.array(given[f"{stack}_attention_heads"], np.int16)
    joined = {"self_attn": ("self_attention/linear_0", "qkv"), "encoder_attn": ("attention/linear_1", "kv")}
    names = {
        "self_attn.out_proj": "self_attention/linear_1", "encoder_attn.q_proj": "attention/linear_0",
        "encoder_attn.out_proj": "attention/linear_2", "fc1": "ffn/linear_0", "fc2": "ffn/linear_1",
        "self_attn_layer_norm": "self_attention/layer_norm", "encoder_attn_layer_norm": "attention/layer_norm",
        "final_layer_norm": "ffn/layer_norm", "embed_tokens": "embeddings", "conv1": "conv1", "conv2": "conv2",
        "layer_norm": "layer_norm",
    }  # fmt: skip
    for name, array in weights.items():
        stack, layer, part, end = re.fullmatch(
            r"model\.(encoder|decoder)\.(?:layers\.(\d+)\.)?(.+)\.(\w+)", name
        ).groups()  # type: ignore[union-attr]
        where = f"{stack}/" if layer is None else f"{stack}/layer_{layer}/"
        if part == "embed_positions":
            found[f"{where}position_encodings/encodings"] = array
        elif part in names:
            norm = {"weight": "gamma", "bias": "beta"} if part.endswith("norm") else {}
            found[f"{where}{names[part]}/{norm.get(end, end)}"] = array
        elif part.endswith("v_proj"):
            ours, letters = joined[part.split(".")[0]]
            stem = name[: -len(f"v_proj.{end}")]
            parts = [weights.get(f"{stem}{letter}_proj.{end}", np.zeros_like(array)) for letter in letters]
            found[f"{where}{ours}/{end}"] = np.concatenate(parts)
    return found


def contents(found: dict[str, Any], dtype: str = "float32", version: int = 6, aliases: dict[str, str] | None = None,
             kind: str = "WhisperSpec", revision: int = 3) -> bytes:  # fmt: skip
    """Return the bytes of model.bin."""
    import ml_dtypes

    types = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}

    def text(name: str) -> bytes:
        return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"

    stored: dict[str, Array] = {}
    for name, array in found.items():
        if array.ndim == 0 or dtype == "float32" or name.endswith("scale"):
            stored[name] = array
        elif dtype != "int8":
            stored[name] = array.astype(types.get(dtype, dtype))
        elif name.endswith("/weight"):
            rows = array.reshape(len(array), -1)
            scale = (127 / np.abs(rows).max(1)).astype(np.float32)
            stored[name] = np.rint(rows * scale[:, None]).astype(np.int8).reshape(array.shape)
            stored[f"{name}_scale"] = scale
        else:
            stored[name] = array
    raw = struct.pack("<I", version) + text(kind) + struct.pack("<II", revision, len(stored))
    for name, array in stored.items():
        raw += text(name) + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        raw += struct.pack("<BI", _TYPES.index(str(array.dtype)), array.nbytes) + array.tobytes()
    others = {"decoder/projection/weight": "decoder/embeddings/weight"} if aliases is None else aliases
    return raw + struct.pack("<I", len(others)) + b"".join(text(a) + text(b) for a, b in others.items())


def write_ctranslate2(folder: Path, given: dict[str, Any], dtype: str = "float32", **options: Any) -> Path:
    """Write the model of `write` as CTranslate2 does."""
    renamed = {"suppress_tokens": "suppress_ids", "begin_suppress_tokens": "suppress_ids_begin"}
    settings = {renamed.get(name, name): value for name, value in GENERATION.items() if isinstance(value, list)}
    library = tiny_bert.tokenizer()
    write_folder(folder, {"config.json": settings | {"lang_ids": [9]}, "tokenizer.json": library.to_str()})
    found = variables(given, usual_weights(shapes(given)))
    (folder / "model.bin").write_bytes(contents(found, dtype, **options))
    return folder
