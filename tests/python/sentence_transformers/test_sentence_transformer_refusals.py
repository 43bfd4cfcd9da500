"""SentenceTransformer refuses what it does not do, and arguments that are wrong, by the name of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_bert import TEXTS

from mha_native.sentence_transformers import SentenceTransformer


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"device": "cuda"}, "device must be 'cpu', .* got 'cuda'"),
        ({"device": 0}, "device must be 'cpu'"),
        ({"modules": []}, "modules must be None"),
        ({"backend": "onnx"}, "backend must be 'torch', .* got 'onnx'"),
        ({"model_kwargs": {"device_map": "auto"}}, "model_kwargs device_map must be 'cpu'"),
        ({"model_kwargs": {"load_in_8bit": True}}, "model_kwargs has unsupported entries: load_in_8bit"),
        ({"model_kwargs": {"use_safetensors": False}}, "model_kwargs use_safetensors must be True"),
        ({"model_kwargs": {"dtype": "float8"}}, "dtype must be .* got 'float8'"),
        ({"model_kwargs": ["dtype"]}, "model_kwargs must be a dict"),
        ({"processor_kwargs": {"padding_side": "left"}}, "processor_kwargs has unsupported entries: padding_side"),
        ({"processor_kwargs": {"model_max_length": 512}}, "model_max_length must be at most 20"),
        ({"config_kwargs": {"hidden_act": "relu"}}, "config_kwargs has unsupported entries: hidden_act"),
        ({"prompts": {"query": 3}}, "prompts must be a dict of str"),
        ({"default_prompt_name": ["query"]}, "default_prompt_name must be one of prompts, .* got"),
        ({"processor_kwargs": {"model_max_length": 0}}, "model_max_length must be at least 1; got 0"),
        ({"default_prompt_name": "none"}, "default_prompt_name must be one of prompts, .* got 'none'"),
        ({"similarity_fn_name": "maxsim"}, "similarity_fn_name must be one of cosine, dot, .* got 'maxsim'"),
        ({"truncate_dim": 0}, "truncate_dim must be .*at least 1.* got 0"),
        ({"model_name_or_path": None}, "model_name_or_path must be the directory"),
        ({"model_name_or_path": 3}, "model_name_or_path must be a path"),
    ],
    ids=str,
)
def test_what_the_constructor_refuses(arguments: dict[str, Any], problem: str, directory: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^SentenceTransformer: {problem}"):
        SentenceTransformer(**{"model_name_or_path": directory} | arguments)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"batch_size": 0}, "batch_size must be .*at least 1.* got 0"),
        ({"batch_size": 2.5}, "batch_size must be"),
        ({"foo": 1, "processing_kwargs": {}}, "a model of this kind has no arguments foo, processing_kwargs"),
        ({"precision": "int4"}, "precision must be one of .* got 'int4'"),
        ({"precision": "int8", "output_value": "token_embeddings"}, "precision must be 'float32' for token_embeddings"),
        ({"output_value": "logits"}, "output_value must be one of .* got 'logits'"),
        ({"device": "mps"}, "device must be 'cpu'"),
        ({"device": ["cpu", "cuda:1"]}, "device must be 'cpu'"),
        ({"prompt_name": "none"}, "prompt_name must be one of prompts, query, document; got 'none'"),
        ({"prompt_name": ["query"]}, r"prompt_name must be one of prompts, query, document; got \['query'\]"),
        ({"prompt": 3}, "prompt must be a str"),
        ({"truncate_dim": -3}, "truncate_dim must be"),
        ({"pool": {"processes": [1]}}, "pool must be a result of start_multi_process_pool"),
        ({"chunk_size": 0}, "chunk_size must be"),
        ({"inputs": None}, "inputs must be a str, or inputs in an order.* got NoneType"),
        ({"inputs": b"abc"}, "inputs must be a str, .* got bytes"),
        ({"inputs": ["a", None]}, "inputs must be str; got NoneType at 1"),
        ({"inputs": [["a", "b"]]}, "inputs must be str; got list at 0"),
        ({"inputs": {"text": "a"}}, "inputs must be a str, .* got dict"),
        ({"inputs": ["a", "\ud800"]}, "inputs: text 1 holds half of a surrogate pair"),
    ],
    ids=str,
)
def test_what_encode_refuses(arguments: dict[str, Any], problem: str, model: SentenceTransformer) -> None:
    for encode in (model.encode, model.encode_query):
        with pytest.raises((TypeError, ValueError), match=rf"^SentenceTransformer\.encode: {problem}"):
            encode(**{"inputs": TEXTS} | arguments)


@pytest.mark.parametrize(
    ("of_one", "of_other", "problem"),
    [
        (
            np.ones((2, 3)),
            np.ones((2, 4)),
            r"embeddings1 and embeddings2 must have as many .* got \[2, 3\] and \[2, 4\]",
        ),
        (None, np.ones((2, 3)), r"embeddings1 must be numbers \[N, E\] or \[E\]; got None"),
        (np.ones(3), "words", "embeddings2 must be numbers .* got 'words'"),
        (np.ones(3), [[1.0], [1.0, 2.0]], "embeddings2 must be numbers"),
        (np.ones(3), 2.0, "embeddings2 must be numbers .* got 2.0"),
        (np.ones((2, 3)) + 1j, np.ones((2, 3)), "embeddings1 must be numbers"),
    ],
    ids=["features", "nothing", "words", "ragged", "a number", "complex"],
)
@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_what_similarity_refuses(of_one: Any, of_other: Any, problem: str, name: str, model: Any) -> None:
    model.similarity_fn_name = name
    for function in ("similarity", "similarity_pairwise"):
        with pytest.raises((TypeError, ValueError), match=rf"^SentenceTransformer\.{function}: {problem}"):
            getattr(model, function)(of_one, of_other)


def test_other_devices_are_refused(model: SentenceTransformer) -> None:
    assert model.device == "cpu"
    assert model.device.type == "cpu"
    with pytest.raises(ValueError, match=r"^SentenceTransformer.to: device must be 'cpu'"):
        model.to("cuda")
    with pytest.raises(ValueError, match=r"^SentenceTransformer.start_multi_process_pool: target_devices must be"):
        model.start_multi_process_pool(["cuda:0"])
