"""Speculation: several tokens are drafted, and one call of the model verifies all of them.

A drafted token is kept if the model chooses the same token, by the same logits and the same random number. So the
tokens of a sequence are the tokens without drafts, at any temperature, whatever the drafts are.

Source: Y. Leviathan, M. Kalman, Y. Matias, Fast inference from transformers via speculative decoding, 2023;
A. Saxena, Prompt lookup decoding, 2023.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...functions.messages import in_the_name_of, shown
from ..text.batching import packed
from .engine import Caches, GenerationStatistics, Step, add_tokens, generate_steps, last_rows
from .sampling import TokenChoice, choose

PROMPT_LOOKUP = "prompt-lookup"

# A lookup compares this many of the last tokens.
_MOST_EQUAL = 16


class Drafter(Protocol):
    """Guesses the next tokens of sequences."""

    def drafts(self, choices: Sequence[TokenChoice], slots: NDArray[np.int64], most: Sequence[int]) -> list[list[int]]:
        """Return the drafted tokens after the tokens of each of n sequences, at most ``most[i]`` of them.

        `slots` [n] tell which of all sequences these are.
        """


class PromptLookup:
    """Drafts the tokens that followed the last tokens when these occurred before, in the prompt or the text."""

    def drafts(self, choices: Sequence[TokenChoice], slots: NDArray[np.int64], most: Sequence[int]) -> list[list[int]]:
        """Return the tokens after the longest earlier occurrence of the last tokens; of equally long ones the last."""
        return [_continuation(choice.tokens, each) for choice, each in zip(choices, most, strict=True)]


def _continuation(tokens: list[int], most: int) -> list[int]:
    known = np.array(tokens, np.int64)
    last = len(known) - 1
    ends = np.arange(last)  # the last places of earlier occurrences of the last `length` tokens
    for length in range(min(last, _MOST_EQUAL)):
        longer = ends[ends >= length]
        longer = longer[known[longer - length] == known[last - length]]
        if not len(longer):
            break
        ends = longer
    else:
        length = min(last, _MOST_EQUAL)
    first = int(ends[-1]) + 1 if length else 0
    num_tokens = min(most, length)  # the longer the match, the longer it goes on
    return [tokens[first + i % (len(tokens) - first)] for i in range(num_tokens)]  # a match may overlap the last tokens


class DraftModel:
    """Drafts the tokens that another, smaller model chooses, by the same options and random numbers.

    `most_tokens` is the number of positions of that model: longer texts get no drafts.
    """

    def __init__(self, caches: Caches, num_slots: int, most_tokens: int) -> None:
        self._caches, self._most_tokens = caches, most_tokens
        self._lengths = np.zeros(num_slots, np.int64)  # tokens of each sequence in the caches

    def drafts(self, choices: Sequence[TokenChoice], slots: NDArray[np.int64], most: Sequence[int]) -> list[list[int]]:
        """Return the tokens that the model generates after the tokens of each sequence, until one of them ends it."""
        ahead = [choice.ahead() for choice in choices]
        lengths = np.array([len(choice.tokens) for choice in choices])
        # Of a draft of the last call, tokens from the first rejected one on are forgotten.
        kept = self._lengths.copy()
        kept[slots] = np.minimum(kept[slots], lengths - 1)
        self._caches.rollback(self._lengths - kept)
        self._lengths = kept
        ends = np.minimum(lengths + most, self._most_tokens + 1)  # the tokens that the drafts can end with
        while True:
            going = [i for i, each in enumerate(ahead) if len(each.tokens) < ends[i] and not each.has_ended]
            if not going:
                break
            some = [ahead[i] for i in going]
            begins = self._lengths[slots[going]]
            tokens, cu_seqlens = packed([ahead[i].tokens[begin:] for i, begin in zip(going, begins, strict=True)])
            counts = np.diff(cu_seqlens)
            rows = last_rows(self._caches.append(tokens, begins, counts, slots[going]), cu_seqlens[1:])
            self._lengths[slots[going]] += counts
            for i, choice, token in zip(going, some, choose(some, self._caches.logits(rows)), strict=True):
                if isinstance(token, ValueError):  # an error of the draft is no error of the model
                    ends[i] = 0
                else:
                    choice.tokens.append(token)
        return [choice.tokens[length:] for choice, length in zip(ahead, lengths, strict=True)]


def checked_draft(function: str, given: Any, generator: Any) -> Any:
    """Return `PROMPT_LOOKUP`, or the `TextGenerator` of a model that drafts for the one of `generator`."""
    if isinstance(given, str) and given == PROMPT_LOOKUP:
        return given
    draft = getattr(given, "generator", None)
    if not isinstance(draft, type(generator)):
        raise TypeError(f'{function}: draft must be a CausalLM, "{PROMPT_LOOKUP}" or None; got {shown(given)}')
    sizes = [each.model.config.vocab_size for each in (draft, generator)]
    if sizes[0] != sizes[1] or draft.tokenizer.vocabulary_digest != generator.tokenizer.vocabulary_digest:
        raise ValueError(
            f"{function}: draft must have the tokens of the model, {sizes[1]}; got {sizes[0]} tokens"
            + (", the same number but others" if sizes[0] == sizes[1] else "")
        )
    return draft


def drafter_of(draft: Any, num_slots: int, longest: int, most: int, num_threads: int | None) -> Drafter:
    """Return the drafter of `num_slots` sequences with prompts of up to `longest` tokens.

    `draft` comes from `checked_draft`. Each sequence has up to `most` tokens that the model reads.
    """
    if draft == PROMPT_LOOKUP:
        return PromptLookup()
    most_tokens = min(most, draft.model.config.max_positions)
    return DraftModel(Caches(draft.model.cached(num_threads), num_slots, longest, most_tokens), num_slots, most_tokens)


def speculative_steps(
    function: str,
    caches: Caches,
    choices: Sequence[TokenChoice],
    drafter: Drafter,
    num_draft_tokens: int,
    keep: Callable[[GenerationStatistics], object] = lambda statistics: None,
) -> Iterator[Step]:
    """Yield the steps of `generate_steps`, in other groups: the tokens of one verified draft follow one another.

    The first step reads the prompts, without drafts. `caches` grow, so they are no paged ones.
    """
    statistics = GenerationStatistics(len(choices), 0, 0, 0.0, 0.0)

    def remember(latest: GenerationStatistics) -> None:
        nonlocal statistics
        statistics = latest
        keep(latest)

    yield next(generate_steps(function, caches, choices, remember))
    slots = np.arange(len(choices))
    while len(slots := slots[[not choices[slot].has_ended for slot in slots.tolist()]]):
        begin = perf_counter()
        some = [choices[slot] for slot in slots.tolist()]
        lengths = np.array([len(choice.tokens) for choice in some])
        with in_the_name_of(function):
            most = [min(num_draft_tokens, choice.num_left - 1) for choice in some]
            drafts = drafter.drafts(some, slots, most)
            tokens, cu_seqlens = packed(
                [[choice.tokens[-1], *draft] for choice, draft in zip(some, drafts, strict=True)]
            )
            logits = caches.logits(caches.append(tokens, lengths - 1, np.diff(cu_seqlens), slots))
        statistics = statistics._replace(draft_tokens=statistics.draft_tokens + sum(map(len, drafts)))
        going = list(range(len(some)))  # sequences whose draft is right so far
        for place in count():
            with in_the_name_of(function):
                of_step = logits[cu_seqlens[going] + place]
                chosen = add_tokens([some[i] for i in going], of_step)
            is_right = [drafts[i][place : place + 1] == [token] for i, token in zip(going, chosen, strict=True)]
            remember(
                statistics._replace(
                    new_tokens=statistics.new_tokens + len(chosen),
                    new_seconds=statistics.new_seconds + perf_counter() - begin,
                    accepted_tokens=statistics.accepted_tokens + sum(is_right),
                )
            )
            yield Step(slots[going], np.array(chosen, np.int64), of_step)
            begin = perf_counter()
            going = [i for i, right in zip(going, is_right, strict=True) if right and not some[i].has_ended]
            if not going:
                break
        rejected = np.zeros(len(choices), np.int64)
        rejected[slots] = lengths + np.diff(cu_seqlens) - [len(choice.tokens) for choice in some]
        caches.rollback(rejected)
