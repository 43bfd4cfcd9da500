"""TokenClassifier: how tokens become entities, windows over long texts, and what it takes and gives."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
import tiny_classifiers
import tokenizers
from tolerance import assert_same_bits

from mha_native.models import TextClassifier, TokenClassifier
from mha_native.models.heads.entities import Piece, entities_of, without_overlaps
from mha_native.models.text import batching as _batching

Array = np.ndarray[Any, Any]

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "MISC"]
LONG = " ".join(tiny_bert.WORDS[4:] * 3)


@pytest.fixture
def model(tmp_path: Path) -> TokenClassifier:
    return TokenClassifier.from_pretrained(tiny_classifiers.write(tmp_path, tokens=True))


def _pieces(*words: str) -> list[Piece]:
    """Tokens one after another, with a blank before each that does not begin with ##."""
    pieces: list[Piece] = []
    for word in words:
        plain = word.removeprefix("##")
        start = (pieces[-1].end + (plain == word)) if pieces else 0
        pieces.append(Piece(word, start, start + len(plain), len(pieces) + 1, plain != word))
    return pieces


def _scores(*rows: tuple[str, float]) -> Array:
    """Rows in which the label named has that score, and the others the rest."""
    scores = np.empty((len(rows), len(LABELS)), np.float32)
    for row, (label, score) in zip(scores, rows, strict=True):
        row[:] = (1 - score) / (len(LABELS) - 1)
        row[LABELS.index(label)] = score
    return scores


def _join(words: list[str]) -> str:
    return " ".join(words).replace(" ##", "")


def _groups(pieces: list[Piece], scores: Array, strategy: str) -> list[tuple[str, str, int, int]]:
    found = entities_of(pieces, scores, LABELS, strategy, _join)
    return [(entity["entity_group"], entity["word"], entity["start"], entity["end"]) for entity in found]


def test_neighbours_of_one_label_are_one_entity() -> None:
    pieces = _pieces("anna", "lee", "bob", "in", "oslo", "x", "y")
    rows = [("B-PER", 0.9), ("I-PER", 0.7), ("B-PER", 0.8), ("O", 0.9), ("B-LOC", 0.9), ("MISC", 0.5), ("MISC", 0.7)]
    assert _groups(pieces, _scores(*rows), "simple") == [
        ("PER", "anna lee", 0, 8),
        ("PER", "bob", 9, 12),
        ("O", "in", 13, 15),
        ("LOC", "oslo", 16, 20),
        ("MISC", "x y", 21, 24),
    ]
    entities = entities_of(pieces, _scores(*rows), LABELS, "simple", _join)
    assert [round(entity["score"], 6) for entity in entities] == [0.8, 0.8, 0.9, 0.9, 0.6]


@pytest.mark.parametrize(
    ("strategy", "label", "score"), [("first", "LOC", 0.6), ("max", "PER", 0.9), ("average", "PER", 0.39)]
)
def test_a_word_has_one_label(strategy: str, label: str, score: float) -> None:
    pieces, scores = _pieces("mic", "##ro", "##soft"), _scores(("B-LOC", 0.6), ("I-PER", 0.9), ("MISC", 0.7))
    assert len(_groups(pieces, scores, "simple")) == 3
    (entity,) = entities_of(pieces, scores, LABELS, strategy, _join)
    assert (entity["entity_group"], entity["word"], entity["start"], entity["end"]) == (label, "microsoft", 0, 9)
    expected = scores.mean(axis=0).max() if strategy == "average" else score
    assert abs(entity["score"] - expected) < 1e-6


def test_each_token() -> None:
    found = entities_of(_pieces("anna", "##s"), _scores(("B-PER", 0.9), ("O", 0.7)), LABELS, "none", _join)
    assert [entity["entity"] for entity in found] == ["B-PER", "O"]
    assert [entity["word"] for entity in found] == ["anna", "##s"]
    assert [entity["index"] for entity in found] == [1, 2]


def test_of_overlapping_entities_the_longer_one_counts() -> None:
    def entity(start: int, end: int, score: float) -> dict[str, Any]:
        return {"start": start, "end": end, "score": score}

    given = [entity(0, 4, 0.5), entity(10, 14, 0.9), entity(2, 8, 0.1), entity(10, 14, 0.95), entity(14, 15, 0.1)]
    assert without_overlaps(given) == [entity(2, 8, 0.1), entity(10, 14, 0.95), entity(14, 15, 0.1)]
    assert without_overlaps([]) == []


def test_scores_beside_float64(model: TokenClassifier) -> None:
    text = "the dog a b cat !"
    expected = tiny_classifiers.token_scores(tiny_bert.ids(text))[1:-1]
    found = model(text, aggregation_strategy="none", ignore_labels=())
    assert [entity["word"] for entity in found] == text.split()
    assert [entity["entity"] for entity in found] == [tiny_classifiers.LABELS[i] for i in expected.argmax(axis=1)]
    assert [text[entity["start"] : entity["end"]] for entity in found] == text.split()
    assert np.abs([entity["score"] for entity in found] - expected.max(axis=1)).max() < 1e-5


def test_labels_that_are_no_entities(model: TokenClassifier) -> None:
    everything = model(LONG, ignore_labels=[])
    assert {entity["entity_group"] for entity in everything} == {"PER", "LOC"}
    assert {entity["entity_group"] for entity in model(LONG, ignore_labels=["PER", "O"])} == {"LOC"}
    assert {entity["entity"] for entity in model(LONG, ignore_labels=["I-LOC"], aggregation_strategy="none")} <= {
        "B-PER", "I-PER", "B-LOC", "O"
    }  # fmt: skip


def test_a_long_text_is_read_whole(model: TokenClassifier) -> None:
    for stride in (None, 0, 1, 7, 17):
        for strategy in ("none", "simple", "first", "average", "max"):
            found = model(LONG, aggregation_strategy=strategy, ignore_labels=[], stride=stride)
            assert all(before["end"] < after["start"] for before, after in pairwise(found))
            assert found[-1]["end"] > len(LONG) - 40
            if strategy == "none":
                assert [entity["word"] for entity in found] == LONG.split()
                assert [entity["index"] for entity in found] == list(range(1, len(found) + 1))


def test_windows(model: TokenClassifier) -> None:
    room = 18
    for count in (0, 1, room - 1, room, room + 1, 2 * room, 3 * room + 5):
        for stride in (0, 1, room - 1):
            windows = list(model._pieces.windows(" ".join(["dog"] * count), stride))
            assert [window.is_last for window in windows] == [False] * (len(windows) - 1) + [True]
            places = [[piece.place for piece in window.pieces] for window in windows]
            assert {place for some in places for place in some} == set(range(1, count + 1))
            for window, after in pairwise(places):
                assert window[room - stride :] == after[:stride]
                assert len(window) == room
            assert all(window.ids[0] == 2 and window.ids[-1] == 3 for window in windows)
            assert len(windows) == 1 or len(places[-1]) > stride


def test_what_is_found_does_not_depend_on_the_other_texts(
    model: TokenClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [*tiny_bert.TEXTS, LONG, "the dog"] * 2
    alone = [model(text) for text in texts]
    for most in (10, 100, 10_000):
        monkeypatch.setattr(_batching, "MOST_TOKENS", most)
        assert model(texts) == alone
        assert list(model.iter_entities(iter(texts))) == alone
    assert model([]) == []


def test_a_token_for_unknown_words_is_shown_as_it_is_written(model: TokenClassifier) -> None:
    (entity,) = model("Zürich", ignore_labels=[])
    assert entity["word"] == "Zürich"


def test_continuations_are_marked(tmp_path: Path) -> None:
    words = [*tiny_bert.WORDS, "mic", "##ro", "##soft"]
    library = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    library.normalizer = tokenizers.normalizers.BertNormalizer()
    library.decoder = tokenizers.decoders.WordPiece()
    library.post_processor = tiny_bert.tokenizer().post_processor
    directory = tiny_classifiers.write(tmp_path, tokens=True)
    library.save(str(directory / "tokenizer.json"))
    model = TokenClassifier.from_pretrained(directory)
    windows = list(model._pieces.windows("the microsoft dog", 0))
    assert [piece.continues for window in windows for piece in window.pieces] == [False, False, True, True, False]
    for strategy in ("first", "average", "max"):
        found = model("microsoft", aggregation_strategy=strategy, ignore_labels=[])
        assert [(entity["word"], entity["start"], entity["end"]) for entity in found] == [("microsoft", 0, 9)]


def test_a_classifier_of_texts_finds_no_entities(tmp_path: Path) -> None:
    directory = tiny_classifiers.write(tmp_path)
    with pytest.raises(
        ValueError, match=r"^TokenClassifier\.from_pretrained: .*architectures must be a model ForToken"
    ):
        TokenClassifier.from_pretrained(directory)
    other = tiny_classifiers.write(tmp_path / "other", tokens=True)
    with pytest.raises(ValueError, match=r"^TextClassifier\.from_pretrained: .*architectures"):
        TextClassifier.from_pretrained(other)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"aggregation_strategy": "other"}, "aggregation_strategy must be one of none, simple"),
        ({"aggregation_strategy": 3}, "aggregation_strategy must be one of"),
        ({"ignore_labels": "O"}, "ignore_labels must be several str"),
        ({"ignore_labels": 3}, "ignore_labels must be several str"),
        ({"stride": -1}, "stride must be 0 to 17"),
        ({"stride": 18}, "stride must be 0 to 17"),
        ({"stride": "a"}, "stride must be"),
        ({"num_threads": 0}, "num_threads must be"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], words: str, model: TokenClassifier) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^TokenClassifier: {words}"):
        model("a", **arguments)


def test_what_is_no_text(model: TokenClassifier) -> None:
    for given, words in ((3, "texts must be"), ([3], "texts must be str; got int at 0"), (["\ud800"], "surrogate")):
        with pytest.raises((TypeError, ValueError), match=f"^TokenClassifier: {words}|surrogate"):
            model(given)


def test_another_dtype(model: TokenClassifier) -> None:
    assert_same_bits(
        np.array([entity["score"] for entity in model.astype("float32")(LONG)]),
        np.array([entity["score"] for entity in model(LONG)]),
    )
    assert model.astype("float16").dtype == np.float16
