"""A model of the BERT family with random weights, small enough to write one for each test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from checkpoints import Shapes, affine, usual_weights, vocabulary, write_folder
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
    """Return random weights."""
    width, inner = settings["hidden_size"], settings["intermediate_size"]
    tables = {"word": "vocab_size", "position": "max_position_embeddings", "token_type": "type_vocab_size"}
    shapes: Shapes = {f"embeddings.{name}_embeddings.weight": (settings[key], width) for name, key in tables.items()}
    norms = ["embeddings.LayerNorm"]
    for i in range(settings["num_hidden_layers"]):
        layer = f"encoder.layer.{i}."
        products = [f"attention.self.{name}" for name in ("query", "key", "value")] + ["attention.output.dense"]
        shapes |= affine(products, width, width, prefix=layer)
        shapes |= affine("intermediate.dense", inner, width, prefix=layer)
        shapes |= affine("output.dense", width, inner, prefix=layer)
        norms += [f"{layer}attention.output.LayerNorm", f"{layer}output.LayerNorm"]
    return usual_weights(shapes | affine(norms, width))


def tokenizer() -> Any:
    """One token for each word and sign; every one that is not known is [UNK]."""
    result = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary(WORDS), unk_token="[UNK]"))
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
    write_folder(directory / folder, {}, tensors(settings) if weights is None else weights)
    return write_folder(directory, contents)


def write_masked(directory: Path, **changes: Any) -> Path:
    """Write the directory of a masked language model, as transformers saves it."""
    settings = config(architectures=["BertForMaskedLM"], **changes)
    width, head = settings["hidden_size"], "cls.predictions."
    shapes: Shapes = affine(f"{head}transform.dense", width, width) | affine(f"{head}transform.LayerNorm", width)
    weights = {f"bert.{name}": tensor for name, tensor in tensors(settings).items()}
    weights |= usual_weights(shapes | {f"{head}bias": (settings["vocab_size"],)})
    contents = {"config.json": settings, "tokenizer.json": json.loads(tokenizer().to_str())}
    return write_folder(directory, contents, weights)


def write_shards(directory: Path, count: int = 3) -> Path:
    """Put the weights of the model in `directory` into several files. Returns the index."""
    whole = directory / "model.safetensors"
    weights, weight_map = load_file(whole), {}
    for i in range(count):
        part, file_name = sorted(weights)[i::count], f"model-{i + 1:05}-of-{count:05}.safetensors"
        save_file({name: weights[name] for name in part}, directory / file_name)
        weight_map |= dict.fromkeys(part, file_name)
    whole.unlink()
    name = "model.safetensors.index.json"
    return write_folder(directory, {name: {"metadata": {"total_size": 1}, "weight_map": weight_map}}) / name


def write_dense(directory: Path, i: int, in_features: int, out_features: int, **values: Any) -> dict[str, Array]:
    """Write a Dense module to the folder `i`_Dense of a model. Returns its weights."""
    rng = np.random.default_rng(i)
    weights = {"linear.weight": rng.standard_normal((out_features, in_features), np.float32)}
    if values.get("bias", True):
        weights["linear.bias"] = 3 * rng.standard_normal(out_features, np.float32)
    content = {"in_features": in_features, "out_features": out_features} | values
    write_folder(directory / f"{i}_Dense", {"config.json": content}, weights)
    return weights
