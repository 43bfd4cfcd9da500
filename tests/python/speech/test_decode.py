"""The search for the text of a window, against the search written down with lists, on a model of random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mha_native.speech._decode import SearchOptions, decode, most_probable
from mha_native.speech._prompt import Prompt
from mha_native.speech._rules import TokenRules

SIZE, END, START = 12, 9, 10
NO_SPEECH = 11
NOTHING = np.array([], np.int64)
PLAIN = TokenRules(END, SIZE, False, 0, NOTHING, NOTHING)


class RandomModel:
    """A decoder whose logits depend on the window and on all tokens, at random."""

    def __init__(self, seed: int, scale: float = 2.0) -> None:
        self.seed, self.scale = seed, scale

    def logits(self, window: int, tokens: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng([self.seed, window, *tokens])
        return (rng.standard_normal(SIZE) * self.scale).astype(np.float32)

    def decoder(self, encoded: Any, windows: list[int]) -> RandomState:
        return RandomState(self, windows)


class RandomState:
    def __init__(self, model: RandomModel, windows: list[int]) -> None:
        self.model, self.windows, self.texts = model, list(windows), [()] * len(windows)

    def step(self, tokens: list[np.ndarray], last_only: bool = False) -> np.ndarray:
        rows = []
        for i, new in enumerate(tokens):
            for token in new.tolist():
                self.texts[i] = (*self.texts[i], token)
                rows.append(self.model.logits(self.windows[i], self.texts[i]))
            if last_only:
                del rows[i:-1]
        return np.array(rows)

    def select(self, indices: np.ndarray) -> None:
        self.windows = [self.windows[i] for i in indices]
        self.texts = [self.texts[i] for i in indices]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    return wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())


def searched(
    next_logs: Callable[[list[int]], np.ndarray],
    prefix: list[int],
    beams: int,
    patience: float,
    power: float,
    most: int,
) -> tuple[list[int], float]:
    """The text of the search of CTranslate2, with its log-probability, by plain lists."""
    active = [(list(prefix), 0.0)]
    ended: list[tuple[float, list[int], float]] = []
    for length in range(len(prefix) + 1, most + 1):
        continued = [
            (log + step, [*text, token]) for text, log in active for token, step in enumerate(next_logs(text).tolist())
        ]
        found: list[tuple[float, list[int]] | None] = sorted(continued, key=lambda each: -each[0])[: 2 * beams]
        if prefix and length == len(prefix) + 1:
            found = [None if k and each is not None and each[1][-1] == END else each for k, each in enumerate(found)]
        spare = iter([each for each in found[beams:] if each is not None and each[1][-1] != END])
        active = []
        is_over = bool(found[0] and found[0][1][-1] == END)  # nothing that follows can be more probable
        for each in found[:beams]:
            if each is None:
                continue
            log, text = each
            if text[-1] == END or length == most:
                written = text[:-1] if text[-1] == END else text
                score = log / len(written) ** power if written or power == 0 else -math.inf
                ended.append((score, written, log))
                if (other := next(spare, None)) is not None:
                    active.append((other[1], other[0]))
            else:
                active.append((text, log))
        if length == most or (is_over if power == 0 else len(ended) >= max(1, round(beams * patience))):
            break
    _, text, log = max(ended, key=lambda each: each[0])
    return text, log


@pytest.mark.parametrize("prefix", [[], [3], [3, 4, 5]], ids=len)
@pytest.mark.parametrize(
    ("beams", "patience", "power"),
    [(1, 1.0, 1.0), (2, 1.0, 1.0), (5, 1.0, 1.0), (3, 2.0, 0.5), (5, 0.4, 1.0), (2, 1.0, 0.0), (5, 0.2, 0.0)],
)
def test_texts_are_those_of_the_search_written_down(
    beams: int, patience: float, power: float, prefix: list[int]
) -> None:
    options = SearchOptions(beams, 5, patience, power)
    prompt = Prompt([2, START, *prefix], 1, len(prefix), 24)
    models = [RandomModel(seed) for seed in range(40)]
    for model in models:
        (found,) = decode(model, None, [0], [prompt], PLAIN, NO_SPEECH, options, [0])
        tokens, log = searched(
            lambda text, model=model: log_softmax(model.logits(0, (2, START, *text))),
            prefix,
            beams,
            patience,
            power,
            12,
        )
        assert found.tokens == tokens
        assert found.avg_logprob == pytest.approx(log / (len(tokens) + 1), abs=1e-5)
        spoken = np.exp(log_softmax(model.logits(0, (2, START))))[NO_SPEECH]
        assert found.no_speech_prob == pytest.approx(spoken, rel=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_windows_have_the_texts_that_they_have_alone(temperature: float) -> None:
    model, options = RandomModel(1), SearchOptions(3, 4, temperature=temperature)
    prompts = [Prompt([*range(length), START, 7], length, 0, 40) for length in (0, 3, 1, 6)]
    seeds = [8, 9, 10, 11]
    together = decode(model, None, range(4), prompts, PLAIN, NO_SPEECH, options, seeds)
    alone = [decode(model, None, [i], [prompts[i]], PLAIN, NO_SPEECH, options, [seeds[i]])[0] for i in range(4)]
    assert together == alone
    assert len({tuple(each.tokens) for each in together}) > 1


def test_drawn_texts_follow_the_probabilities_and_the_best_one_counts() -> None:
    model, prompt = RandomModel(5, scale=1.0), Prompt([START], 0, 0, 24)
    one_token = SearchOptions(5, 1, max_new_tokens=1, temperature=0.5)
    prompts = [prompt] * 1500
    found = decode(model, None, [0] * 1500, prompts, PLAIN, NO_SPEECH, one_token, range(1500))
    first = np.bincount([(each.tokens or [END])[0] for each in found], minlength=SIZE)
    expected = np.exp(log_softmax(model.logits(0, (START,)) / 0.5))
    np.testing.assert_allclose(first / 1500, expected, atol=0.04)
    one, many = (
        decode(model, None, [0], [prompt], PLAIN, NO_SPEECH, SearchOptions(5, count, temperature=1.0), [0])[0]
        for count in (1, 8)
    )
    score = [each.avg_logprob * (len(each.tokens) + 1) / max(len(each.tokens), 1) for each in (one, many)]
    assert score[1] >= score[0]


def test_the_longest_text_leaves_room_in_the_decoder() -> None:
    never_ends = TokenRules(END, SIZE, False, 0, np.array([END]), NOTHING)

    def length(prompt: Prompt, **options: Any) -> int:
        (found,) = decode(RandomModel(0), None, [0], [prompt], never_ends, NO_SPEECH, SearchOptions(2, **options), [0])
        return len(found.tokens)

    assert length(Prompt([START], 0, 0, 24)) == 12  # half of the decoder's tokens
    assert length(Prompt([1] * 19 + [START], 19, 0, 24)) == 5
    assert length(Prompt([START, 5, 6], 0, 2, 24), max_new_tokens=3) == 5  # with the prefix


def test_logits_that_are_not_finite_have_an_error() -> None:
    class Damaged(RandomModel):
        def logits(self, window: int, tokens: tuple[int, ...]) -> np.ndarray:
            return np.full(SIZE, np.nan, np.float32)

    with pytest.raises(ValueError, match="the largest logit of a token is nan"):
        decode(Damaged(0), None, [0], [Prompt([START], 0, 0, 24)], PLAIN, NO_SPEECH, SearchOptions(2), [0])


@pytest.mark.parametrize("size", [5, 63, 64, 200, 1000])
def test_the_largest_sums_are_those_of_a_sort(size: int) -> None:
    rng = np.random.default_rng(size)
    for count in (1, 4, 10):
        logits = rng.integers(-9, 9, (3, size)).astype(np.float32)  # with equals
        logits[rng.random((3, size)) < 0.3] = -np.inf
        offsets = rng.integers(-2, 2, (3, 1)).astype(np.float64)
        rows, columns = most_probable(logits, offsets, count)
        sums = (logits + offsets).ravel()
        expected = np.sort(sums[np.isfinite(sums)])[::-1][:count]
        np.testing.assert_array_equal((logits + offsets)[rows, columns], expected)
        assert len(set(zip(rows.tolist(), columns.tolist(), strict=True))) == len(rows)
