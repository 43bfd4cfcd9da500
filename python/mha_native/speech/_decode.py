"""The text of windows: greedy, by beams, or drawn, under the rules of Whisper."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..models.generation.beam_search import BeamRules, BeamSearch, EndedText, SpecialTokens
from ..models.generation.logprobs import largest
from ..models.generation.sampling import SamplingOptions, drawn
from ._prompt import Prompt
from ._rules import TokenRules

_ROUNDS = 64  # rows of a table of all logits, of whose columns few are searched


class SearchOptions(NamedTuple):
    """The options of the search for the text of a window, as `WhisperModel.transcribe` explains them."""

    beam_size: int = 5
    best_of: int = 5
    patience: float = 1.0
    length_penalty: float = 1.0
    max_new_tokens: int | None = None
    temperature: float = 0.0  # above 0, `best_of` texts are drawn, and there are no beams

    @property
    def num_searches(self) -> int:
        """The number of texts that are written for a window without one another."""
        return self.best_of if self.temperature > 0 else 1


class Decoded(NamedTuple):
    """The text of a window.

    Parameters
    ----------
    tokens : list of int
        The written tokens, with the prefix and timestamps, without the end token.
    avg_logprob : float
        The logarithm of their probability, divided by their number with the end token.
    no_speech_prob : float
        The probability that nobody speaks in the window.
    """

    tokens: list[int]
    avg_logprob: float
    no_speech_prob: float


class WindowSearch(BeamSearch):
    """The search for a text of a window, or one that draws its tokens with random numbers of its own."""

    def __init__(
        self,
        prompt: Prompt,
        rules: TokenRules,
        options: SearchOptions,
        generator: np.random.Generator | None = None,
    ) -> None:
        most = min(prompt.max_length // 2, prompt.max_length - len(prompt.tokens) + 1 + prompt.num_prefix)
        if options.max_new_tokens is not None:
            most = min(most, prompt.num_prefix + options.max_new_tokens)
        beams = options.beam_size if generator is None else 1
        patience = options.patience if beams > 1 else 1.0
        written = prompt.tokens[-1 - prompt.num_prefix :]  # after the last token of the prompt
        search = BeamRules(most, beams, options.length_penalty, early_stopping=True, patience=patience)
        super().__init__(search, SpecialTokens(written[0], (rules.end,)))
        self._beams = np.array([written], np.int64)
        self._num_prefix, self._token_rules = prompt.num_prefix, rules
        self._sampling, self._generator = SamplingOptions(temperature=options.temperature), generator

    @property
    def winner(self) -> EndedText:
        """The ended text with the highest score, without its end token."""
        return self._ended[0]

    def _candidates(
        self, logits: NDArray[np.floating], length: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.floating]]:
        self._token_rules.apply(logits, self._beams[:, 1:], self._num_prefix)
        highest = logits.max(-1, keepdims=True)
        if not np.isfinite(highest).all():
            raise ValueError(f"the largest logit of a token is {highest[~np.isfinite(highest)][0]}")
        totals = np.exp(logits - highest).sum(-1, keepdims=True)
        offsets = self._logs[:, None] - highest - np.log(totals)  # float64
        if self._generator is not None:
            token = drawn(self._sampling, logits[0], self._generator.random())
            return np.zeros(1, np.int64), np.array([token]), logits[0, [token]] + offsets[0]
        beams = self._rules.num_beams
        parents, tokens = most_probable(logits, offsets, 2 * beams)
        if self._num_prefix and length == self._num_prefix + 1:
            # Right after a prefix only the most probable token may end the text. Another end leaves its beam empty.
            late = tokens == self._token_rules.end
            left = beams - np.count_nonzero(late[1:beams]) + late[0]
            late[0] = False
            parents, tokens = parents[~late][:left], tokens[~late][:left]
        return parents, tokens, logits[parents, tokens] + offsets[parents, 0]

    def _ended_text(self, tokens: NDArray[np.int64], log_probability: float) -> EndedText:
        if tokens[-1] == self._token_rules.end:
            tokens = tokens[:-1]
        if not len(tokens):  # 0 to a power
            return EndedText(tokens, log_probability, -np.inf if self._rules.length_penalty > 0 else log_probability)
        return super()._ended_text(tokens, log_probability)

    def _can_improve(self, length: int) -> bool:
        if self._rules.length_penalty == 0:  # a longer text is never more probable than its beginning
            return not self._ended or bool(self._logs[0] > self._ended[0].score)
        return super()._can_improve(length)


def most_probable(
    logits: NDArray[np.floating], offsets: NDArray[np.floating], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows and columns of the `count` largest sums of logits [n, V] and offsets [n, 1], best first.

    Sums of minus infinity are left out, so there may be fewer.
    """
    sums = logits + offsets.astype(logits.dtype)
    rows, size = sums.shape
    # The columns are in _ROUNDS rounds of `width`; the few last ones are in none. The largest sums are in the columns
    # with the largest maxima over rounds.
    width = size // _ROUNDS
    maxima = sums[:, : width * _ROUNDS].reshape(rows, _ROUNDS, width).max(1)
    best, columns = np.divmod(largest(maxima.ravel(), min(count, maxima.size)), width)
    found = best[:, None] * size + columns[:, None] + np.arange(_ROUNDS) * width
    rest = np.arange(rows)[:, None] * size + np.arange(width * _ROUNDS, size)
    places = np.sort(np.concatenate([found, rest], axis=None))
    flat = sums.ravel()[places]
    order = largest(flat, min(count, len(flat)))
    order = order[np.isfinite(flat[order])]
    chosen_rows, chosen_columns = np.divmod(places[order], size)
    return chosen_rows, chosen_columns


def decode(
    model: Any,
    encoded: Any,
    windows: Sequence[int],
    prompts: Sequence[Prompt],
    rules: TokenRules,
    no_speech: int,
    options: SearchOptions,
    seeds: Sequence[int],
) -> list[Decoded]:
    """Return the text of each window, which has a place in `encoded`, a prompt, and a seed of its random numbers."""
    state = model.decoder(encoded, list(windows))
    # The logits after the start of the transcript tell whether somebody speaks, the last ones what is written next.
    starts = [prompt.start + 1 for prompt in prompts]
    begins = [np.array(prompt.tokens[:start]) for prompt, start in zip(prompts, starts, strict=True)]
    logits = state.step(begins, last_only=True)
    no_speech_probs = [_probability(row, no_speech) for row in logits]
    left = [np.array(prompt.tokens[start:]) for prompt, start in zip(prompts, starts, strict=True)]
    if len(left[0]):  # the prompts of a call have the same tokens of a task
        logits = state.step(left, last_only=True)

    copies = options.num_searches
    searches = [
        WindowSearch(prompt, rules, options, _generator(options, seed, copy))
        for prompt, seed in zip(prompts, seeds, strict=True)
        for copy in range(copies)
    ]
    logits = np.repeat(logits, copies, axis=0)
    sources = np.repeat(np.arange(len(prompts)), copies)  # the sequence of `state` that each row of logits continues
    going = searches
    while going:
        kept: list[NDArray[np.int64]] = []
        tokens: list[NDArray[np.int64]] = []
        read = 0
        for search in going:
            num_read = len(search.last_tokens)
            kept.append(read + search.step(logits[read : read + num_read]))
            if search.goes_on:
                tokens.append(search.last_tokens)
            read += num_read
        going = [search for search in going if search.goes_on]
        if going:
            state.select(sources[np.concatenate(kept)])
            new = np.concatenate(tokens)
            logits, sources = state.step(list(new[:, None])), np.arange(len(new))
    best = [
        max((search.winner for search in searches[i : i + copies]), key=lambda text: text.score)
        for i in range(0, len(searches), copies)
    ]
    return [
        Decoded(text.tokens.tolist(), text.log_probability / (len(text.tokens) + 1), probability)
        for text, probability in zip(best, no_speech_probs, strict=True)
    ]


def _generator(options: SearchOptions, seed: int, copy: int) -> np.random.Generator | None:
    """Return the random numbers of one of the texts that are drawn for a window: others at another temperature."""
    if options.temperature == 0:
        return None
    return np.random.default_rng([seed, copy, round(options.temperature * 1000)])


def _probability(logits: NDArray[np.floating], token: int) -> float:
    """Return the probability of a token by logits [V]."""
    return float(np.exp(logits[token] - logits.max()) / np.exp(logits - logits.max()).sum())
