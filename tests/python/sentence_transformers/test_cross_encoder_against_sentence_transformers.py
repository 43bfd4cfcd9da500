"""CrossEncoder beside that of sentence-transformers, which saved the models: the same scores and rankings.

Skipped without that library.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saved_families
from saved_families import FAMILIES
from tolerance import assert_same_bits

from mha_native.sentence_transformers import CrossEncoder

sentence_transformers = pytest.importorskip("sentence_transformers", minversion="6.2")

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore")

BOUND = 1e-5

QUERY = "the dog a b"
DOCUMENTS = [
    "", "a", "the dog", "THE Dog", "abc fade jab the dog", "  two  blanks\tand\na line ", "dog. dog! dog?",
    "naïve façade — 東京 😀 the dog", "a <mask> b", "[MASK] a [SEP] b", " ".join("abcdefghij"), "the dog " * 40,
]  # fmt: skip
PAIRS = (
    [(QUERY, text) for text in DOCUMENTS] + [(text, QUERY) for text in DOCUMENTS] + [("a b c " * 20, "the dog " * 20)]
)


def _save(directory: Path, model_type: str = "bert", dtype: str = "float32", num_labels: int = 1) -> Path:
    """A model whose logits are about as large as those of trained ones."""
    head = "ForSequenceClassification"
    return saved_families.save(directory, model_type, head, dtype, num_labels=num_labels, initializer_range=0.2)


def _load(directory: Path, **arguments: Any) -> Any:
    return sentence_transformers.CrossEncoder(str(directory), device="cpu", **arguments)


def _assert_alike(directory: Path, **arguments: Any) -> tuple[CrossEncoder, Any]:
    """The same settings and scores."""
    theirs = _load(directory, model_kwargs={"dtype": torch.float64}, **arguments)
    ours = CrossEncoder(str(directory), **arguments)
    assert (ours.num_labels, ours.max_seq_length) == (theirs.num_labels, theirs.max_seq_length)
    assert (ours.prompts, ours.default_prompt_name) == (theirs.prompts, theirs.default_prompt_name)
    for options in ({}, {"apply_softmax": True}, {"prompt": "dog: "}, {"activation_fn": torch.nn.Tanh()}):
        expected, actual = theirs.predict(PAIRS, **options), ours.predict(PAIRS, **options)
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        assert np.abs(actual - expected).max() < BOUND * max(1, np.abs(expected).max()), options
    scores = ours.predict(PAIRS)
    for pair, score in zip(PAIRS, scores, strict=True):
        assert_same_bits(ours.predict([pair])[0], score, label=repr(pair))
    return ours, theirs


@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_each_family(model_type: str, dtype: str, num_labels: int, tmp_path: Path) -> None:
    _save(tmp_path / "plain", model_type, dtype, num_labels)
    ours, theirs = _assert_alike(tmp_path / "plain")
    _load(tmp_path / "plain").save_pretrained(str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "modules.json").exists()
    again, _ = _assert_alike(tmp_path / "saved")
    assert_same_bits(again.predict(PAIRS), ours.predict(PAIRS))
    if num_labels == 1:
        for options in ({}, {"top_k": 3}, {"return_documents": True}, {"top_k": 100, "prompt": "a "}):
            actual, expected = ours.rank(QUERY, DOCUMENTS, **options), theirs.rank(QUERY, DOCUMENTS, **options)
            assert [sorted(entry) for entry in actual] == [sorted(entry) for entry in expected]
            assert [entry["corpus_id"] for entry in actual] == [entry["corpus_id"] for entry in expected]
            assert [entry.get("text") for entry in actual] == [entry.get("text") for entry in expected]
            assert max(abs(a["score"] - b["score"]) for a, b in zip(actual, expected, strict=True)) < BOUND
    else:
        for model in (ours, theirs):
            with pytest.raises(ValueError, match="label"):
                model.rank(QUERY, DOCUMENTS)


@pytest.mark.parametrize("max_length", [12, 13, 24])
def test_a_max_length(max_length: int, tmp_path: Path) -> None:
    _assert_alike(_save(tmp_path), max_length=max_length)


@pytest.mark.parametrize("name", ["Identity", "Sigmoid", "Tanh", "ReLU", "GELU", "Softplus"])
@pytest.mark.parametrize("place", ["saved", "sentence_transformers", "sbert_ce_default_activation_function"])
def test_the_activation_of_a_model(name: str, place: str, tmp_path: Path) -> None:
    _save(tmp_path / "plain")
    directory, path = tmp_path / "plain", tmp_path / "plain" / "config.json"
    values = json.loads(path.read_text())
    if place == "saved":
        kind = getattr(torch.nn, name)
        model = _load(directory, activation_fn=kind())
        directory = tmp_path / "saved"
        model.save_pretrained(str(directory))
    else:
        full = f"torch.nn.modules.{'linear' if name == 'Identity' else 'activation'}.{name}"
        values[place] = {"activation_fn": full, "version": "4.0"} if place == "sentence_transformers" else full
        path.write_text(json.dumps(values))
    _assert_alike(directory)


def test_prompts(tmp_path: Path) -> None:
    _save(tmp_path / "plain")
    given = {"query": "dog a: ", "other": "b "}
    model = _load(tmp_path / "plain", prompts=given, default_prompt_name="query")
    model.save_pretrained(str(tmp_path / "saved"))
    ours, theirs = _assert_alike(tmp_path / "saved")
    for options in ({}, {"prompt_name": "other"}, {"prompt": ""}):
        assert np.abs(ours.predict(PAIRS, **options) - theirs.predict(PAIRS, **options)).max() < BOUND  # in 0 ... 1
    assert not np.array_equal(ours.predict(PAIRS), ours.predict(PAIRS, prompt=""))


@pytest.mark.parametrize(
    "given",
    [("dog", "a"), ["dog", "a"], [("dog", "a")], [["dog", "a"], ["a", "b"]], np.array([["dog", "a"]]), [], "dog"],
)
def test_the_form_of_results(given: Any, tmp_path: Path) -> None:
    _save(tmp_path)
    theirs = _load(tmp_path)
    ours = CrossEncoder(str(tmp_path))
    for options in ({}, {"convert_to_tensor": True}, {"convert_to_numpy": False}):
        expected, actual = theirs.predict(given, **options), ours.predict(given, **options)
        assert type(actual) is type(expected)
        assert np.shape(actual) == np.shape(expected)
        assert len(given) == 0 or np.allclose(np.asarray(actual), np.asarray(expected), atol=BOUND)
