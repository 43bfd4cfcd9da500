"""Tiny models as their authors save them: the shapes of tensors, random weights, and the files of a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import save_file

Array = np.ndarray[Any, Any]
Shapes = dict[str, tuple[int, ...]]


def affine(names: str | Iterable[str], *shape: int, prefix: str = "", bias: bool = True) -> Shapes:
    """Return the shapes of weights [out, in], or of norms [E], and of their biases [out].

    Names in a str are separated by spaces.
    """
    names = names.split() if isinstance(names, str) else names
    kinds = {"weight": shape} | ({"bias": shape[:1]} if bias else {})
    return {f"{prefix}{name}.{kind}": of_kind for name in names for kind, of_kind in kinds.items()}


def random_weights(shapes: Shapes, size: Callable[[str], float], norm: float = 1, seed: int = 0) -> dict[str, Array]:
    """Return normal numbers times `size` of the name, plus `norm` in the weights of norms.

    The sizes are about those of trained models, so that every part of a model has an effect.
    """
    rng, result = np.random.default_rng(seed), {}
    for name, shape in shapes.items():
        is_norm = len(shape) == 1 and name.endswith("weight")
        result[name] = (rng.standard_normal(shape) * size(name) + is_norm * norm).astype(np.float32)
    return result


def usual_weights(shapes: Shapes, norm: float = 1) -> dict[str, Array]:
    """Return weights that keep the size of their inputs; biases and norms vary by 1/2."""
    return random_weights(shapes, lambda name: 1 / np.sqrt(shapes[name][1]) if len(shapes[name]) == 2 else 0.5, norm)


# Of tokenizers that no class of transformers builds itself: all of tokenizer.json counts there, too.
_SETTINGS = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
}


def write_folder(directory: Path, files: dict[str, Any], weights: dict[str, Array] | None = None) -> Path:
    """Write the files as JSON, or as they are if they are a str, and leave out those that are None.

    A tokenizer without a class in tokenizer_config.json has the one that reads all of tokenizer.json.
    """
    for name in [name for name in files if name.endswith("tokenizer.json")]:
        settings = name.replace("tokenizer.json", "tokenizer_config.json")
        given = files.get(settings, {})
        if isinstance(given, dict) and "tokenizer_class" not in given:
            files = files | {settings: _SETTINGS | given}
    directory.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if value is not None:
            path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    if weights is not None:
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def vocabulary(words: Iterable[str]) -> dict[str, int]:
    """Number the words of a tokenizer."""
    return {word: i for i, word in enumerate(words)}


def byte_level_bpe(
    special: list[str], merges: list[tuple[str, str]], letters: Iterable[str] = (), add_prefix_space: bool = False
) -> tokenizers.Tokenizer:
    """Return BPE over bytes, or over some letters; its tokens are special ones, letters and merged pairs."""
    letters = letters or sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = [*special, *letters, *map("".join, merges)]
    result = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary(words), merges))
    result.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    return result
