"""The choice of the next token of each sequence by its logits."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...functions.messages import shown
from ...functions.scalars import checked_real
from ...layers._constructor_arguments import checked_size

# Without a top_k, so many tokens are put in order at first. They nearly always hold the one that is drawn; to sort the
# 49,152 of a small vocabulary takes 6 ms, to find so many of them 0.1 ms.
_FEW = 1024


class SamplingRules(NamedTuple):
    """How a token is chosen, in the order in which rules take effect: `repetition_penalty` on logits, `temperature`,
    then `top_k`, `top_p` and `min_p` among what is left. `generate` says what each of them means."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def checked_rules(
    function: str,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    repetition_penalty: float | None,
) -> SamplingRules:
    """The rules that a caller gave, or TypeError or ValueError."""
    temperature = checked_real(function, "temperature", temperature)
    if temperature < 0:
        raise ValueError(f"{function}: temperature must be 0 or above; got {temperature}")
    top_p = None if top_p is None else checked_real(function, "top_p", top_p)
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"{function}: top_p must be above 0 and at most 1; got {top_p}")
    min_p = None if min_p is None else checked_real(function, "min_p", min_p)
    if min_p is not None and not 0 <= min_p <= 1:
        raise ValueError(f"{function}: min_p must be from 0 to 1; got {min_p}")
    penalty = None if repetition_penalty is None else checked_real(function, "repetition_penalty", repetition_penalty)
    if penalty is not None and penalty <= 0:
        raise ValueError(f"{function}: repetition_penalty must be above 0; got {penalty}")
    top_k = None if top_k is None else checked_size(function, "top_k", top_k)
    return SamplingRules(temperature, top_k, top_p, min_p, None if penalty == 1 else penalty)


class Chooser:
    """Chooses the next token of each sequence.

    Parameters
    ----------
    function : str
        The name of the caller, for messages.
    rules : SamplingRules
    seed : int, optional
        Each sequence has random numbers of its own.
    tokens : integer array [B, T]
        The prompts.
    lengths : integer array [B]
        What is behind them is padding.
    vocab_size : int
        V.
    """

    def __init__(
        self,
        function: str,
        rules: SamplingRules,
        seed: int | None,
        tokens: NDArray[np.int64],
        lengths: NDArray[np.int64],
        vocab_size: int,
    ) -> None:
        self._function, self._rules = function, rules
        batch = len(tokens)
        self._generators = generators(function, rules, seed, batch)
        self._seen: NDArray[np.bool_] | None = None  # [B, V]
        if rules.repetition_penalty is not None:
            self._seen = np.zeros((batch, vocab_size), bool)
            for seen, prompt, length in zip(self._seen, tokens, lengths, strict=True):
                seen[prompt[:length]] = True

    def __call__(self, logits: NDArray[Any], sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Logits [n, V] of some sequences [n] to their tokens [n]."""
        largest = logits.max(-1)  # NaN if the row has one
        for i in np.flatnonzero(~np.isfinite(largest)):
            raise ValueError(f"{self._function}: the largest logit of sequence {sequences[i]} is {largest[i]}")
        if self._seen is not None:
            logits = penalized(self._rules, logits, self._seen[sequences])
        if self._rules.temperature == 0:
            chosen = np.asarray(logits.argmax(-1), np.int64)
        else:
            drawing = [self._generators[b].random() for b in sequences]
            chosen = np.array([drawn(self._rules, row, x) for row, x in zip(logits, drawing, strict=True)])
        if self._seen is not None:
            self._seen[sequences, chosen] = True
        return chosen


def generators(function: str, rules: SamplingRules, seed: int | None, count: int) -> list[np.random.Generator]:
    """What `count` sequences draw by, each its own; nothing if nothing is drawn."""
    try:
        children = np.random.SeedSequence(seed).spawn(count if rules.temperature > 0 else 0)
    except Exception as error:
        kind = ValueError if isinstance(seed, int) else TypeError
        raise kind(f"{function}: seed must be an integer of at least 0, or None; got {shown(seed)}") from error
    return [np.random.default_rng(child) for child in children]


def penalized(rules: SamplingRules, logits: NDArray[Any], seen: NDArray[np.bool_]) -> NDArray[Any]:
    """Logits [..., V], changed by the penalty where tokens have been seen."""
    penalty: Any = rules.repetition_penalty
    with np.errstate(over="ignore"):  # a logit below zero may become minus infinity
        changed = np.where(logits < 0, logits * penalty, logits / penalty)
    return np.where(seen, changed, logits)


def drawn(rules: SamplingRules, logits: NDArray[Any], at_random: float) -> int:
    """The token that a number in [0, 1) chooses by logits [V], under a temperature above 0."""
    if rules.top_k is None and len(logits) > _FEW:
        order = largest(logits, _FEW)
        total = float(_weights(rules, logits, logits[order[0]]).sum())
        place = _place(rules, _weights(rules, logits[order], logits[order[0]]), total, at_random)
        if place is not None:
            return int(order[place])
    order = largest(logits, len(logits) if rules.top_k is None else min(rules.top_k, len(logits)))
    place = _place(rules, _weights(rules, logits[order], logits[order[0]]), None, at_random)
    return int(order[place or 0])


def largest(logits: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Which `count` logits are the largest, in their order, the first ones of equals."""
    if count == len(logits):
        return np.argsort(-logits, kind="stable")
    candidates = np.flatnonzero(logits >= np.partition(logits, -count)[-count])
    return candidates[np.argsort(-logits[candidates], kind="stable")[:count]]


def _weights(rules: SamplingRules, logits: NDArray[Any], largest: Any) -> NDArray[np.float64]:
    """What the probabilities of logits are proportional to: 1 for the largest."""
    differences = logits.astype(np.float64) - largest  # 0 of the largest, however it is divided
    with np.errstate(over="ignore"):  # by a tiny temperature, to minus infinity
        return np.asarray(np.exp(differences / rules.temperature))


def _place(rules: SamplingRules, weights: NDArray[np.float64], total: float | None, at_random: float) -> int | None:
    """Which of `weights`, the largest first, a number in [0, 1) chooses. With a `total` they are the beginning of more,
    which sum to it: None if those decide."""
    sums, count = np.cumsum(weights), len(weights)
    kept = count if total is None else count + 1  # one more stands for all behind them
    total = float(sums[-1]) if total is None else total
    if rules.top_p is not None:
        kept = min(kept, int(np.searchsorted(sums / total, rules.top_p)) + 1)
    if rules.min_p is not None:
        probable = int(np.searchsorted(-weights, -rules.min_p, side="right"))
        if probable < count:
            kept = min(kept, probable)
    if kept <= count:
        sums, total = sums[: kept - 1], float(sums[kept - 1])
    elif rules.top_p is not None or rules.min_p is not None:
        return None
    place = int(np.searchsorted(sums, at_random * total, side="right"))
    return place if place < count else None
