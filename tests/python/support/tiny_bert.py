"""A model of the BERT family with random weights, small enough to write one for each test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import load_file, save_file

Array = np.ndarray[Any, Any]

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz", "the", "dog", "cat", "!"]

# Of different lengths, the longest beyond the 20 tokens that the tiny model reads.
TEXTS = [
    "",
    "dog",
    "the dog",
    "a b c d e f g h",
    "the cat !",
    " ".join("abcdefghijklmnopqrstuvwxyz"),
    "",
    "x unknown y",
]


def config(**changes: Any) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "vocab_size": len(WORDS) + 3,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 40,
        "max_position_embeddings": 20,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
    } | changes


def tensors(settings: dict[str, Any]) -> dict[str, Array]:
    """Random weights of about the size that trained ones have, so that no part of the model is without effect."""
    width, inner = settings["hidden_size"], settings["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (settings["vocab_size"], width),
        "embeddings.position_embeddings.weight": (settings["max_position_embeddings"], width),
        "embeddings.token_type_embeddings.weight": (settings["type_vocab_size"], width),
    }
    norms = ["embeddings.LayerNorm"]
    for i in range(settings["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        names = [f"attention.self.{name}" for name in ("query", "key", "value")] + ["attention.output.dense"]
        linears = dict.fromkeys(names, (width, width))
        linears |= {"intermediate.dense": (inner, width), "output.dense": (width, inner)}
        for name, shape in linears.items():
            shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    for norm in norms:
        shapes |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)}
    rng = np.random.default_rng(0)
    return {
        name: (rng.standard_normal(shape) / np.sqrt(shape[-1] if len(shape) == 2 else 4)).astype(np.float32)
        + np.float32(name.endswith("LayerNorm.weight"))
        for name, shape in shapes.items()
    }


def tokenizer() -> Any:
    """One token for each word and sign; every one that is not known is [UNK]."""
    result = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    result.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    result.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return result


def pooling(*modes: str, **changes: Any) -> dict[str, Any]:
    """The contents of 1_Pooling/config.json, as sentence-transformers has written it since version 5.4."""
    width = config()["hidden_size"]
    return {"embedding_dimension": width, "pooling_mode": modes[0] if len(modes) == 1 else list(modes)} | changes


def ids(text: str, max_seq_length: int = 20) -> list[int]:
    """What `tokenizer` makes of a text of words with blanks between them."""
    words = [WORDS.index(word) if word in WORDS else 1 for word in text.split()]
    return [2, *words[: max_seq_length - 2], 3]


def modules(*kinds: str, pooling: str = "1_Pooling", transformer: str = "") -> list[dict[str, Any]]:
    """The contents of modules.json, as sentence-transformers writes it."""
    paths = {"Transformer": transformer, "Pooling": pooling}
    return [
        {
            "idx": i,
            "name": str(i),
            "path": paths.get(kind, f"{i}_{kind}"),
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]


def write(
    directory: Path,
    settings: dict[str, Any] | None = None,
    weights: dict[str, Array] | None = None,
    files: dict[str, Any] | None = None,
    folder: str = "",
) -> Path:
    """The directory of a model that scales the mean of its tokens to length 1.

    `files` are written as JSON, over what there is; None: the file is left out. The transformer lies in `folder`,
    such as ``"0_Transformer/"``.
    """
    settings = config() if settings is None else settings
    contents = {
        f"{folder}config.json": settings,
        f"{folder}tokenizer.json": json.loads(tokenizer().to_str()),
        "modules.json": modules("Transformer", "Pooling", "Normalize"),
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
    } | (files or {})
    for name, value in contents.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if value is not None:
            path.write_text(json.dumps(value), encoding="utf-8")
    save_file(tensors(settings) if weights is None else weights, directory / folder / "model.safetensors")
    return directory


def write_language_model(
    directory: Path, settings: dict[str, Any], weights: dict[str, Array], files: dict[str, Any] | None = None
) -> Path:
    """The directory of a model that writes text. `files` are written as JSON, or as they are if they are a str."""
    directory.mkdir(parents=True, exist_ok=True)
    contents = {"config.json": settings, "tokenizer.json": json.loads(tokenizer().to_str())} | (files or {})
    for name, value in contents.items():
        text = value if isinstance(value, str) else json.dumps(value)
        (directory / name).write_text(text, encoding="utf-8")
    save_file(weights, directory / "model.safetensors")
    return directory


def write_shards(directory: Path, count: int = 3) -> Path:
    """Put the weights of the model in `directory` into several files. Returns the index."""
    whole = directory / "model.safetensors"
    weights, weight_map = load_file(whole), {}
    for i in range(count):
        part, file_name = sorted(weights)[i::count], f"model-{i + 1:05}-of-{count:05}.safetensors"
        save_file({name: weights[name] for name in part}, directory / file_name)
        weight_map |= dict.fromkeys(part, file_name)
    whole.unlink()
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}), encoding="utf-8")
    return index


def write_dense(directory: Path, i: int, in_features: int, out_features: int, **values: Any) -> dict[str, Array]:
    """Write a Dense module to the folder `i`_Dense of a model. Returns its weights."""
    rng = np.random.default_rng(i)
    weights = {"linear.weight": rng.standard_normal((out_features, in_features), np.float32)}
    if values.get("bias", True):
        weights["linear.bias"] = 3 * rng.standard_normal(out_features, np.float32)
    folder = directory / f"{i}_Dense"
    folder.mkdir(parents=True, exist_ok=True)
    content = {"in_features": in_features, "out_features": out_features} | values
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    save_file(weights, folder / "model.safetensors")
    return weights
