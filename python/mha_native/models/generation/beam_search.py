"""The search for the most probable tokens of texts: greedy, or by beams."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...functions.messages import shown
from ...functions.scalars import checked_integer, checked_real
from ...layers._constructor_arguments import checked_size
from .engine import MOST_NEW_TOKENS, Caches
from .logprobs import largest

EarlyStopping: TypeAlias = bool | Literal["never"]

# Largest length_penalty of either sign: 2^63 tokens to this power are a finite number in float64.
_MOST_PENALTY = 16


class SpecialTokens(NamedTuple):
    """Tokens that begin and end generated texts."""

    start: int  # the token that the decoder reads before the first one
    ends: tuple[int, ...]  # each of them ends a text, as its last token
    forced_first: int | None = None  # the first token, whatever its probability
    # One of them is the last token of a text of the greatest length; if empty, any token.
    forced_last: tuple[int, ...] = ()
    never: tuple[int, ...] = ()  # tokens that are written only where they are forced


class SearchKeywords(TypedDict, total=False):
    """Keyword arguments of all methods of `Seq2SeqLM` that generate; `Seq2SeqLM.generate` explains them."""

    max_new_tokens: int
    num_beams: int
    length_penalty: float
    early_stopping: EarlyStopping
    no_repeat_ngram_size: int
    min_new_tokens: int
    forced_first_token: int | None
    num_threads: int | None


class BeamRules(NamedTuple):
    """The options of a search for a text; `Seq2SeqLM.generate` explains them."""

    max_new_tokens: int
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    no_repeat_ngram_size: int = 0
    min_new_tokens: int = 0
    patience: float = 1.0  # as many texts are kept as num_beams times this number, rounded

    @property
    def num_kept(self) -> int:
        """The most texts that are kept, and the number of them that ends a search with early stopping."""
        return max(1, round(self.num_beams * self.patience))

    @classmethod
    def checked(cls, function: str, given: Mapping[str, Any], max_length: int | None) -> "BeamRules":
        """Return the rules that a caller gave by name for a model with `max_length` positions, or raise TypeError or
        ValueError."""
        default = MOST_NEW_TOKENS if max_length is None else min(MOST_NEW_TOKENS, max_length)
        most = checked_size(function, "max_new_tokens", given.get("max_new_tokens", default))
        beams = checked_size(function, "num_beams", given.get("num_beams", 1))
        penalty = checked_real(function, "length_penalty", given.get("length_penalty", 1.0))
        if abs(penalty) > _MOST_PENALTY:
            raise ValueError(
                f"{function}: length_penalty must be from {-_MOST_PENALTY} to {_MOST_PENALTY}; "
                f"got {shown(given['length_penalty'])}"
            )
        stops = given.get("early_stopping", False)
        if isinstance(stops, str):
            if stops != "never":
                raise ValueError(f"{function}: early_stopping must be a bool or 'never'; got {shown(stops)}")
        else:
            stops = _core.boolean(function, "early_stopping", stops)
        ngram = checked_integer(function, "no_repeat_ngram_size", given.get("no_repeat_ngram_size", 0), 0)
        least = checked_integer(function, "min_new_tokens", given.get("min_new_tokens", 0), 0, most)
        for name in given:
            if name not in SearchKeywords.__optional_keys__:
                raise TypeError(f"{function}: got an unexpected keyword argument {shown(name)}")
        if max_length is not None and most > max_length:
            raise ValueError(
                f"{function}: max_new_tokens must be at most the positions of the model, {max_length}; got {most}"
            )
        # With one beam the search ends with the text that ends first, which is the greedy one.
        return cls(most, beams, penalty, True if beams == 1 else stops, ngram, least)


class GeneratedText(NamedTuple):
    """A result of `Seq2SeqLM.generate_tokens`.

    Parameters
    ----------
    tokens : int64 [n]
        The generated tokens, including the end token.
    score : float
        The logarithm of their probability, divided by ``n ** length_penalty``. Forced tokens have probability 1.

    Examples
    --------
    >>> import numpy as np
    >>> from mha_native.models import GeneratedText
    >>> GeneratedText(np.array([5, 2]), -1.25).score
    -1.25
    """

    tokens: NDArray[np.int64]
    score: float


class EndedText(NamedTuple):
    """A text that a search has kept."""

    tokens: NDArray[np.int64]
    log_probability: float
    score: float


class BeamSearch:
    """The search for one text, step by step.

    A beam is a beginning of a text, with the logarithm of its probability. A step continues every beam with every
    token, and keeps the most probable continuations as beams. A continuation that ends is kept as a text if it is among
    the `num_beams` most probable ones, and so are at most `num_kept` texts, the ones with the highest scores.
    """

    def __init__(self, rules: BeamRules, special: SpecialTokens) -> None:
        self._rules, self._special = rules, special
        self._ends = np.array(special.ends, np.int64)
        self._ended: list[EndedText] = []  # the best one first
        self._beams = np.array([[special.start]], np.int64)  # [n, t], the most probable one first
        self._logs: NDArray[Any] = np.zeros(1)
        self.goes_on = True

    @property
    def last_tokens(self) -> NDArray[np.int64]:
        """The last token of each beam, which the decoder reads next: [n] with n of at most `num_beams`."""
        return self._beams[:, -1]

    @property
    def best(self) -> GeneratedText:
        """The ended text with the highest score, or the most probable beam."""
        if self._ended:
            return GeneratedText(self._ended[0].tokens, self._ended[0].score)
        return GeneratedText(self._beams[0, 1:].copy(), float(self._logs[0]))

    def step(self, logits: NDArray[np.floating]) -> NDArray[np.int64]:
        """Extend the beams by one token, by the logits [n, V] of the token after each of them.

        Return the beam, of n, that each of the m new ones continues: [m], which is empty if the search has ended.
        """
        rules, length = self._rules, self._beams.shape[1]  # new tokens, with the one that is chosen here
        parents, tokens, logs = self._candidates(logits, length)
        beams = np.concatenate([self._beams[parents], tokens[:, None]], axis=1)
        ends = (tokens[:, None] == self._ends).any(1) | (length == rules.max_new_tokens)
        for i in np.flatnonzero(ends[: rules.num_beams]):
            self._ended.append(self._ended_text(beams[i, 1:], float(logs[i])))
        self._ended = sorted(self._ended, key=lambda found: -found.score)[: rules.num_kept]
        on = np.flatnonzero(~ends)[: rules.num_beams]
        if len(on):
            self._beams, self._logs = beams[on], logs[on]
        self.goes_on = len(on) > 0 and self._can_improve(length)
        return parents[on] if self.goes_on else parents[:0]

    def _candidates(
        self, logits: NDArray[np.floating], length: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.floating]]:
        """Return the most probable continuations: their beams, tokens and log probabilities, [m] each, best first."""
        sums = self._logs[:, None] + self._log_probabilities(logits, length)
        flat = sums.ravel()
        order = largest(flat, min(max(2, 1 + len(self._ends)) * self._rules.num_beams, flat.size))
        order = order[np.isfinite(flat[order])]  # forbidden tokens are minus infinity
        parents, tokens = np.divmod(order, sums.shape[1])
        return parents, tokens, flat[order]

    def _ended_text(self, tokens: NDArray[np.int64], log_probability: float) -> EndedText:
        return EndedText(tokens, log_probability, log_probability / len(tokens) ** self._rules.length_penalty)

    def _can_improve(self, length: int) -> bool:
        """Return whether the rules let the most probable beam still beat the worst text that is kept."""
        rules = self._rules
        if len(self._ended) < rules.num_kept:
            return True
        if rules.early_stopping is True:
            return False
        if rules.early_stopping == "never" and rules.length_penalty > 0:
            length = rules.max_new_tokens
        return bool(self._logs[0] / length**rules.length_penalty > self._ended[-1].score)

    def _log_probabilities(self, logits: NDArray[np.floating], length: int) -> NDArray[np.float64]:
        """Return log probabilities [n, V] after each beam: 0 for a forced token, minus infinity for a forbidden one."""
        rules, special = self._rules, self._special
        forced = special.forced_last if length == rules.max_new_tokens else ()
        if length == 1 and special.forced_first is not None and not forced:
            forced = (special.forced_first,)
        if forced:
            only = np.full(logits.shape, -np.inf)
            only[:, list(forced)] = 0
            return only
        highest = logits.max(-1, keepdims=True)  # NaN if the row has one
        if not np.isfinite(highest).all():
            raise ValueError(f"the largest logit is {highest[~np.isfinite(highest)][0]}")
        logs: NDArray[np.float64] = np.subtract(logits, highest, dtype=np.float64)
        logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
        logs[:, np.array(special.never, np.int64)] = -np.inf
        if rules.no_repeat_ngram_size:
            for row, beam in zip(logs, self._beams, strict=True):
                row[would_repeat(beam, rules.no_repeat_ngram_size)] = -np.inf
        if length <= rules.min_new_tokens:
            logs[:, self._ends] = -np.inf
        return logs


def search(
    model: Any, sequences: Sequence[list[int]], rules: BeamRules, special: SpecialTokens, num_threads: int | None
) -> list[GeneratedText]:
    """Return the text that an encoder-decoder writes for each of B texts, which are given by their tokens."""
    batch, beams = len(sequences), rules.num_beams
    caches = Caches(model.cached(num_threads, sequences, beams), batch * beams, 1, rules.max_new_tokens)
    searches = [BeamSearch(rules, special) for _ in sequences]
    # Slot i * beams + j of the caches is beam j of text i. A text has one beam at first.
    slots = np.arange(0, batch * beams, beams)
    for place in range(rules.max_new_tokens):
        going = [(i * beams, each) for i, each in enumerate(searches) if each.goes_on]
        tokens = np.concatenate([each.last_tokens for _, each in going])
        rows = caches.append(tokens, np.full(len(slots), place), np.ones_like(slots), slots)
        logits, sources, read, slots = caches.logits(rows), np.arange(batch * beams), 0, slots[:0]
        for first, each in going:
            num_read = len(each.last_tokens)
            parents = each.step(logits[read : read + num_read])
            read += num_read
            own = np.arange(first, first + len(parents))
            sources[own], slots = first + parents, np.append(slots, own)
        if not len(slots):
            break
        if beams > 1:
            for cache in caches.caches:
                cache.reorder(sources)
    return [each.best for each in searches]


def would_repeat(tokens: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the tokens that would repeat an n-gram of `size` tokens after `tokens`."""
    if len(tokens) < size:
        return tokens[:0]
    runs = np.lib.stride_tricks.sliding_window_view(tokens, size)
    is_same = (runs[:, :-1] == tokens[len(tokens) - size + 1 :]).all(axis=1)
    return np.asarray(runs[is_same, -1])
