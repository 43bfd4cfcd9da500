"""Classifiers of every family, as transformers saves them: the same scores and entities as of its pipelines.

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

from mha_native.models import TextClassifier, TokenClassifier

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")

Array = np.ndarray[Any, Any]

BOUND = 1e-5  # of scores in 0 ... 1
LOGIT_BOUND = 3e-5  # of logits up to 2.3, with roundings of float32 on both sides

LABELS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC", 5: "MISC"}

# None begins with a token without characters: transformers repeats such an entity of a long text.
TEXTS = [
    "", "a", "the dog", "THE Dog", "abc fade jab the dog a the dog", "two  blanks\tand\na line ", "dog. dog! dog?",
    "naïve façade — 東京 😀 the dog", "a <mask> b", "[MASK] a [SEP] b", "word\u00a0word\u3000word\u200bword",
    " ".join("abcdefghij"), "the dog " * 40, "abcdefghij " * 9 + "the dog.",
]  # fmt: skip
PAIRS = [(first, second) for first in ("the dog", "", "a b c d e f " * 6) for second in TEXTS[1:]]


def _save(directory: Path, model_type: str, head: str, dtype: str = "float32", **changes: Any) -> Path:
    return saved_families.save(directory, model_type, head, dtype, **changes)


def _logits(directory: Path, given: list[Any], function: str) -> Array:
    """The scores of texts and pairs by the model of transformers, one at a time."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32).eval()
    rows = []
    for text in given:
        parts = (text,) if isinstance(text, str) else text
        inputs = tokenizer(*parts, truncation=True, max_length=24, return_tensors="pt")
        with torch.no_grad():
            logits = model(**inputs).logits[0]
        made = {"softmax": lambda x: x.softmax(-1), "sigmoid": torch.sigmoid, "none": lambda x: x}[function](logits)
        rows.append(made.numpy())
    return np.stack(rows)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_scores_of_texts_and_pairs(model_type: str, dtype: str, tmp_path: Path) -> None:
    _save(tmp_path, model_type, "ForSequenceClassification", dtype, num_labels=3)
    model, given = TextClassifier.from_pretrained(tmp_path), [*TEXTS, *PAIRS]
    scores = model.predict_proba(given)
    assert np.abs(scores - _logits(tmp_path, given, "softmax")).max() < BOUND
    assert scores.std(axis=0).min() > 1e-3  # the texts are not all alike to the model
    for text, row in zip(given, scores, strict=True):
        assert_same_bits(model.predict_proba([text])[0], row, label=repr(text))


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer_class": "PreTrainedTokenizerFast"},
        {"tokenizer_class": "TokenizersBackend"},
        {"tokenizer_class": "BertTokenizerFast"},
        {"tokenizer_class": "ElectraTokenizer"},
        {"model_input_names": ["input_ids", "attention_mask"]},
    ],
    ids=str,
)
def test_whether_tokens_have_types(settings: dict[str, Any], tmp_path: Path) -> None:
    _save(tmp_path, "bert", "ForSequenceClassification", num_labels=3)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    scores = TextClassifier.from_pretrained(tmp_path).predict_proba(PAIRS)
    assert np.abs(scores - _logits(tmp_path, PAIRS, "softmax")).max() < BOUND


@pytest.mark.parametrize(
    ("problem", "num_labels", "function"),
    [
        (None, 1, "sigmoid"),
        (None, 4, "softmax"),
        ("single_label_classification", 2, "softmax"),
        ("multi_label_classification", 4, "sigmoid"),
        ("regression", 1, "none"),
        ("regression", 3, "none"),
    ],
)
def test_what_makes_scores(problem: str | None, num_labels: int, function: str, tmp_path: Path) -> None:
    _save(tmp_path, "bert", "ForSequenceClassification", num_labels=num_labels)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"problem_type": problem}))
    texts = [text for text in TEXTS if len(text) < 60]
    model, pipe = TextClassifier.from_pretrained(tmp_path), transformers.pipeline("text-classification", str(tmp_path))
    bound = LOGIT_BOUND if function == "none" else BOUND
    assert np.abs(model.predict_proba(texts) - _logits(tmp_path, texts, function)).max() < bound
    for arguments in ({}, {"top_k": None}, {"top_k": 1}, {"top_k": 2}, {"function_to_apply": "none", "top_k": 3}):
        for given in (texts, texts[2], [texts[2]], {"text": "a b", "text_pair": "the dog"}):
            if not (isinstance(given, dict) and not arguments):  # where the pipeline gives a dict without a list
                without = arguments.get("function_to_apply") == "none"
                _assert_alike(model(given, **arguments), pipe(given, **arguments), LOGIT_BOUND if without else bound)


def _assert_alike(actual: Any, expected: Any, bound: float = BOUND) -> None:
    """The same lists of dicts, whose scores differ by roundings."""
    assert type(actual) is type(expected)
    if isinstance(actual, list):
        assert len(actual) == len(expected), (actual, expected)
        for pair in zip(actual, expected, strict=True):
            _assert_alike(*pair, bound)
    else:
        assert abs(actual["score"] - expected["score"]) < bound
        assert actual | {"score": 0} == dict(expected) | {"score": 0}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_entities(model_type: str, dtype: str, tmp_path: Path) -> None:
    _save(tmp_path, model_type, "ForTokenClassification", dtype, id2label=LABELS)
    pipe = transformers.pipeline("token-classification", str(tmp_path), dtype=torch.float32)
    model, found = TokenClassifier.from_pretrained(tmp_path), 0
    for strategy in ("simple", "first", "average", "max"):
        expected = [pipe(text, aggregation_strategy=strategy, stride=5) for text in TEXTS]
        actual = model(TEXTS, aggregation_strategy=strategy, stride=5)
        _assert_alike(actual, expected)
        _assert_alike(model(TEXTS[4], aggregation_strategy=strategy, stride=5), expected[4])
        found += sum(map(len, actual))
    assert found > 100
    short = [text for text in TEXTS if len(model._pieces._tokenizer.encode_pieces(text).ids) <= 24]
    _assert_alike(model(short, aggregation_strategy="none"), pipe(short, aggregation_strategy="none"))
    _assert_alike(
        model(short, ignore_labels=["MISC"]), pipe(short, aggregation_strategy="simple", ignore_labels=["MISC"])
    )
