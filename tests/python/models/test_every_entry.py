"""Every entry of every file of a model, damaged: the model is refused, or embeds as sentence-transformers does.

An embedding that is nearly right is worse than an error. Without sentence-transformers the tensors alone are damaged.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
from model_files import assert_not_loaded, write_safetensors
from safetensors.numpy import load_file
from saved_families import FAMILIES, save
from tolerance import EMBEDDING_BOUND

from mha_native.models import SentenceEncoder

Array = np.ndarray[Any, Any]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", *map("##{}".format, "abcdefghij"), "the", "dog"]
TEXTS = ["", "a", "the dog", "THE Dog", "abc fade jab", "the " * 50, "bad unknown [MASK] cab", "dog. dog! dog?"]
FILES = [
    "config.json", "tokenizer_config.json", "tokenizer.json", "modules.json", "sentence_bert_config.json",
    "config_sentence_transformers.json", "1_Pooling/config.json", "2_Dense/config.json", "3_Normalize/config.json",
]  # fmt: skip

# What takes the place of an entry: other types, negative, huge and nearly right values.
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 7, 2**40, 10**30, 0.5, 1e300, "", "x", "bert", "gelu_new", "cls", "dot",
    [], {}, ["x"], [1],
]  # fmt: skip
ORDINARY, ALL = 60, 1 << 30  # damaged versions of a file: a sample of them, all
TIMES = [ORDINARY, pytest.param(ALL, marks=pytest.mark.exhaustive)]


@pytest.mark.parametrize("name", sorted(tiny_bert.tensors(tiny_bert.config())))
def test_every_tensor(name: str, tmp_path: Path) -> None:
    weights = tiny_bert.tensors(tiny_bert.config())
    path = tiny_bert.write(tmp_path) / "model.safetensors"
    tensor = weights[name]
    not_finite = tensor.copy()
    not_finite.flat[-1] = np.nan
    for damaged in (None, not_finite, tensor[:-1], tensor[np.newaxis], tensor.reshape(-1, 1), tensor[:0]):
        others = {key: value for key, value in weights.items() if key != name}
        write_safetensors(path, others if damaged is None else others | {name: damaged}, {})
        assert_not_loaded(tmp_path, name)


@pytest.fixture(scope="module")
def oracle() -> Any:
    return pytest.importorskip("sentence_transformers", minversion="6.2")


@pytest.fixture(scope="module")
def directory(oracle: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with every kind of file that sentence-transformers 6.2 writes."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    directory = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
        max_position_embeddings=32, initializer_range=0.5,
    )  # fmt: skip
    transformers.BertModel(config).eval().save_pretrained(directory)
    vocab = {word: i for i, word in enumerate(WORDS)}
    transformers.BertTokenizer(vocab=vocab, model_max_length=20).save_pretrained(directory)
    behind = [modules.Pooling(24, "mean"), modules.Dense(24, 10), modules.Normalize()]
    model = oracle.SentenceTransformer(
        modules=[modules.Transformer(str(directory)), *behind],
        device="cpu",
        prompts={"query": "the ", "document": "dog "},
        default_prompt_name="query",
        truncate_dim=7,
    )
    model.save(str(directory / "saved"))
    return directory / "saved"


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every object or list in a value of JSON with each of its keys. Of the numbers of words that of the first."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys[:1] if len(keys) == len(WORDS) else keys:
        yield value, key
        yield from _places(value[key])


def _damaged(raw: str) -> Iterator[tuple[str, str]]:
    """JSON with one entry missing, or of another value, and what was done."""
    value = json.loads(raw)
    for container, key in _places(value):
        kept = copy.copy(container)
        del container[key]
        yield f"{key!r} removed", json.dumps(value)
        if isinstance(container, list):
            container.insert(key, kept[key])
        for odd in ODD:
            container[key] = odd
            if type(odd) is not type(kept[key]) or odd != kept[key]:
                yield f"{key!r}: {odd!r}", json.dumps(value)
        container[key] = kept[key]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("name", FILES)
def test_every_entry(name: str, times: int, oracle: Any, directory: Path, tmp_path: Path) -> None:
    _assert_refused_or_right(name, times, oracle, directory, tmp_path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("model_type", FAMILIES[1:])
def test_every_entry_of_other_families(model_type: str, name: str, times: int, oracle: Any, tmp_path: Path) -> None:
    directory = save(tmp_path / "whole", model_type)
    _assert_refused_or_right(name, times // 6, oracle, directory, tmp_path / "damaged")


def _embeddings(directory: Path) -> Array | str:
    """What a model gives, or the message that refuses it."""
    try:
        return SentenceEncoder.from_pretrained(directory).encode(TEXTS)
    except (ValueError, OSError) as error:
        return str(error)


def _assert_refused_or_right(name: str, times: int, oracle: Any, directory: Path, tmp_path: Path) -> None:
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    raw = (directory / name).read_text(encoding="utf-8")
    whole = SentenceEncoder.from_pretrained(directory).encode(TEXTS)
    versions = list(_damaged(raw))
    for what, text in random.Random(name).sample(versions, min(times, len(versions))):
        (tmp_path / name).write_text(text, encoding="utf-8")
        actual = _embeddings(tmp_path)
        if isinstance(actual, str):
            assert len(actual.splitlines()) == 1, what
            continue
        try:
            expected = oracle.SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS)
        except Exception:  # an entry that is of no use here; or a long text, for which RoBERTa has too few positions
            expected = actual if "model_max_length" in what else whole
        assert actual.shape == expected.shape, what
        np.testing.assert_allclose(actual, expected, rtol=0, atol=EMBEDDING_BOUND, err_msg=what)


def test_every_tensor_of_a_dense(tmp_path: Path) -> None:
    tiny_bert.write(tmp_path, files={"modules.json": tiny_bert.modules("Transformer", "Pooling", "Dense")})
    tiny_bert.write_dense(tmp_path, 2, 24, 5)
    path = tmp_path / "2_Dense" / "model.safetensors"
    weights = load_file(path)
    for name, tensor in weights.items():
        for damaged in (None, tensor * np.float32(np.nan), tensor[:-1], tensor[np.newaxis]):
            others = {key: value for key, value in weights.items() if key != name}
            write_safetensors(path, others if damaged is None else others | {name: damaged}, {})
            assert_not_loaded(tmp_path, name)
    settings = {"in_features": 24, "out_features": 5, "bias": False}
    write_safetensors(path, weights, {})
    (tmp_path / "2_Dense" / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    assert_not_loaded(tmp_path, "linear.bias")
