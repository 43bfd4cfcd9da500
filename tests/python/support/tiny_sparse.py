"""Tiny models of sparse embeddings, saved by transformers and sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tiny_bert
import tiny_tokenizers
from checkpoints import write_folder
from safetensors.numpy import save_file

TEXTS = ["the dog", "", "abba a dog", "unknown", "the " * 50, "[CLS] a"]
_SIZES = {
    "vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40,
    "max_position_embeddings": 34,
}  # fmt: skip
_OF_DISTILBERT = {
    "vocab_size": 37, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40, "max_position_embeddings": 34,
}  # fmt: skip
_OF_MODERNBERT = _SIZES | dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
_OF_ROBERTA = _SIZES | {"pad_token_id": 0}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": _SIZES | {"hidden_act": "gelu_new"},
    "distilbert": _OF_DISTILBERT,
    "roberta": _OF_ROBERTA,
    "xlm-roberta": _OF_ROBERTA,
    "camembert": _OF_ROBERTA,
    "mpnet": _SIZES,
    "modernbert": _OF_MODERNBERT | {"cls_token_id": 2, "sep_token_id": 3},
}


def write_masked(folder: Path, family: str = "bert", **settings: Any) -> Path:
    """Write a masked language model with random weights, as transformers saves it."""
    import torch
    import transformers

    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(family, **(FAMILIES[family] | settings))
    model = transformers.AutoModelForMaskedLM.from_config(config).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights += 0.2 * torch.randn_like(weights)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tiny_tokenizers.word_piece().to_str(), encoding="utf-8")
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    contents = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 30, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(contents), encoding="utf-8")
    return folder


def write(folder: Path, family: str = "bert", with_router: bool = False, **options: Any) -> Path:
    """Write a model of sentence-transformers; `with_router` queries have static numbers of tokens."""
    import sentence_transformers
    import torch
    from sentence_transformers.base.modules import Router, Transformer
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

    words = tiny_tokenizers.word_piece().get_vocab_size()  # SparseStaticEmbedding has no other number of features
    plain = write_masked(folder / "plain", family, **({"vocab_size": words} if with_router else {}))
    if not with_router:
        model = sentence_transformers.SparseEncoder(str(plain), device="cpu", **options)
    else:
        transformer = Transformer(str(plain), transformer_task="fill-mask")
        numbers = torch.randn(words)
        numbers[3] = 0
        router = Router.for_query_document(
            query_modules=[SparseStaticEmbedding(transformer.tokenizer, numbers, frozen=True)],
            document_modules=[transformer, SpladePooling("max", "log1p_relu")],
        )
        model = sentence_transformers.SparseEncoder(modules=[router], device="cpu", similarity_fn_name="dot", **options)
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def write_files(folder: Path, files: dict[str, Any] | None = None) -> Path:
    """Write a model with a router, without torch: a transformer in its folder, and static numbers of tokens.

    `files` are written to both folders with a tokenizer.
    """
    tiny_bert.write_masked(folder, vocab_size=len(tiny_bert.WORDS))
    modules, words = "sentence_transformers.sparse_encoder.models.", "query_0_SparseStaticEmbedding"
    kinds = {words: "SparseStaticEmbedding", "": "MLMTransformer", "document_1_SpladePooling": "SpladePooling"}
    router = {
        "types": {name: f"{modules}{kind}.{kind}" for name, kind in kinds.items()},
        "structure": {"query": [words], "document": ["", "document_1_SpladePooling"]},
        "parameters": {"default_route": "document", "allow_empty_key": True},
    }
    pooling = {"pooling_strategy": "max", "activation_function": "log1p_relu", "word_embedding_dimension": None}
    contents = {
        "modules.json": [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}],
        "router_config.json": router,
        "config_sentence_transformers.json": {"model_type": "SparseEncoder", "prompts": {"query": "the "}},
        "document_1_SpladePooling/config.json": pooling,
        f"{words}/config.json": {"frozen": True},
        f"{words}/tokenizer.json": json.loads(tiny_bert.tokenizer().to_str()),
        f"{words}/tokenizer_config.json": {"model_max_length": 12},
    }
    for name, value in (files or {}).items():
        contents |= {name: value, f"{words}/{name}": value}
    numbers = np.random.default_rng(5).uniform(0.5, 3, len(tiny_bert.WORDS)).astype(np.float32)
    write_folder(folder / words, {}, {"weight": numbers})
    return write_folder(folder, contents)


def write_bge(folder: Path) -> Path:
    """Write a model with the two further heads of BGE-M3, without torch."""
    rng = np.random.default_rng(3)
    tiny_bert.write(folder, files={"1_Pooling/config.json": {"pooling_mode_cls_token": True}})
    for name, features in (("sparse_linear", 1), ("colbert_linear", 24)):
        weights = {"weight": rng.standard_normal((features, 24), np.float32), "bias": np.ones(features, np.float32)}
        save_file(weights, folder / f"{name}.safetensors")
    return folder


def write_plain(folder: Path) -> Path:
    """Write a masked language model, without torch."""
    return tiny_bert.write_masked(folder)
