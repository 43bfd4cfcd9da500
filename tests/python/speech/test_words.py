"""Words and their times against plain definitions, and against openai-whisper and faster-whisper where installed."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mha_native.speech._words import (
    TimedWord,
    align_words,
    emphasis,
    first_frames,
    median_over_frames,
    merge_punctuation,
    split_to_words,
)

PREPENDED, APPENDED = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001

TEXTS = (
    ' Four score and seven years ago, our fathers (all of them) said: "no-one\'s 3.5% wiser."',
    " Ünïcödé — 日本語のテキスト。🙂🙃 naïve…",
    "¿Qué? ' \" -- ...",
    "x",
    "",
)


def path_by_cells(costs: NDArray[np.float32]) -> list[int]:
    """The first frame of each row on the path, cell by cell, with the rule of openai-whisper for equal sums."""
    rows, frames = costs.shape
    sums = np.full((rows + 1, frames + 1), np.inf, np.float32)
    sums[0, 0] = 0
    steps: dict[tuple[int, int], tuple[int, int]] = {}
    for i, j in itertools.product(range(1, rows + 1), range(1, frames + 1)):
        both, by_row, by_frame = sums[i - 1, j - 1], sums[i - 1, j], sums[i, j - 1]
        steps[i, j] = (1, 1) if both < min(by_row, by_frame) else (1, 0) if by_row < min(both, by_frame) else (0, 1)
        sums[i, j] = costs[i - 1, j - 1] + sums[i - steps[i, j][0], j - steps[i, j][1]]
    first, place = [0] * rows, (rows, frames)
    while min(place) > 0:
        first[place[0] - 1] = place[1] - 1
        step = steps[place]
        place = (place[0] - step[0], place[1] - step[1])
    return first


def attention(rng: np.random.Generator, heads: int, rows: int, frames: int) -> NDArray[np.float32]:
    powers = np.exp(rng.standard_normal((heads, rows, frames)) * 3)
    return (powers / powers.sum(-1, keepdims=True)).astype(np.float32)


def test_the_path_is_that_of_the_definition(rng: np.random.Generator) -> None:
    for rows, frames in ((1, 1), (1, 9), (9, 1), (2, 2), (7, 40), (30, 29), (12, 150)):
        for costs in (
            rng.standard_normal((rows, frames)).astype(np.float32),
            rng.integers(-2, 2, (rows, frames)).astype(np.float32),  # many sums are equal
            np.zeros((rows, frames), np.float32),
        ):
            assert first_frames(costs).tolist() == path_by_cells(costs), costs


def test_the_median_of_seven(rng: np.random.Generator) -> None:
    bits = np.array(list(itertools.product((0, 1), repeat=7)), np.float32)  # a network that sorts these sorts all
    assert (median_over_frames(bits)[:, 3] == np.median(bits, axis=1)).all()
    for frames in (1, 3, 4, 5, 6, 50):
        rows = rng.standard_normal((3, frames)).astype(np.float32)
        padded = np.pad(rows, ((0, 0), (3, 3)), mode="reflect")
        expected = [np.median(padded[:, i : i + 7], axis=1) for i in range(frames)] if frames > 3 else rows.T
        assert (median_over_frames(rows) == np.transpose(expected)).all()


def test_emphasis_is_that_of_openai(rng: np.random.Generator) -> None:
    timing, torch = pytest.importorskip("whisper.timing"), pytest.importorskip("torch")
    for heads, rows, frames in ((1, 2, 4), (6, 40, 300), (8, 3, 1500)):
        weights = attention(rng, heads, rows, frames)
        given = torch.from_numpy(weights)
        scaled = (given - given.mean(-2, keepdim=True)) / given.std(-2, keepdim=True, unbiased=False)
        expected = timing.median_filter(scaled, 7).mean(0).numpy()
        np.testing.assert_allclose(emphasis(weights), expected, rtol=0, atol=1e-4)


def test_rows_that_all_look_alike_have_times() -> None:
    assert (emphasis(np.full((2, 5, 20), 0.05, np.float32)) == 0).all()
    assert first_frames(np.zeros((5, 20), np.float32)).tolist() == path_by_cells(np.zeros((5, 20), np.float32))


@pytest.fixture(scope="session")
def tokenizer(speech_model_directory: Path) -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    from mha_native.models.text.tokenizer import Tokenizer

    return Tokenizer(tokenizers.Tokenizer.from_file(str(speech_model_directory / "tokenizer.json")))


def test_words_are_those_of_faster_whisper(tokenizer: Any, rng: np.random.Generator) -> None:
    theirs = pytest.importorskip("faster_whisper.tokenizer")
    lists = [tokenizer.encode("text", text, 0, special=False) for text in TEXTS]
    lists += [rng.integers(0, 50_256, 40).tolist() for _ in range(20)]  # with halves of characters
    for language, tokens in itertools.product(("en", "ja"), lists):
        oracle = theirs.Tokenizer(tokenizer.library, False, task="transcribe", language=language)
        oracle.language_code = language  # an English model has no tokens of others
        words, parts = oracle.split_to_word_tokens([*tokens, oracle.eot])
        got = split_to_words(tokens, tokenizer, language)
        assert [text for text, _ in got] == words[:-1]
        assert [tokens for _, tokens in got] == parts[:-1]


def test_punctuation_goes_where_faster_whisper_puts_it(rng: np.random.Generator) -> None:
    theirs = pytest.importorskip("faster_whisper.transcribe")
    pieces = [" a", "b", " (", ' "', '"', ".", ",", " -", "-", " ", "!", " ¿", "、", "c "]
    for _ in range(200):
        texts = rng.choice(pieces, int(rng.integers(0, 9))).tolist()
        words = [TimedWord(text, [i], i, i + 1, 0.5) for i, text in enumerate(texts)]
        expected = [{"word": text, "tokens": [i]} for i, text in enumerate(texts)]
        theirs.merge_punctuations(expected, PREPENDED, APPENDED)
        merge_punctuation(words, PREPENDED, APPENDED)
        assert [{"word": word.word, "tokens": word.tokens} for word in words] == expected
        assert [word.start for word in words] == list(range(len(words)))


def test_words_are_where_their_tokens_look(tokenizer: Any) -> None:
    tokens = tokenizer.encode("text", " It is an ancient Mariner, and he stoppeth one of three.", 0, special=False)
    before, frames = 3, 40 * (len(tokens) + 1)
    rows = before + len(tokens) + 2  # the end is read, too
    weights = np.full((2, rows, frames), 1e-4, np.float32)
    for row in range(before, rows - 1):
        weights[:, row, (row - before) * 40 : (row - before + 1) * 40] = 0.02
    probabilities = np.linspace(0.5, 1.0, len(tokens), dtype=np.float32)
    words = align_words(weights, tokens, probabilities, tokenizer, "en", before)
    assert "".join(word.word for word in words) == tokenizer.decode(tokens)
    assert [token for word in words for token in word.tokens] == tokens
    place = 0
    for word in words:
        last = place + len(word.tokens)
        assert word.start == pytest.approx(place * 0.8, abs=0.081)
        assert word.end == pytest.approx(last * 0.8, abs=0.081)
        assert word.probability == pytest.approx(float(probabilities[place:last].mean()))
        place = last
    assert align_words(weights, [], probabilities[:0], tokenizer, "en", before) == []
