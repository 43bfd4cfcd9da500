"""TextClassifier beside the same in float64, and what it takes and gives."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
import tiny_classifiers
from safetensors.numpy import load_file, save_file
from tolerance import assert_same_bits

from mha_native.models import TextClassifier
from mha_native.models.text import batching as _batching

BOUND = 1e-5

TEXTS = ["", "dog", "the dog", "a b c d e f g h", "the cat !", "x unknown y"]
PAIRS = [(a, b) for a in TEXTS[:3] for b in TEXTS]


@pytest.fixture
def model(tmp_path: Path) -> TextClassifier:
    return TextClassifier.from_pretrained(tiny_classifiers.write(tmp_path))


@pytest.mark.parametrize("model_type", tiny_classifiers.HEADS)
def test_the_logits_of_each_family(model_type: str, tmp_path: Path) -> None:
    model = TextClassifier.from_pretrained(tiny_classifiers.write(tmp_path, model_type))
    given = [(text,) for text in TEXTS] + PAIRS
    actual = model.predict_proba([text if len(text) == 2 else text[0] for text in given], function_to_apply="none")
    for text, row in zip(given, actual, strict=True):
        tokens, types = tiny_classifiers.ids(*text)
        assert np.abs(row - tiny_classifiers.logits(model_type, 3, tokens, types)).max() < BOUND, text


def test_types_matter(model: TextClassifier) -> None:
    tokens, types = tiny_classifiers.ids("dog", "cat")
    expected = tiny_classifiers.logits("bert", 3, tokens, [0] * len(types))
    assert np.abs(model.predict_proba([("dog", "cat")], function_to_apply="none")[0] - expected).max() > 100 * BOUND


@pytest.mark.parametrize(
    "settings", [{"model_input_names": ["input_ids", "attention_mask"]}, {"tokenizer_class": "PreTrainedTokenizerFast"}]
)
def test_no_types_where_the_tokenizer_has_none(settings: dict[str, Any], tmp_path: Path) -> None:
    files = {"tokenizer_config.json": settings}
    model = TextClassifier.from_pretrained(tiny_classifiers.write(tmp_path, files=files))
    tokens, types = tiny_classifiers.ids("dog", "cat")
    expected = tiny_classifiers.logits("bert", 3, tokens, [0] * len(types))
    assert np.abs(model.predict_proba([("dog", "cat")], function_to_apply="none")[0] - expected).max() < BOUND


@pytest.mark.parametrize("problem", [None, "single_label_classification", "multi_label_classification", "regression"])
@pytest.mark.parametrize("labels", [1, 3])
def test_what_makes_scores(problem: str | None, labels: int, tmp_path: Path) -> None:
    directory = tiny_classifiers.write(tmp_path, labels=labels, problem_type=problem)
    if labels == 1 and problem == "single_label_classification":
        with pytest.raises(ValueError, match="problem_type"):
            TextClassifier.from_pretrained(directory)
        return
    logits = tiny_classifiers.logits("bert", labels, *tiny_classifiers.ids("the dog"))
    expected = np.exp(logits) / np.exp(logits).sum()
    if problem == "regression":
        expected = logits
    elif problem == "multi_label_classification" or labels == 1:
        expected = 1 / (1 + np.exp(-logits))
    assert np.abs(TextClassifier.from_pretrained(directory).predict_proba("the dog") - expected).max() < BOUND


def test_the_form_of_results(model: TextClassifier) -> None:
    (best,) = model("the dog")
    assert set(best) == {"label", "score"}
    assert type(best["score"]) is float
    whole = model("the dog", top_k=None)
    assert [entry["label"] for entry in whole] == [f"label {i}" for i in np.argsort(-model.predict_proba("the dog"))]
    assert whole[0] == best
    assert model(["the dog", "cat"]) == [best, *model("cat")]
    assert model("the dog", top_k=2) == whole[:2]
    assert model(["the dog"], top_k=2) == [whole[:2]]
    assert model("the dog", top_k=100) == whole
    pair = model({"text": "the dog", "text_pair": "cat"})
    assert pair == model([("the dog", "cat")]) == model([["the dog", "cat"]])
    assert model({"text": "the dog"}) == model({"text": "the dog", "text_pair": None}) == [best]
    assert model([]) == []
    assert model.predict_proba([]).shape == (0, 3)
    assert model.predict_proba("dog").shape == (3,)
    assert model.labels == ("label 0", "label 1", "label 2")


def test_the_bits_of_a_text_do_not_depend_on_its_batch(model: TextClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [*TEXTS, *PAIRS] * 5
    for most in (10, 50, 5000):
        monkeypatch.setattr(_batching, "MOST_TOKENS", most)
        for function in ("softmax", "sigmoid", "none"):
            scores = model.predict_proba(given, function_to_apply=function)
            for text, row in zip(given, scores, strict=True):
                assert_same_bits(model.predict_proba([text], function_to_apply=function)[0], row)
    batches = list(model.predict_proba_batches(iter(given)))
    assert_same_bits(np.concatenate(batches), model.predict_proba(given))


def test_texts_are_read_as_needed(model: TextClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_batching, "MOST_TOKENS", 20)
    monkeypatch.setattr(_batching, "MOST_TEXTS", 4)
    read = 0

    def texts() -> Any:
        nonlocal read
        for _ in range(1000):
            read += 1
            yield "the dog"

    given = 0
    for rows in model.predict_proba_batches(texts()):
        given += len(rows)
        assert read <= given + 16
    assert given == 1000


def test_of_a_long_pair_the_longer_text_is_cut_first(model: TextClassifier) -> None:
    long = " ".join("abcdefghijklmnopqrstuvwxyz")
    for pair in [("dog", long), (long, "dog"), (long, long), (long, long + " the")]:
        parts = [text.split() for text in pair]
        while sum(map(len, parts)) > 17:  # beside three special tokens
            longer = parts[0] if len(parts[0]) >= len(parts[1]) else parts[1]
            longer.pop()
        assert_same_bits(
            model.predict_proba([pair])[0], model.predict_proba([(" ".join(parts[0]), " ".join(parts[1]))])[0]
        )


def test_a_copy(model: TextClassifier) -> None:
    for copy in (pickle.loads(pickle.dumps(model)), model.astype("float32")):
        assert_same_bits(copy.predict_proba(PAIRS), model.predict_proba(PAIRS))
    narrow = model.astype("bfloat16")
    assert str(narrow.dtype) == "bfloat16" or narrow.dtype.itemsize == 2
    assert np.abs(narrow.predict_proba(PAIRS) - model.predict_proba(PAIRS)).max() < 0.05
    assert repr(model).startswith(
        "TextClassifier(num_labels=3, embed_dim=24, num_layers=2, num_heads=3, vocab_size=37, max_length=20"
    )


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (3, TypeError, "TextClassifier: texts must be"),
        ([3], TypeError, "TextClassifier: texts must be str; got int at 0"),
        (["a", b"b"], TypeError, "got bytes at 1"),
        ([("a", "b", "c")], ValueError, "two texts; got 3 at 0"),
        ([("a", 3)], TypeError, "got int at 0"),
        ([{"text_pair": "b"}], ValueError, "a dict must have text"),
        ([{"text": "b", "more": 1}], ValueError, "a dict must have text"),
        (["a", "\ud800"], ValueError, "text 1 holds half of a surrogate pair"),
    ],
)
def test_what_is_no_text(given: Any, error: type[Exception], words: str, model: TextClassifier) -> None:
    with pytest.raises(error, match=words):
        model(given)


def test_wrong_arguments(model: TextClassifier) -> None:
    for arguments in ({"top_k": 0}, {"top_k": "a"}, {"function_to_apply": "tanh"}, {"num_threads": 0}):
        with pytest.raises((TypeError, ValueError), match=f"^TextClassifier: {next(iter(arguments))}"):
            model("a", **arguments)


def _config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in values.items() if value != "absent"}))


def test_labels_without_names(tmp_path: Path) -> None:
    directory = tiny_classifiers.write(tmp_path, labels=2)
    for changes in ({"id2label": "absent"}, {"id2label": None}, {"id2label": None, "num_labels": 2}):
        _config(directory, **changes)
        assert TextClassifier.from_pretrained(directory).labels == ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id2label": {}}, "id2label must be an object of 1"),
        ({"id2label": ["a", "b", "c"]}, "id2label must be an object"),
        ({"id2label": 3}, "id2label must be an object"),
        ({"id2label": {"0": "a", "1": "b"}}, r"classifier.weight \[3, 24\] instead of \[2, 24\]"),
        ({"id2label": {"0": "a", "1": "b", "3": "c"}}, "keys 0 to 2; it has others instead of 2"),
        ({"id2label": {"-1": "a", "0": "b", "1": "c"}}, "keys 0 to 2; it has others instead of 2"),
        ({"id2label": {"0": "a", "1": 2, "2": "c"}}, "id2label must hold texts; got 2"),
        ({"id2label": {"0": "a", "1": None, "2": "c"}}, "id2label must hold texts; got None"),
        ({"num_labels": 5}, "num_labels must be 3; got 5"),
        ({"id2label": "absent"}, r"instead of \[2, 24\]"),
        ({"id2label": None, "num_labels": -1}, "num_labels must be an integer of at least 1"),
        ({"id2label": None, "num_labels": 10**15}, "num_labels must be at most 65536"),
        ({"id2label": None, "num_labels": "3"}, "num_labels must be an integer"),
        ({"problem_type": "other"}, "problem_type must be 'regression' or"),
        ({"problem_type": 3}, "problem_type must be"),
        ({"architectures": ["BertForTokenClassification"]}, "architectures must be a model ForSequenceClassification"),
        ({"architectures": "BertForSequenceClassification"}, "architectures must be a model"),
        ({"architectures": [3]}, "architectures must be a model"),
    ],
)
def test_a_damaged_config(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    directory = tiny_classifiers.write(tmp_path)
    _config(directory, **changes)
    with pytest.raises(ValueError, match=rf"^TextClassifier\.from_pretrained: .*{words}") as error:
        TextClassifier.from_pretrained(directory)
    assert len(str(error.value)) < 600 + len(str(directory))


@pytest.mark.parametrize("model_type", tiny_classifiers.HEADS)
def test_a_damaged_head(model_type: str, tmp_path: Path) -> None:
    directory = tiny_classifiers.write(tmp_path, model_type)
    path = directory / "model.safetensors"
    weights = load_file(path)
    for name in tiny_classifiers.head(model_type, 3):
        shown = name.removeprefix("bert.")
        damaged = weights[name].copy()
        damaged.flat[-1] = np.nan
        for change, words in (
            ({name: None}, f"missing: {shown}"),
            ({name: np.zeros((7, *weights[name].shape[1:]), np.float32)}, "of the wrong shape: "),
            ({name: weights[name].astype(np.float64)}, "of another dtype: "),
            ({name: damaged}, f"{name} must hold finite numbers; got nan"),
        ):
            changed = {key: value for key, value in (weights | change).items() if value is not None}
            save_file(changed, path)
            with pytest.raises(ValueError, match=rf"^TextClassifier\.from_pretrained: .*{words}"):
                TextClassifier.from_pretrained(directory)


def test_a_model_of_embeddings_is_no_classifier(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"modules\.json must list a Transformer alone"):
        TextClassifier.from_pretrained(tiny_bert.write(tmp_path))


def test_more_layers_than_a_model_has(tmp_path: Path) -> None:
    directory = tiny_classifiers.write(tmp_path, num_hidden_layers=10**12)  # refused before names are listed
    with pytest.raises(ValueError, match=r"config\.json: num_hidden_layers must be at most 4096; got 10"):
        TextClassifier.from_pretrained(directory)
