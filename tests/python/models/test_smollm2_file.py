"""The GGUF file of SmolLM2-135M-Instruct, a model that people run: its numbers, its config and its tokens."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import odd_texts
import pytest
from decoder_logits import logits, opened

from mha_native.models.files.gguf.file import GGUFFile
from mha_native.models.files.gguf.source import GGUFSource


@pytest.fixture(scope="module")
def source(language_model_file: Path) -> GGUFSource:
    return GGUFSource(language_model_file)


def test_config(source: GGUFSource) -> None:
    assert source.config == {
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": 49152,
        "tie_word_embeddings": True,
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rms_norm_eps": float(np.float32(1e-5)),
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    }
    assert source.generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    assert source.chat_template is not None
    assert "<|im_start|>assistant" in source.chat_template
    assert source.tokenizer_config["eos_token"] == "<|im_end|>"


def test_some_numbers(source: GGUFSource) -> None:
    """What they are was found with the package gguf 0.19; the test below compares all of them."""
    shapes = {
        "norm.weight": (576,),
        "embed_tokens.weight": (49152, 576),
        "layers.29.self_attn.k_proj.weight": (192, 576),
    }
    with source.tensors(shapes.items(), "model.") as tensors:
        digests = {name: hashlib.sha256(tensors[name].tobytes()).hexdigest()[:16] for name in shapes}
    assert digests == {
        "norm.weight": "3b87f8e27335e67f",
        "embed_tokens.weight": "3fd491c8066dd9dc",
        "layers.29.self_attn.k_proj.weight": "8e99b2450d5f3d53",
    }


@pytest.mark.exhaustive
def test_all_numbers_are_those_of_the_package_gguf(language_model_file: Path) -> None:
    gguf = pytest.importorskip("gguf")
    with GGUFFile(language_model_file) as file:
        for tensor in gguf.GGUFReader(language_model_file).tensors:
            assert np.array_equal(file.read(tensor.name), gguf.dequantize(tensor.data, tensor.tensor_type))


def test_tokens(source: GGUFSource) -> None:
    """Of the tokenizer of the model: digits are tokens of their own, with the spaces before them in other tokens."""
    pytest.importorskip("tokenizers")
    tokenizer = source.tokenizer()
    assert tokenizer.encode("The capital of France is").ids == [504, 3575, 282, 4649, 314]
    assert tokenizer.encode("<|im_start|>user\nin  2024<|im_end|>").tokens == [
        "<|im_start|>", "user", "Ċ", "in", "ĠĠ", "2", "0", "2", "4", "<|im_end|>",
    ]  # fmt: skip
    for text in odd_texts.texts(100):
        if "\x00" not in text:
            assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_what_comes_next(source: GGUFSource) -> None:
    pytest.importorskip("tokenizers")
    tokenizer = source.tokenizer()
    tokens = tokenizer.encode("The capital of France is").ids
    (rows,) = logits(opened(source), [tokens])
    assert tokenizer.decode([int(rows[-1].argmax())]) == " Paris"


@pytest.mark.exhaustive
def test_tokens_are_those_of_transformers(source: GGUFSource) -> None:
    """Which splits digits together with spaces before them in place of by themselves, so texts with digits differ."""
    pytest.importorskip("gguf")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(source.path.parent, gguf_file=source.path.name)
    tokenizer = source.tokenizer()
    for text in odd_texts.texts(20000):
        if not any(character.isnumeric() for character in text):
            assert tokenizer.encode(text).ids == theirs(text).input_ids, text
