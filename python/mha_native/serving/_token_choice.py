"""The choice of the next token of each of many sequences, each by rules of its own."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..models.generation.sampling import SamplingRules, drawn, generators, penalized


class TokenChoice:
    """Chooses the tokens of one sequence as `Chooser` does for a prompt alone.

    What it chooses depends on the logits and on the tokens so far, and on nothing else: to choose again changes
    nothing.

    Parameters
    ----------
    function : str
        The name of the caller, for messages.
    rules : SamplingRules
    seed : int, optional
    num_prompt : int
        How many tokens the prompt has.
    vocab_size : int
        V.
    """

    def __init__(self, function: str, rules: SamplingRules, seed: int | None, num_prompt: int, vocab_size: int) -> None:
        self.function, self._rules, self._num_prompt = function, rules, num_prompt
        self._generators = generators(function, rules, seed, 1)
        self._at_random: list[float] = []  # one for each new token
        self._seen = None if rules.repetition_penalty is None else np.zeros(vocab_size, bool)
        self._num_seen = 0

    @property
    def takes_the_largest(self) -> bool:
        """Whether it is the largest logit, as it is, that is chosen."""
        return self._rules.temperature == 0 and self._seen is None

    def __call__(self, logits: NDArray[Any], tokens: list[int]) -> int:
        """The token behind `tokens`, the prompt and what was chosen so far, by logits [V]."""
        if self._seen is not None:
            self._seen[tokens[self._num_seen :]] = True
            self._num_seen = len(tokens)
            logits = penalized(self._rules, logits, self._seen)
        if not self._generators:
            return int(logits.argmax())
        place = len(tokens) - self._num_prompt
        while len(self._at_random) <= place:
            self._at_random.append(self._generators[0].random())
        return drawn(self._rules, logits, self._at_random[place])


def choose(logits: NDArray[Any], choices: Sequence[TokenChoice], tokens: Sequence[list[int]]) -> list[int | ValueError]:
    """The next token of each of N sequences by logits [N, V], or what is wrong with its logits."""
    places = logits.argmax(-1)  # of NaN, if a row has one
    largest = logits[np.arange(len(places)), places]
    chosen: list[int | ValueError] = places.tolist()
    for i in np.flatnonzero(~np.isfinite(largest)).tolist():
        chosen[i] = ValueError(f"{choices[i].function}: the largest logit is {largest[i]}")
    for i, choice in enumerate(choices):
        if not choice.takes_the_largest and not isinstance(chosen[i], ValueError):
            chosen[i] = choice(logits[i], tokens[i])
    return chosen
