"""What plugs for embeddings have in common: the model, how it is called, and what of it goes through pickle."""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

import tiny_bert
from tiny_bert import TEXTS
from tolerance import assert_same_bits

import mha_native
from mha_native.interop._text_embedder import opened
from mha_native.models import SentenceEncoder


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tiny_bert.write(tmp_path / "model"))


@pytest.mark.parametrize(
    "options", [{}, {"prompt": "the "}, {"truncate_dim": 5, "normalize": True}, {"num_threads": 1}], ids=str
)
def test_embeddings_are_those_of_the_encoder(options: dict[str, Any], directory: str) -> None:
    expected = SentenceEncoder.from_pretrained(directory).encode(TEXTS, **options)
    model = opened("Plug", directory, **options)
    assert model.num_features == expected.shape[1]
    for texts in (TEXTS, tuple(TEXTS), np.array(TEXTS), np.array(TEXTS, object), iter(TEXTS)):
        assert_same_bits(model.embeddings(texts), expected)


def test_options_may_be_numbers_of_numpy(directory: str) -> None:
    expected = SentenceEncoder.from_pretrained(directory).encode(TEXTS, truncate_dim=5, normalize=True)
    model = opened("Plug", directory, truncate_dim=np.int64(5), normalize=np.bool_(True))  # type: ignore[typeddict-item]
    assert_same_bits(pickle.loads(pickle.dumps(model)).embeddings(TEXTS), expected)


def test_a_path_is_not_looked_up_in_the_cache(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError) as refused:
        opened("Plug", Path("no/such"))
    assert "cache" not in str(refused.value)
    monkeypatch.chdir(Path(directory).parent)
    expected = SentenceEncoder.from_pretrained(directory).encode(TEXTS)
    assert_same_bits(opened("Plug", Path("model")).embeddings(TEXTS), expected)


def test_embeddings_of_no_texts(directory: str) -> None:
    found = opened("Plug", directory).embeddings([], shows_progress=True)
    assert (found.shape, found.dtype) == ((0, 24), np.float32)


def test_formats_are_those_of_the_encoder(directory: str) -> None:
    expected = SentenceEncoder.from_pretrained(directory, weight_dtype="int8").encode(TEXTS)
    assert_same_bits(opened("Plug", directory, weight_dtype="int8").embeddings(TEXTS), expected)


def test_pickles_have_the_name_of_a_model_and_not_its_weights(directory: str) -> None:
    model = opened("Plug", directory, truncate_dim=7)
    expected = model.embeddings(TEXTS)
    pickled = pickle.dumps(model)
    assert len(pickled) < 1000
    assert_same_bits(pickle.loads(pickled).embeddings(TEXTS), expected)
    assert_same_bits(model.embeddings(TEXTS), expected)  # which is open still


def test_an_open_model_is_taken_along(directory: str, tmp_path: Path) -> None:
    encoder = SentenceEncoder.from_pretrained(directory)
    model = opened("Plug", encoder)
    expected = encoder.encode(TEXTS)
    assert_same_bits(model.embeddings(TEXTS), expected)
    pickled = pickle.dumps(model)
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    assert_same_bits(pickle.loads(pickled).embeddings(TEXTS), expected)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prompt_name": "summary"}, ValueError, "summary"),
        ({"prompt_name": "query", "prompt": "x "}, ValueError, "prompt and prompt_name exclude each other"),
        ({"batch_size": 3}, TypeError, "^Plug: got an unexpected keyword argument 'batch_size'"),
        ({"truncate_dim": 0}, ValueError, "truncate_dim must be"),
        ({"normalize": "yes"}, TypeError, "normalize"),
        ({"weight_dtype": "int2"}, TypeError, "weight_dtype"),
        ({"model": "no/such"}, FileNotFoundError, "no/such"),
        ({"model": 3}, TypeError, "must be a path; got 3"),
    ],
    ids=str,
)
def test_mistakes_are_found_when_it_is_made(
    arguments: dict[str, Any], error: type[Exception], message: str, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(error, match=message):
        opened("Plug", **{"model": directory} | arguments)


def test_an_open_model_has_a_dtype(directory: str) -> None:
    with pytest.raises(ValueError, match="weight_dtype must be None for a SentenceEncoder, which has one; got 'int8'"):
        opened("Plug", SentenceEncoder.from_pretrained(directory), weight_dtype="int8")


@pytest.mark.parametrize("texts", ["a dog", 3, {"a": 1}, np.array([["a"]]), ["a", None]], ids=str)
def test_what_are_no_texts_is_refused(texts: Any, directory: str) -> None:
    with pytest.raises(TypeError, match=r"texts must be .*; got \w+"):
        opened("Plug", directory).embeddings(texts)


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("bertopic", "bertopic"),
        ("keybert", "keybert"),
        ("sklearn", "scikit-learn"),
    ],
)
def test_a_plug_says_what_to_install(module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"mha_native.interop.{module}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    for imported in [each for each in sys.modules if each.partition(".")[0] == module] or [module]:
        monkeypatch.setitem(sys.modules, imported, None)
    with pytest.raises(ImportError, match=rf"^{name}: needs the package {package}: pip install {package} \("):
        importlib.import_module(name)


def test_the_first_module_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mha_native.sentence_transformers._transformer_module", raising=False)
    for package in [each for each in sys.modules if each.partition(".")[0] == "sentence_transformers"]:
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    name = r"mha_native\.sentence_transformers\.Transformer"
    message = rf"^{name}: needs the package .*: pip install sentence-transformers \("
    with pytest.raises(ImportError, match=message):
        _ = mha_native.sentence_transformers.Transformer
