"""The tiny model of `tiny_bert`, and as one of another family, with the head of a classifier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bert_oracle
import numpy as np
import oracle_parts
import tiny_bert
import tiny_families
from checkpoints import affine, random_weights, write_folder
from safetensors.numpy import load_file

Array = np.ndarray[Any, Any]

# What the first token of a text goes through: names of linear maps, the first of which has an activation.
_ROBERTA = ["classifier.dense", "classifier.out_proj"]
HEADS = {
    "bert": ["bert.pooler.dense", "classifier"],
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": ["pre_classifier", "classifier"],
}

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def tokenizer() -> dict[str, Any]:
    """That of `tiny_bert`, which knows pairs."""
    result: dict[str, Any] = json.loads(tiny_bert.tokenizer().to_str())
    pair = result["post_processor"]["pair"] = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}]
    for number, name in enumerate("AB"):
        pair.append({"Sequence": {"id": name, "type_id": number}})
        pair.append({"SpecialToken": {"id": "[SEP]", "type_id": number}})
    return result


def write(
    directory: Path,
    model_type: str = "bert",
    labels: int = 3,
    tokens: bool = False,
    files: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """A classifier as transformers saves it, of texts or of tokens. `changes` are entries of config.json."""
    task = "ForTokenClassification" if tokens else "ForSequenceClassification"
    names = LABELS if tokens else [f"label {i}" for i in range(labels)]
    config = tiny_families.config(model_type) | {
        "architectures": [f"Any{task}"],
        "id2label": {str(i): name for i, name in enumerate(names)},
        **changes,
    }
    contents: dict[str, Any] = {
        "config.json": config, "modules.json": None, "1_Pooling/config.json": None, "tokenizer.json": tokenizer()
    }  # fmt: skip
    tiny_families.write(
        directory, model_type, contents | (files or {}), tiny_families.PREFIXES.get(model_type, "roberta.")
    )
    weights = load_file(directory / "model.safetensors") | head(model_type, len(names), tokens)
    return write_folder(directory, {}, weights)


def head(model_type: str, labels: int, tokens: bool = False) -> dict[str, Array]:
    """The random weights of a head."""
    width = tiny_bert.config()["hidden_size"]
    *inner, last = ["classifier"] if tokens else HEADS[model_type]
    shapes = affine(inner, width, width) | affine(last, labels, width)
    return random_weights(shapes, lambda name: 0.2, seed=1)


def ids(*texts: str) -> tuple[list[int], list[int]]:
    """The tokens of a text, or of a pair, that is short enough, and their types."""
    tokens, types = [2], [0]
    for number, text in enumerate(texts):
        words = tiny_bert.ids(text)[1:]
        tokens += words
        types += [number] * len(words)
    return tokens, types


def hidden_states(model_type: str, tokens: list[int], types: list[int]) -> Array:
    """What the last layer gives, in float64: [T, E]."""
    where = {"places": tiny_families.places(model_type, tokens)}
    if model_type == "bert":
        where["types"] = types
    weights = tiny_families.tensors(model_type)
    return bert_oracle.hidden_states(weights, tiny_families.settings(model_type), tokens, **where)


def logits(model_type: str, labels: int, tokens: list[int], types: list[int]) -> Array:
    """The logits [L] of a text, in float64."""
    first, last = HEADS[model_type]
    weights = head(model_type, labels)
    inner = oracle_parts.linear(hidden_states(model_type, tokens, types)[0], weights, first)
    inner = np.maximum(inner, 0) if model_type == "distilbert" else np.tanh(inner)
    result: Array = oracle_parts.linear(inner, weights, last)
    return result


def token_scores(tokens: list[int]) -> Array:
    """The scores [T, L] of a bert for tokens, in float64."""
    rows = oracle_parts.linear(
        hidden_states("bert", tokens, [0] * len(tokens)), head("bert", len(LABELS), True), "classifier"
    )
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    scores: Array = powers / powers.sum(axis=1, keepdims=True)
    return scores
