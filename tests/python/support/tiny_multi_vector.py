"""Tiny multi-vector encoders in the layouts of sentence-transformers, PyLate and ColBERT."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import tiny_bert
from safetensors.numpy import load_file, save_file

AUTHOR = "sentence_transformers"
DENSE = {"in_features": 0, "out_features": 5, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"}


# For transformers; the mask token is a word.
TOKENS: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 20,
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "z",
}


def _base(directory: Path) -> tuple[Path, int]:
    tokenizer = tiny_bert.tokenizer()
    tokenizer.add_special_tokens([token for name, token in TOKENS.items() if name.endswith("_token")])
    tokenizer.add_special_tokens(["[Q] ", "[D] "])
    files = {"tokenizer_config.json": TOKENS, "tokenizer.json": json.loads(tokenizer.to_str())}
    folder = tiny_bert.write(directory, files=files | {"1_Pooling/config.json": None})
    return folder, int(json.loads((folder / "config.json").read_text())["hidden_size"])


def _weight(rows: int, columns: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(rows).standard_normal((rows, columns), dtype=np.float32)


def _dense(folder: Path, features: int, **settings: Any) -> None:
    (folder / "1_Dense").mkdir()
    tensors = {"linear.weight": _weight(5, features)}
    if settings.get("bias"):
        tensors["linear.bias"] = _weight(1, 5)[0]
    if settings.get("use_residual"):
        tensors["residual.weight"] = _weight(6, features)[:5]
    save_file(tensors, folder / "1_Dense" / "model.safetensors")
    (folder / "1_Dense" / "config.json").write_text(json.dumps(DENSE | {"in_features": features} | settings))


def _modules(folder: Path, *kinds: str) -> None:
    entries = [{"idx": i, "name": str(i), "path": "", "type": kind} for i, kind in enumerate(kinds)]
    for i, entry in enumerate(entries[1:], 1):
        entry["path"] = f"{i}_{kinds[i].rpartition('.')[2]}"
    (folder / "modules.json").write_text(json.dumps(entries))


def write_sentence_transformers(
    directory: Path, *, dense: dict[str, Any] | None = None, mask: dict[str, Any] | None = None, **settings: Any
) -> Path:
    """A model as version 6 saves it; `settings` of its Transformer."""
    folder, features = _base(directory)
    places = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    _dense(folder, features, **(places | (dense or {})))
    name = f"{AUTHOR}.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
    base = f"{AUTHOR}.base.modules"
    _modules(folder, f"{base}.transformer.Transformer", f"{base}.dense.Dense", name, f"{base}.normalize.Normalize")
    for place in ("2_MultiVectorMask", "3_Normalize"):
        (folder / place).mkdir()
    (folder / "2_MultiVectorMask" / "config.json").write_text(json.dumps(mask or {}))
    (folder / "3_Normalize" / "config.json").write_text(json.dumps(places))
    task = {"method": "forward", "method_output_name": "last_hidden_state"}
    transformer = {"transformer_task": "feature-extraction", "modality_config": {"text": task}}
    transformer["module_output_name"] = "token_embeddings"
    (folder / "sentence_bert_config.json").write_text(json.dumps(transformer | settings))
    model = {"model_type": "MultiVectorEncoder", "prompts": {"query": "the ", "document": "dog "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(model))
    return folder


def write_pylate(directory: Path, *, dense: dict[str, Any] | None = None, **settings: Any) -> Path:
    """A model of PyLate; `settings` of config_sentence_transformers.json."""
    folder, features = _base(directory)
    _dense(folder, features, **(dense or {}))
    _modules(folder, f"{AUTHOR}.models.Transformer", "pylate.models.Dense.Dense")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 7, "do_lower_case": False}))
    model = {
        "model_type": "ColBERT",
        "prompts": {"query": "", "document": ""},
        "similarity_fn_name": "MaxSim",
        "query_prefix": "[Q] ",
        "document_prefix": "[D] ",
        "query_length": 8,
        "document_length": 12,
        "attend_to_expansion_tokens": False,
        "skiplist_words": list(string.punctuation),
        "do_query_expansion": True,
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(model | settings))
    return folder


def write_colbert(directory: Path, **metadata: Any) -> Path:
    """A checkpoint of ColBERT; `metadata` of artifact.metadata."""
    folder, features = _base(directory)
    (folder / "modules.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["HF_ColBERT"]}))
    tensors = load_file(folder / "model.safetensors")
    tensors = {f"bert.{name}": tensor for name, tensor in tensors.items()} | {"linear.weight": _weight(5, features)}
    save_file(tensors, folder / "model.safetensors")
    given = {"query_token_id": "the", "doc_token_id": "dog", "query_maxlen": 8, "doc_maxlen": 12, "dim": 5}
    (folder / "artifact.metadata").write_text(json.dumps(given | {"attend_to_mask_tokens": False} | metadata))
    return folder
