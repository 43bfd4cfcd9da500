"""Dense modules behind the pooling: each activation by its definition, biases, and what is refused."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bert_oracle
import numpy as np
import pytest
import tiny_bert
from model_files import assert_not_loaded, write_safetensors
from safetensors.numpy import save_file
from tiny_bert import TEXTS
from tolerance import EMBEDDING_BOUND, assert_close, assert_same_bits

from mha_native.models import SentenceEncoder
from mha_native.models.heads.activations import ACTIVATIONS

Array = np.ndarray[Any, Any]

# Of one number in float64, by the documentation of torch.
DEFINITIONS: dict[str, Callable[[float], float]] = {
    "Identity": lambda x: x,
    "ELU": lambda x: x if x > 0 else math.exp(x) - 1,
    "GELU": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "Hardtanh": lambda x: min(max(x, -1), 1),
    "LeakyReLU": lambda x: max(0, x) + 0.01 * min(0, x),
    "Mish": lambda x: x * math.tanh(math.log1p(math.exp(x))),
    "ReLU": lambda x: max(0, x),
    "ReLU6": lambda x: min(max(0, x), 6),
    "SiLU": lambda x: x / (1 + math.exp(-x)),
    "Sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "Softplus": lambda x: math.log1p(math.exp(x)),
    "Softsign": lambda x: x / (1 + abs(x)),
    "Tanh": math.tanh,
}


def _name(kind: str) -> str:
    """As sentence-transformers saves it."""
    return f"torch.nn.modules.{'linear' if kind == 'Identity' else 'activation'}.{kind}"


def _write(directory: Path, *behind: str) -> Path:
    return tiny_bert.write(directory, files={"modules.json": tiny_bert.modules("Transformer", "Pooling", *behind)})


def _means() -> Array:
    settings = tiny_bert.config()
    tensors = tiny_bert.tensors(settings)
    return np.stack([bert_oracle.sentence_embedding(tensors, settings, tiny_bert.ids(t), False) for t in TEXTS])


def _applied(x: Array, weights: dict[str, Array], kind: str) -> Array:
    sums = x @ weights["linear.weight"].astype(np.float64).T + weights.get("linear.bias", 0)
    return np.vectorize(DEFINITIONS[kind], otypes=[np.float64])(sums)


def _assert_embeddings(actual: Array, expected: Array) -> None:
    assert actual.dtype == np.float32
    assert_close(actual, expected, EMBEDDING_BOUND * np.maximum(np.abs(expected), 1), label="embeddings")


def test_all_activations_are_here() -> None:
    assert DEFINITIONS.keys() == ACTIVATIONS.keys()


@pytest.mark.parametrize("kind", DEFINITIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_each_activation(kind: str, bias: bool, tmp_path: Path) -> None:
    _write(tmp_path, "Dense")
    weights = tiny_bert.write_dense(tmp_path, 2, 24, 10, bias=bias, activation_function=_name(kind))
    model = SentenceEncoder.from_pretrained(tmp_path)
    assert model.embed_dim == 10
    together = model.encode(TEXTS)
    _assert_embeddings(together, _applied(_means(), weights, kind))
    for text, embedding in zip(TEXTS, together, strict=True):
        assert_same_bits(model.encode(text), embedding, label=text)


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_activations_of_large_numbers(kind: str) -> None:
    x = np.array([-3e38, -1e5, -100, -20, -0.0, 0, 1e-30, 20, 100, 1e5, 3e38], np.float32)
    with np.errstate(all="ignore"):
        y = ACTIVATIONS[kind](x)
    assert np.isfinite(y).all()
    assert (y[x >= 20] == ACTIVATIONS[kind](x[x >= 20])).all()


def test_several_modules_in_their_order(tmp_path: Path) -> None:
    _write(tmp_path, "Dense", "Normalize", "Dense", "Normalize")
    first = tiny_bert.write_dense(tmp_path, 2, 24, 30, activation_function=_name("Identity"), use_residual=False)
    second = tiny_bert.write_dense(tmp_path, 4, 30, 8)  # Tanh where none is named
    model = SentenceEncoder.from_pretrained(tmp_path)
    inner = _applied(_means(), first, "Identity")
    inner /= np.linalg.norm(inner, axis=1, keepdims=True)
    plain = _applied(inner, second, "Tanh")
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    _assert_embeddings(model.encode(TEXTS), plain / lengths)
    _assert_embeddings(model.encode(TEXTS, normalize=False), plain)
    _assert_embeddings(model.encode(TEXTS, truncate_dim=3), plain[:, :3] / lengths)
    short = plain[:, :3] / np.linalg.norm(plain[:, :3], axis=1, keepdims=True)
    _assert_embeddings(model.encode(TEXTS, truncate_dim=3, normalize=True), short)
    for dtype, bound in (("float64", 1e-6), ("bfloat16", 0.1)):
        other = SentenceEncoder.from_pretrained(tmp_path, dtype=dtype).encode(TEXTS)
        assert_close(other, plain / lengths, np.full(plain.shape, bound), label=dtype)
    assert_same_bits(pickle.loads(pickle.dumps(model)).encode(TEXTS), model.encode(TEXTS))
    _assert_embeddings(model.astype("float64").encode(TEXTS, num_threads=2), plain / lengths)


def test_a_dense_behind_a_concatenation(tmp_path: Path) -> None:
    files = {
        "modules.json": tiny_bert.modules("Transformer", "Pooling", "Dense"),
        "1_Pooling/config.json": tiny_bert.pooling("mean", "max"),
    }
    tiny_bert.write(tmp_path, files=files)
    tiny_bert.write_dense(tmp_path, 2, 24, 10)
    assert_not_loaded(tmp_path, str(tmp_path / "2_Dense" / "config.json"), "in_features must be 48; got 24")
    tiny_bert.write_dense(tmp_path, 2, 48, 10)
    assert SentenceEncoder.from_pretrained(tmp_path).embed_dim == 10


def test_weights_in_16_bits(tmp_path: Path) -> None:
    _write(tmp_path, "Dense")
    weights = tiny_bert.write_dense(tmp_path, 2, 24, 10)
    write_safetensors(tmp_path / "2_Dense" / "model.safetensors", weights, dict.fromkeys(weights, "F16"))
    rounded = {name: tensor.astype(np.float16).astype(np.float32) for name, tensor in weights.items()}
    _assert_embeddings(SentenceEncoder.from_pretrained(tmp_path).encode(TEXTS), _applied(_means(), rounded, "Tanh"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("activation_function", "torch.nn.modules.activation.Threshold"),
        ("activation_function", "torch.nn.functional.tanh"),
        ("activation_function", "os.system"),
        ("activation_function", "Tanh"),
        ("activation_function", ""),
        ("activation_function", None),
        ("activation_function", ["Tanh"]),
        ("use_residual", True),
        ("bias", "no"),
        ("in_features", 23),
        ("in_features", None),
        ("out_features", 0),
        ("out_features", 10**30),
        ("out_features", "10"),
        ("module_input_name", "token_embeddings"),
        ("module_output_name", "token_embeddings"),
        ("module_output_name", 3),
        ("scale", 2),
    ],
    ids=str,
)
def test_what_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    _write(tmp_path, "Dense")
    tiny_bert.write_dense(tmp_path, 2, 24, 10)
    path = tmp_path / "2_Dense" / "config.json"
    path.write_text(json.dumps({"in_features": 24, "out_features": 10} | {key: value}), encoding="utf-8")
    (tmp_path / "model.safetensors").unlink()  # it is refused before weights are read
    assert_not_loaded(tmp_path, str(path), key)


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    _write(tmp_path, "Dense")
    weights = tiny_bert.write_dense(tmp_path, 2, 24, 10)
    path = tmp_path / "2_Dense" / "model.safetensors"
    save_file({"linear.weight": weights["linear.weight"]}, path)
    assert_not_loaded(tmp_path, str(path), "missing: linear.bias")
    save_file(weights | {"linear.weight": weights["linear.weight"].T.copy()}, path)
    assert_not_loaded(tmp_path, str(path), "linear.weight [24, 10] instead of [10, 24]")
    save_file(weights | {"linear.bias": np.full(10, np.nan, np.float32)}, path)
    assert_not_loaded(tmp_path, str(path), "linear.bias must hold finite numbers")
    path.unlink()
    assert_not_loaded(tmp_path, str(path), "does not exist", error=FileNotFoundError)
    (path.parent / "pytorch_model.bin").touch()
    assert_not_loaded(tmp_path, "2_Dense", "pickle")
    (path.parent / "config.json").unlink()
    assert_not_loaded(tmp_path, str(path.parent / "config.json"), error=FileNotFoundError)
