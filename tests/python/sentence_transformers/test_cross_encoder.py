"""CrossEncoder: scores beside float64, rankings, activations by name, what is refused, and which memory it takes."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
import tiny_classifiers
from tolerance import assert_same_bits

from mha_native.models import TextClassifier
from mha_native.models.text import batching as _batching
from mha_native.sentence_transformers import CrossEncoder

QUERY = "the dog"
DOCUMENTS = ["cat", "", "dog", "the dog !", "a b c", "cat", "x unknown"]

SETTINGS = "config_sentence_transformers.json"

Array = np.ndarray[Any, Any]


def _save(directory: Path, labels: int = 1, **arguments: Any) -> Path:
    return tiny_classifiers.write(directory, labels=labels, **arguments)


@pytest.fixture
def model(tmp_path: Path) -> CrossEncoder:
    return CrossEncoder(_save(tmp_path))


def _expected(labels: int = 1) -> Array:
    """The logits of all documents, in float64."""
    rows = [tiny_classifiers.logits("bert", labels, *tiny_classifiers.ids(QUERY, text)) for text in DOCUMENTS]
    return np.stack(rows)


def _sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


def test_scores(model: CrossEncoder, tmp_path: Path) -> None:
    pairs = [(QUERY, text) for text in DOCUMENTS]
    scores = model.predict(pairs)
    assert scores.dtype == np.float32
    assert np.abs(scores - _sigmoid(_expected()[:, 0])).max() < 1e-5
    several = CrossEncoder(_save(tmp_path / "several", 3))
    assert np.abs(several.predict(pairs) - _expected(3)).max() < 1e-5
    powers = np.exp(_expected(3))
    assert np.abs(several.predict(pairs, apply_softmax=True) - powers / powers.sum(1, keepdims=True)).max() < 1e-5


def test_the_same_core_as_a_text_classifier(model: CrossEncoder, tmp_path: Path) -> None:
    pairs = [(QUERY, text) for text in DOCUMENTS]
    logits = TextClassifier.from_pretrained(tmp_path).predict_proba(pairs, function_to_apply="none")[:, 0]
    assert_same_bits(model.predict(pairs, activation_fn=lambda x: x), logits)


def test_the_form_of_results(model: CrossEncoder) -> None:
    scores = model.predict([(QUERY, "cat"), (QUERY, "dog")])
    assert scores.shape == (2,)
    for one in ((QUERY, "dog"), [QUERY, "dog"], np.array([QUERY, "dog"])):
        assert np.shape(model.predict(one)) == ()
        assert model.predict(one) == scores[1]
    assert_same_bits(model.predict([[QUERY, "cat"], [QUERY, "dog"]]), scores)
    assert_same_bits(model.predict(np.array([[QUERY, "cat"], [QUERY, "dog"]])), scores)
    assert_same_bits(model.predict(sentences=[(QUERY, "cat"), (QUERY, "dog")], num_workers=0), scores)
    assert model.predict([]).shape == (0,)
    assert model.rank(QUERY, []) == []


def test_a_ranking(model: CrossEncoder) -> None:
    scores = model.predict([(QUERY, text) for text in DOCUMENTS])
    order = sorted(range(len(DOCUMENTS)), key=lambda i: -scores[i])
    ranking = model.rank(QUERY, DOCUMENTS)
    assert [entry["corpus_id"] for entry in ranking] == order
    assert [entry["score"] for entry in ranking] == [float(scores[i]) for i in order]
    assert {tuple(entry) for entry in ranking} == {("corpus_id", "score")}
    assert order.index(0) < order.index(5)  # the same text: the earlier one comes first
    best = model.rank(QUERY, DOCUMENTS, top_k=2, return_documents=True)
    assert [entry["text"] for entry in best] == [DOCUMENTS[i] for i in order[:2]]
    assert model.rank(QUERY, tuple(DOCUMENTS), 100, convert_to_tensor=True, apply_softmax=True) == ranking


def test_the_bits_of_a_pair_do_not_depend_on_its_batch(model: CrossEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(QUERY, text) for text in DOCUMENTS] * 7
    alone = np.array([model.predict(pair) for pair in pairs])
    for most in (10, 60, 5000):
        monkeypatch.setattr(_batching, "MOST_TOKENS", most)
        assert_same_bits(model.predict(pairs, batch_size=1), alone)


NAMES = {
    "torch.nn.modules.linear.Identity": lambda x: x,
    "torch.nn.Identity": lambda x: x,
    "torch.nn.modules.activation.Sigmoid": _sigmoid,
    "torch.nn.modules.activation.Tanh": np.tanh,
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", ["saved", "sentence_transformers", "sbert_ce_default_activation_function"])
def test_the_activation_that_a_file_names(name: str, place: str, tmp_path: Path) -> None:
    entry: Any = {"activation_fn": name} if place == "sentence_transformers" else name
    changes = {} if place == "saved" else {place: entry}
    files = {SETTINGS: {"model_type": "CrossEncoder", "activation_fn": name}}
    directory = _save(tmp_path, files=files if place == "saved" else {}, **changes)
    scores = CrossEncoder(directory).predict([(QUERY, text) for text in DOCUMENTS])
    assert np.abs(scores - NAMES[name](_expected()[:, 0])).max() < 1e-5


@pytest.mark.parametrize("place", ["saved", "sentence_transformers", "sbert_ce_default_activation_function"])
@pytest.mark.parametrize("name", ["os.system", "torch.nn.Other", "torch.load", "Sigmoid", "", 3, ["a"], True, {"a": 1}])
def test_an_activation_of_another_name_is_refused(name: Any, place: str, tmp_path: Path) -> None:
    entry: Any = {"activation_fn": name} if place == "sentence_transformers" else name
    changes = {} if place == "saved" else {place: entry}
    files = {SETTINGS: {"model_type": "CrossEncoder", "activation_fn": name}}
    directory = _save(tmp_path, files=files if place == "saved" else {}, **changes)
    with pytest.raises(ValueError, match=r"^CrossEncoder: .*must be torch\.nn\.X, where X is one of Identity"):
        CrossEncoder(directory)
    assert CrossEncoder(directory, activation_fn=np.tanh).predict((QUERY, "cat")).shape == ()


def test_the_first_file_counts(tmp_path: Path) -> None:
    files = {SETTINGS: {"model_type": "CrossEncoder", "activation_fn": "torch.nn.Tanh"}}
    changes = {"sentence_transformers": {"activation_fn": "torch.nn.Identity"}}
    directory = _save(tmp_path, files=files, sbert_ce_default_activation_function="torch.nn.ReLU", **changes)
    scores = CrossEncoder(directory).predict([(QUERY, text) for text in DOCUMENTS])
    assert np.abs(scores - np.tanh(_expected()[:, 0])).max() < 1e-5


def test_an_activation_of_a_call(model: CrossEncoder) -> None:
    pairs = [(QUERY, text) for text in DOCUMENTS]
    logits = model.predict(pairs, activation_fn=lambda x: x)
    assert_same_bits(model.predict(pairs, activation_fct=lambda x: 2 * x), 2 * logits)
    ranking = model.rank(QUERY, DOCUMENTS, activation_fn=lambda x: -x)
    assert [entry["corpus_id"] for entry in ranking] == sorted(range(len(pairs)), key=lambda i: logits[i])
    model.activation_fn = lambda x: x
    assert_same_bits(model.predict(pairs), logits)


def test_activations_of_torch(model: CrossEncoder) -> None:
    torch = pytest.importorskip("torch")

    class Twice(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return torch.multiply(x, 2)

    pairs = [(QUERY, text) for text in DOCUMENTS]
    logits = model.predict(pairs, activation_fn=torch.nn.Identity())
    for function in (torch.sigmoid, torch.nn.Sigmoid(), torch.nn.functional.sigmoid):
        assert np.abs(model.predict(pairs, activation_fn=function) - _sigmoid(logits)).max() < 1e-6
    assert_same_bits(model.predict(pairs, activation_fn=Twice()), 2 * logits)
    tensor = model.predict(pairs, convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor)
    assert all(isinstance(score, torch.Tensor) for score in model.predict(pairs, convert_to_numpy=False))
    assert model.predict([], convert_to_tensor=True).dtype == torch.float32


def test_prompts(tmp_path: Path) -> None:
    settings = {"model_type": "CrossEncoder", "prompts": {"query": "a b "}, "default_prompt_name": "query"}
    model = CrossEncoder(_save(tmp_path, files={SETTINGS: settings}))
    assert (model.prompts, model.default_prompt_name) == ({"query": "a b "}, "query")
    expected = model.predict([("a b dog", "cat")], prompt="")
    for options in ({}, {"prompt_name": "query"}, {"prompt": "a b "}):
        assert_same_bits(model.predict([("dog", "cat")], **options), expected)
    with pytest.raises(ValueError, match=r"^CrossEncoder\.predict: prompt_name must be"):
        model.predict([("dog", "cat")], prompt_name="other")


def test_the_most_tokens(tmp_path: Path) -> None:
    directory = _save(tmp_path)
    model = CrossEncoder(directory, max_length=8)
    assert model.max_seq_length == model.max_length == 8
    cut = model.predict(("the dog", "a b c d e f"))
    assert cut == CrossEncoder(directory).predict(("the dog", "a b c"))
    model.max_length = 20
    assert cut != model.predict(("the dog", "a b c d e f"))
    for wrong in (0, 2, 21, "a", 10**30):
        with pytest.raises((TypeError, ValueError), match=r"^CrossEncoder: max_length must"):
            CrossEncoder(directory, max_length=wrong)
        with pytest.raises((TypeError, ValueError), match=r"^CrossEncoder: max_length must"):
            model.max_length = wrong
        with pytest.raises((TypeError, ValueError), match=r"^CrossEncoder: model_max_length must"):
            CrossEncoder(directory, processor_kwargs={"model_max_length": wrong})


def test_a_layout_with_modules(tmp_path: Path) -> None:
    files: dict[str, Any] = {
        "modules.json": tiny_bert.modules("Transformer"),
        "sentence_bert_config.json": {
            "transformer_task": "sequence-classification",
            "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
            "module_output_name": "scores",
        },
        SETTINGS: {"model_type": "CrossEncoder", "prompts": {}, "activation_fn": None},
    }
    directory = _save(tmp_path, files=files)
    assert np.abs(CrossEncoder(directory).predict((QUERY, "cat")) - _sigmoid(_expected()[0, 0])) < 1e-5
    for name, value, words in (
        ("modules.json", tiny_bert.modules("Transformer", "Pooling"), "a Transformer alone"),
        ("modules.json", [], "got nothing"),
        ("sentence_bert_config.json", {"transformer_task": "text-generation"}, "transformer_task must be"),
        (
            SETTINGS,
            {"model_type": "SentenceTransformer"},
            "model_type must be 'CrossEncoder'",
        ),
        (SETTINGS, {"prompts": 3}, "prompts must be an object"),
    ):
        damaged = _save(tmp_path / "damaged", files=files | {name: value})
        with pytest.raises(ValueError, match=rf"^CrossEncoder: .*{words}"):
            CrossEncoder(damaged)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"device": "cuda"}, "device must be 'cpu'"),
        ({"backend": "onnx"}, "backend must be 'torch'"),
        ({"modules": []}, "modules must be None"),
        ({"num_labels": 2}, "num_labels must be 1, as in the model"),
        ({"activation_fn": 3}, "activation_fn must be a function"),
        ({"config_kwargs": {"num_labels": 1}}, "config_kwargs"),
        ({"model_kwargs": {"load_in_8bit": True}}, "model_kwargs"),
        ({"default_prompt_name": "other"}, "default_prompt_name"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^CrossEncoder: {words}"):
        CrossEncoder(_save(tmp_path), **arguments)


def test_what_has_no_effect(tmp_path: Path) -> None:
    directory = _save(tmp_path)
    arguments = {"device": "cpu", "trust_remote_code": True, "num_labels": 1, "keep_in_fp32_modules": []}
    model = CrossEncoder(str(directory), **arguments)
    assert model.predict((QUERY, "cat"), device="cpu", batch_size=1) == CrossEncoder(directory).predict((QUERY, "cat"))
    narrow = CrossEncoder(directory, model_kwargs={"dtype": "bfloat16"})
    assert abs(narrow.predict((QUERY, "cat")) - model.predict((QUERY, "cat"))) < 0.05


def test_wrong_arguments_of_calls(model: CrossEncoder, tmp_path: Path) -> None:
    for arguments, words in (
        ({"inputs": 3}, "inputs must be several"),
        ({"inputs": [("a", "b", "c")]}, "inputs: a pair must have two texts; got 3 at 0"),
        ({"inputs": [("a", 3)]}, "inputs must be str; got int at 0"),
        ({"inputs": [("a", "b")], "batch_size": 0}, "batch_size must be"),
        ({"inputs": [("a", "b")], "device": "cuda"}, "device must be"),
        ({"inputs": [("a", "b")], "other": 1}, "has no argument other"),
        ({"inputs": [("a", "b")], "activation_fn": 3}, "activation_fn must be"),
    ):
        with pytest.raises((TypeError, ValueError), match=rf"^CrossEncoder\.predict:? {words}"):
            model.predict(**arguments)  # type: ignore[arg-type]
    for given, words in (
        ((3, ["a"]), "query must be a str"),
        (("a", "b"), "documents must be"),
        (("a", [3]), "documents must be str"),
    ):
        with pytest.raises((TypeError, ValueError), match=rf"^CrossEncoder\.rank: {words}"):
            model.rank(*given)
    with pytest.raises(ValueError, match=r"^CrossEncoder\.rank: the model must have a single label; it has 3"):
        CrossEncoder(_save(tmp_path / "several", 3)).rank("a", ["b"])


def test_a_progress_bar(model: CrossEncoder, capsys: pytest.CaptureFixture[str], caplog: Any) -> None:
    pytest.importorskip("tqdm")
    model.predict([(QUERY, "cat")] * 3, show_progress_bar=True)
    assert "3/3" in capsys.readouterr().err
    model.rank(QUERY, ["cat"])
    assert capsys.readouterr().err == ""
    with caplog.at_level(logging.INFO, "mha_native.sentence_transformers"):
        model.rank(QUERY, ["cat"])
    assert "1/1" in capsys.readouterr().err


def test_a_copy(model: CrossEncoder) -> None:
    copy = pickle.loads(pickle.dumps(model))
    assert_same_bits(copy.predict([(QUERY, "cat")]), model.predict([(QUERY, "cat")]))
    assert repr(copy) == repr(model)


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_has_the_activation(name: str, tmp_path: Path) -> None:
    model = CrossEncoder(_save(tmp_path, sentence_transformers={"activation_fn": name}))
    copy = pickle.loads(pickle.dumps(model))
    assert_same_bits(copy.predict([(QUERY, "cat")]), model.predict([(QUERY, "cat")]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"prompt": 3}, "prompt must be a str; got int"),
        ({"prompt": b"a"}, "prompt must be a str; got bytes"),
        ({"prompt": "\ud800"}, "prompt holds half of a surrogate pair"),
        ({"prompt_name": ["a"]}, r"prompt_name must be one of prompts, and there are none; got \['a'\]"),
        ({"activation_fn": lambda x: None}, r"activation_fn must give numbers, 1 rows of them; got object \[\]"),
        ({"activation_fn": lambda x: x[:0]}, r"activation_fn must give numbers, 1 rows of them; got float32 \[0, 1\]"),
        ({"activation_fn": lambda x: x.mean()}, r"activation_fn must give numbers, .* got float32 \[\]"),
    ],
)
def test_what_predict_refuses(arguments: dict[str, Any], words: str, model: CrossEncoder) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^CrossEncoder\.predict: {words}"):
        model.predict([(QUERY, "cat")], **arguments)


def test_errors_of_rank_name_its_arguments(model: CrossEncoder) -> None:
    with pytest.raises(TypeError, match=r"^CrossEncoder\.rank: documents must be str; got NoneType at 1"):
        model.rank(QUERY, ["cat", None])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"^CrossEncoder\.rank: documents: text 0 holds half"):
        model.rank(QUERY, ["\ud800"])
    with pytest.raises(ValueError, match=r"^CrossEncoder\.rank: query: text 0 holds half"):
        model.rank("\ud800", ["cat"])


def test_rankings_are_json(model: CrossEncoder) -> None:
    assert json.dumps(model.rank(QUERY, DOCUMENTS))
