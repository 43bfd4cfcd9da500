"""The choice of the next token of a sequence by its logits, and the options of the choice."""

from collections.abc import Callable, Mapping, Sequence
from inspect import cleandoc
from textwrap import indent
from typing import Any, NamedTuple, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...functions.messages import shown
from ...functions.scalars import checked_real
from ...layers._constructor_arguments import optional_size

Function = TypeVar("Function", bound=Callable[..., Any])

# Without top_k, only this many of the largest logits are sorted at first. They nearly always contain the drawn token.
# Sorting all 49,152 logits of a small vocabulary takes 6 ms, finding this many takes 0.1 ms.
_FEW = 1024


class SamplingKeywords(TypedDict, total=False):
    """Keyword arguments of every function that generates tokens; `SamplingOptions` explains them."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    seed: int | None


class SamplingOptions(NamedTuple):
    """How a token is chosen by its logits. The options take effect in the order of this list.

    repetition_penalty : float, optional
        Divide the logits of tokens that the sequence has already, its prompt included, by this number, and multiply
        those below zero. Above 1 it makes repetition rarer. It also has an effect at temperature 0.
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

    @classmethod
    def checked(cls, function: str, given: Mapping[str, Any]) -> "SamplingOptions":
        """Return the options that a caller gave by name, or raise TypeError or ValueError."""

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
        top_k = optional_size(function, "top_k", given.get("top_k"))
        seed = given.get("seed")
        try:
            np.random.SeedSequence(seed)
        except Exception as error:
            kind = ValueError if isinstance(seed, int) else TypeError
            raise kind(f"{function}: seed must be an integer of at least 0, or None; got {shown(seed)}") from error
        return cls(temperature, top_k, top_p, min_p, None if penalty == 1 else penalty, seed)


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
    only prompt. Messages name the caller, `function`.
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
    ) -> None:
        self._options, self.tokens, self._num_prompt = options, tokens, len(tokens)
        self.most_new, self._end_tokens, self.is_stopped = most_new, end_tokens, False
        self._subject = f"{function}: the largest logit" + ("" if index is None else f" of sequence {index}")
        self._generator: np.random.Generator | None = None
        if options.temperature > 0:
            self._generator = np.random.default_rng(np.random.SeedSequence(options.seed, spawn_key=(index or 0,)))
        self._at_random: list[float] = []  # one number for each new token
        self._seen = None if options.repetition_penalty is None else np.zeros(vocab_size, bool)
        self._num_seen = 0

    @property
    def new_tokens(self) -> list[int]:
        """The tokens after the prompt."""
        return self.tokens[self._num_prompt :]

    @property
    def has_ended(self) -> bool:
        """Whether no token follows."""
        tokens, first = self.tokens, self._num_prompt
        is_end = tokens[-1] in self._end_tokens and len(tokens) > first
        return is_end or self.is_stopped or len(tokens) - first >= self.most_new

    def choose(self, logits: NDArray[Any]) -> int:
        """Return the token after `tokens` by logits [V]. ValueError if the largest of them is not finite."""
        (token,) = choose([self], logits[None])
        if isinstance(token, ValueError):
            raise token
        return token

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
    rows = [i for i, choice in enumerate(choices) if choice._seen is not None]
    if rows:
        seen = [choice._mark_seen(choice._seen) for choice in choices if choice._seen is not None]
        penalties = np.array([[choices[i]._options.repetition_penalty] for i in rows], logits.dtype)
        logits = logits.copy()
        logits[rows] = _penalized(logits[rows], np.concatenate(seen).reshape(len(rows), -1), penalties)
        places = logits.argmax(-1)
    chosen: list[int | ValueError] = places.tolist()
    for i in np.flatnonzero(~np.isfinite(top)).tolist():
        chosen[i] = ValueError(f"{choices[i]._subject} is {top[i]}")
    for i, choice in enumerate(choices):
        if choice._generator is not None and not isinstance(chosen[i], ValueError):
            chosen[i] = _drawn(choice._options, logits[i], choice._random_number(choice._generator))
    return chosen


def largest(logits: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Return the places of the `count` largest logits in descending order, the first ones of equals."""
    if count == len(logits):
        return np.argsort(-logits, kind="stable")
    candidates = np.flatnonzero(logits >= np.partition(logits, -count)[-count])
    return candidates[np.argsort(-logits[candidates], kind="stable")[:count]]


def _penalized(logits: NDArray[Any], seen: NDArray[np.bool_], penalties: NDArray[Any]) -> NDArray[Any]:
    """Return logits [n, V] with the penalties [n, 1] on the tokens that have been seen."""
    with np.errstate(over="ignore"):  # a logit below zero may become minus infinity
        changed = np.where(logits < 0, logits * penalties, logits / penalties)
    return np.where(seen, changed, logits)


def _drawn(options: SamplingOptions, logits: NDArray[Any], at_random: float) -> int:
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
