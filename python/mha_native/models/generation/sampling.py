"""The choice of the next token of a sequence by its logits, and the options of the choice."""

import copy
from collections.abc import Callable, Mapping, Sequence
from inspect import cleandoc
from textwrap import indent
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...functions.messages import shown
from ...functions.scalars import checked_integer, checked_real
from ...layers._constructor_arguments import optional_size
from .logprobs import TokenLogprobs, largest, token_logprobs

Function = TypeVar("Function", bound=Callable[..., Any])

# Without top_k, only this many of the largest logits are sorted at first. They nearly always contain the drawn token.
# Sorting all 49,152 logits of a small vocabulary takes 6 ms, finding this many takes 0.1 ms.
_FEW = 1024

# Limits of the other interfaces to language models. A bias of -100 leaves a token no probability that float32 can
# express next to a likely one.
_MOST_PENALTY, _MOST_BIAS = 2, 100

# Rows of a prompt whose logits are computed together for their log-probabilities: 25 MB in float64 for a vocabulary of
# 49,152 tokens.
_PROMPT_ROWS = 64


class SamplingKeywords(TypedDict, total=False):
    """Keyword arguments of every function that generates tokens; `SamplingOptions` explains them."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: Mapping[int, float] | None
    min_new_tokens: int
    seed: int | None


class SamplingOptions(NamedTuple):
    """How a token is chosen by its logits. The options take effect in the order of this list.

    logit_bias : dict of int to float, optional
        Numbers from -100 to 100, which are added to the logits of these tokens.
    repetition_penalty : float, optional
        Divide the logits of tokens that the sequence has already, its prompt included, by this number, and multiply
        those below zero. Above 1 it makes repetition rarer. It also has an effect at temperature 0.
    frequency_penalty : float, optional
        Subtract this number, from -2 to 2, from the logit of a new token as often as the token was chosen already. The
        tokens of the prompt do not count.
    presence_penalty : float, optional
        Subtract this number, from -2 to 2, once from the logit of each token that was chosen already.
    min_new_tokens : int, default 0
        Choose no token that ends the text before there are so many new ones. A text of `stop` ends it all the same.
    temperature : float, default 0
        0 chooses the token with the largest logit, the first one of equals. Above 0, tokens are drawn with the
        probabilities ``softmax(logits / temperature)``.
    top_k : int, optional
        Draw among the `top_k` most probable tokens only.
    top_p : float, optional
        Draw among the fewest tokens whose probabilities add up to `top_p`, the most probable ones that `top_k` leaves.
    min_p : float, optional
        Draw among the tokens that have at least `min_p` times the probability of the most probable one.
    seed : int, optional
        Seed of the draws. Each prompt of a list has its own random numbers, so its draws do not depend on the others.
        Default: other draws in each call.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_new_tokens: int = 0

    @classmethod
    def checked(
        cls, function: str, given: Mapping[str, Any], vocab_size: int | None = None, most_new: int | None = None
    ) -> "SamplingOptions":
        """Return the options that a caller gave by name, or raise TypeError or ValueError.

        Tokens are below `vocab_size`, and `min_new_tokens` is at most `most_new`, if these are given.
        """

        def real(name: str, rule: str, holds: Callable[[float], bool], default: float | None = None) -> Any:
            if given.get(name, default) is None and default is None:
                return None
            number = checked_real(function, name, given.get(name, default))
            if not holds(number):
                raise ValueError(f"{function}: {name} must be {rule}; got {number}")
            return number

        temperature = real("temperature", "0 or above", lambda x: x >= 0, 0.0)
        top_p = real("top_p", "above 0 and at most 1", lambda x: 0 < x <= 1)
        min_p = real("min_p", "from 0 to 1", lambda x: 0 <= x <= 1)
        real("repetition_penalty", "above 0", lambda x: x > 0)
        least = float(np.finfo(np.float32).tiny)  # logits in float32 are divided by it
        penalty = real("repetition_penalty", f"at least {least:.2g}", lambda x: x >= least)
        rule = f"from {-_MOST_PENALTY} to {_MOST_PENALTY}"
        frequency, presence = (
            real(name, rule, lambda x: abs(x) <= _MOST_PENALTY) or 0.0
            for name in ("frequency_penalty", "presence_penalty")
        )
        bias = _checked_bias(function, given.get("logit_bias"), vocab_size)
        least_new = checked_integer(function, "min_new_tokens", given.get("min_new_tokens", 0), 0, most_new)
        top_k = optional_size(function, "top_k", given.get("top_k"))
        seed = given.get("seed")
        try:
            np.random.SeedSequence(seed)
        except Exception as error:
            kind = ValueError if isinstance(seed, int) else TypeError
            raise kind(f"{function}: seed must be an integer of at least 0, or None; got {shown(seed)}") from error
        penalty = None if penalty == 1 else penalty
        return cls(temperature, top_k, top_p, min_p, penalty, seed, frequency, presence, bias, least_new)


def checked_token(function: str, name: str, token: Any, vocab_size: int | None) -> int:
    """Return a token that a caller gave in the argument `name`, or raise TypeError or ValueError."""
    return checked_integer(function, f"a token of {name}", token, 0, None if vocab_size is None else vocab_size - 1)


def _checked_bias(function: str, given: Any, vocab_size: int | None) -> tuple[tuple[int, float], ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise TypeError(f"{function}: logit_bias must be a dict of tokens and numbers; got {shown(given)}")
    found = []
    for key, value in given.items():
        token = checked_token(function, "logit_bias", key, vocab_size)
        bias = checked_real(function, f"logit_bias of token {token}", value)
        if abs(bias) > _MOST_BIAS:
            raise ValueError(
                f"{function}: logit_bias of token {token} must be from {-_MOST_BIAS} to {_MOST_BIAS}; got {bias}"
            )
        found.append((token, bias))
    return tuple(found)


def explains_sampling(function: Function) -> Function:
    """Put the explanation of `SamplingOptions` in place of the line ``{sampling}`` of a docstring."""
    explained = cleandoc(SamplingOptions.__doc__ or "").partition("\n\n")[2]
    if function.__doc__:  # python -OO has none
        before, _, after = function.__doc__.partition("{sampling}")
        margin = " " * (len(before) - len(before.rstrip(" ")))
        function.__doc__ = before + indent(explained, margin).lstrip(" ") + after
    return function


class TokenChoice:
    """Chooses the tokens of one sequence.

    A choice depends on the logits and on `tokens` only: to repeat it changes nothing. `tokens` is the prompt, to which
    the caller appends each chosen token. There are at most `most_new` new tokens. Each of `end_tokens` ends the
    sequence, as its last token, and the caller can end it by `is_stopped`.

    `index` is the place of the prompt among the prompts of a call, each of which has its own random numbers; None: the
    only prompt. With `num_logprobs` the log-probabilities of each new token and of so many most probable ones are kept,
    with `num_prompt_logprobs` also of each token of the prompt. Messages name the caller, `function`.
    """

    def __init__(
        self,
        function: str,
        options: SamplingOptions,
        tokens: list[int],
        vocab_size: int,
        most_new: int,
        end_tokens: frozenset[int] = frozenset(),
        index: int | None = None,
        num_logprobs: int | None = None,
        num_prompt_logprobs: int | None = None,
    ) -> None:
        if options.min_new_tokens and len(end_tokens) == vocab_size:
            raise ValueError(f"{function}: min_new_tokens needs a token that does not end the text; each of them does")
        self._options, self.tokens, self._num_prompt = options, tokens, len(tokens)
        self.most_new, self.end_tokens, self.is_stopped = most_new, end_tokens, False
        self._subject = f"{function}: the largest logit" + ("" if index is None else f" of sequence {index}")
        self._generator: np.random.Generator | None = None
        if options.temperature > 0:
            self._generator = np.random.default_rng(np.random.SeedSequence(options.seed, spawn_key=(index or 0,)))
        self._at_random: list[float] = []  # one number for each new token
        self._seen = None if options.repetition_penalty is None else np.zeros(vocab_size, bool)
        self._num_seen = 0
        self._biased = np.array([token for token, _ in options.logit_bias], np.int64)
        self._biases = np.array([bias for _, bias in options.logit_bias])
        self._ends = np.array(sorted(end_tokens), np.int64)
        self._num_logprobs, self._num_prompt_logprobs = num_logprobs, num_prompt_logprobs
        self._logprobs: list[TokenLogprobs] = []  # of new tokens
        self._prompt_logprobs: list[TokenLogprobs | None] = [None]  # of the tokens of the prompt so far

    @property
    def new_tokens(self) -> list[int]:
        """The tokens after the prompt."""
        return self.tokens[self._num_prompt :]

    @property
    def finish_reason(self) -> Literal["stop", "length"] | None:
        """Why no token follows; None if one does."""
        tokens, first = self.tokens, self._num_prompt
        if self.is_stopped or (len(tokens) > first and tokens[-1] in self.end_tokens):
            return "stop"
        return "length" if len(tokens) - first >= self.most_new else None

    @property
    def has_ended(self) -> bool:
        """Whether no token follows."""
        return self.finish_reason is not None

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        """The log-probabilities of the new tokens; None without `num_logprobs`."""
        num_new = len(self.tokens) - self._num_prompt
        return None if self._num_logprobs is None else tuple(self._logprobs[:num_new])

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs | None, ...] | None:
        """The log-probabilities of the tokens of the prompt so far; None without `num_prompt_logprobs`."""
        return None if self._num_prompt_logprobs is None else tuple(self._prompt_logprobs)

    @property
    def reads_all(self) -> bool:
        """Whether `read_prompt` needs the rows of all tokens of the prompt."""
        return self._num_prompt_logprobs is not None

    @property
    def num_left(self) -> int:
        """The most tokens that may follow."""
        return self.most_new - len(self.tokens) + self._num_prompt

    def ahead(self) -> "TokenChoice":
        """Return a choice of the same tokens, by the same options and random numbers, with `tokens` of its own."""
        other = copy.copy(self)
        other.tokens, other._num_logprobs = self.tokens.copy(), None
        other._seen = None if self._seen is None else self._seen.copy()
        return other

    def choose(self, logits: NDArray[Any]) -> int:
        """Return the token after `tokens` by logits [V]. ValueError if the largest of them is not finite."""
        (token,) = choose([self], logits[None])
        if isinstance(token, ValueError):
            raise token
        return token

    def read_prompt(self, first: int, rows: NDArray[Any], logits: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        """Keep the log-probabilities of tokens of the prompt, with `num_prompt_logprobs`.

        `rows` [n, E] are vectors of the last layer for the tokens from place `first` on, all tokens before which have
        been read. `logits` makes logits of rows.
        """
        after = self.tokens[first + 1 : min(first + 1 + len(rows), self._num_prompt)]
        for place in range(0, len(after) if self._num_prompt_logprobs is not None else 0, _PROMPT_ROWS):
            some = after[place : place + _PROMPT_ROWS]
            found = token_logprobs(logits(rows[place : place + len(some)]), some, self._num_prompt_logprobs or 0)
            self._prompt_logprobs[first + 1 + place : first + 1 + place + len(some)] = found

    def _is_largest(self) -> bool:
        """Return whether the next token is the one with the largest logit, and nothing else is asked of the logits."""
        return self._generator is None and self._num_logprobs is None and not self._changes_logits()

    def _changes_logits(self) -> bool:
        options = self._options
        penalties = options.frequency_penalty or options.presence_penalty or self._seen is not None
        return bool(penalties or options.logit_bias or self._lacks_tokens())

    def _lacks_tokens(self) -> bool:
        return len(self.tokens) - self._num_prompt < self._options.min_new_tokens and len(self._ends) > 0

    def _next(self, logits: NDArray[Any]) -> int:
        """Return the next token by logits [V], whose largest one is finite, and keep its log-probability."""
        changed = self._changed(logits) if self._changes_logits() else logits
        if self._generator is None:
            token = int(changed.argmax())
        else:
            token = drawn(self._options, changed, self._random_number(self._generator))
        if self._num_logprobs is not None:
            self._logprobs[len(self.tokens) - self._num_prompt :] = token_logprobs(
                logits[None], [token], self._num_logprobs
            )
        return token

    def _changed(self, logits: NDArray[Any]) -> NDArray[Any]:
        """Return logits [V] changed by bias, penalties and `min_new_tokens`."""
        options, changed = self._options, logits.copy()
        changed[self._biased] += self._biases
        if self._seen is not None:
            seen = np.flatnonzero(self._mark_seen(self._seen))
            penalty = logits.dtype.type(options.repetition_penalty)
            changed[seen] = penalized(changed[seen], penalty)
        if options.frequency_penalty or options.presence_penalty:
            tokens, counts = np.unique(np.array(self.new_tokens, np.int64), return_counts=True)
            changed[tokens] -= options.frequency_penalty * counts + options.presence_penalty
        if self._lacks_tokens():
            changed[self._ends] = -np.inf
        return changed

    def _mark_seen(self, seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return `seen` [V], which is True for the tokens so far."""
        for token in self.tokens[self._num_seen :]:  # one, after the first step
            seen[token] = True
        self._num_seen = len(self.tokens)
        return seen

    def _random_number(self, generator: np.random.Generator) -> float:
        """Return the number in [0, 1) that draws the next token."""
        place = len(self.tokens) - self._num_prompt
        while len(self._at_random) <= place:
            self._at_random.append(generator.random())
        return self._at_random[place]


def choose(choices: Sequence[TokenChoice], logits: NDArray[Any]) -> list[int | ValueError]:
    """Return the next token of each of n sequences by logits [n, V], or the error of logits that are not finite."""
    places = logits.argmax(-1)  # of NaN, if a row has one
    top = logits[np.arange(len(places)), places]
    chosen: list[int | ValueError] = places.tolist()
    for i in np.flatnonzero(~np.isfinite(top)).tolist():
        chosen[i] = ValueError(f"{choices[i]._subject} is {top[i]}")
    for i, choice in enumerate(choices):
        if not choice._is_largest() and not isinstance(chosen[i], ValueError):
            chosen[i] = choice._next(logits[i])
    return chosen


def penalized(logits: NDArray[Any], penalty: Any) -> NDArray[Any]:
    """Return logits with the penalty of tokens that have been seen."""
    with np.errstate(over="ignore"):  # a logit below zero may become minus infinity
        return np.asarray(np.where(logits < 0, logits * penalty, logits / penalty))


def drawn(options: SamplingOptions, logits: NDArray[Any], at_random: float) -> int:
    """Return the token that a number in [0, 1) chooses by logits [V], with a temperature above 0."""
    top_k = options.top_k
    if top_k is None and len(logits) > _FEW:
        order = largest(logits, _FEW)
        total = float(_weights(options, logits, logits[order[0]]).sum())
        place = _place(options, _weights(options, logits[order], logits[order[0]]), total, at_random)
        if place is not None:
            return int(order[place])
    order = largest(logits, len(logits) if top_k is None else min(top_k, len(logits)))
    place = _place(options, _weights(options, logits[order], logits[order[0]]), None, at_random)
    return int(order[place or 0])


def _weights(options: SamplingOptions, logits: NDArray[Any], largest: Any) -> NDArray[np.float64]:
    """Return the probabilities of logits as multiples of the probability of the largest one."""
    differences = logits.astype(np.float64) - largest  # 0 for the largest, whatever divides it
    with np.errstate(over="ignore"):  # by a tiny temperature, to minus infinity
        return np.asarray(np.exp(differences / options.temperature))


def _place(options: SamplingOptions, weights: NDArray[np.float64], total: float | None, at_random: float) -> int | None:
    """Return the place in `weights`, the largest first, that a number in [0, 1) chooses.

    With a `total`, `weights` are the beginning of a longer list with this sum; None if the rest of the list decides.
    """
    sums, count = np.cumsum(weights), len(weights)
    kept = count if total is None else count + 1  # one more stands for the rest of the list
    total = float(sums[-1]) if total is None else total
    if options.top_p is not None:
        kept = min(kept, int(np.searchsorted(sums / total, options.top_p)) + 1)
    if options.min_p is not None:
        probable = int(np.searchsorted(-weights, -options.min_p, side="right"))
        if probable < count:
            kept = min(kept, probable)
    if kept <= count:
        sums, total = sums[: kept - 1], float(sums[kept - 1])
    elif options.top_p is not None or options.min_p is not None:
        return None
    place = int(np.searchsorted(sums, at_random * total, side="right"))
    return place if place < count else None
