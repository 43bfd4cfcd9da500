"""Calls of models whose texts are computed together with the texts of other calls."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..architecture.model import Model
from .batching import packed


class HeadOfTexts(Protocol):
    """A part of a model after its layers. Equal heads take the texts of several calls together."""

    def __call__(self, rows: NDArray[Any], cu_seqlens: NDArray[np.int64], num_threads: int | None) -> Iterable[Any]:
        """Return an array for each of n texts, from the rows [N, E] of their tokens, and their offsets [n + 1]."""

    def __hash__(self) -> int: ...


class TokensOfText(NamedTuple):
    """Tokens that the layers read in one piece: a text, a pair, or a window of a long text. `head` gives the result."""

    ids: list[int]
    types: list[int]  # empty: all are 0
    head: HeadOfTexts


class TextCall(NamedTuple):
    """A call of a model with texts that are tokens by now."""

    model: Model
    texts: list[TokensOfText]
    token_counts: list[int]  # of each text of the caller
    result: Callable[[list[Any]], Any]  # of the call, from the results of `texts`

    def work_of(self, text: TokensOfText) -> float:
        """Return the time of a text, in the time of a token of a short one.

        The matrices of a layer take about 24 E**2 operations a token, and attention to T tokens 4 T E.
        """
        length = len(text.ids)
        return length * (1 + length / (6 * self.model.config.embed_dim))


def text_call(model: Model, texts: list[TokensOfText], result: Callable[[list[Any]], Any]) -> TextCall:
    """Return a call in which each of `texts` is one of the caller."""
    return TextCall(model, texts, [len(text.ids) for text in texts], result)


def results_of(model: Model, texts: Sequence[TokensOfText], num_threads: int | None) -> list[Any]:
    """Return the results of texts, in order, by one call of the layers. None depends on the other texts."""
    places: dict[HeadOfTexts, list[int]] = {}
    for i, text in enumerate(texts):
        places.setdefault(text.head, []).append(i)
    order = [i for group in places.values() for i in group]
    tokens, cu_seqlens = packed([texts[i].ids for i in order])
    types = None
    if any(any(text.types) for text in texts):
        types = packed([texts[i].types or [0] * len(texts[i].ids) for i in order])[0]
    rows = model.hidden_states(tokens, cu_seqlens, num_threads, types)
    results: list[Any] = [None] * len(texts)
    first = 0
    for head, group in places.items():
        offsets = cu_seqlens[first : first + len(group) + 1]
        found = head(rows[offsets[0] : offsets[-1]], offsets - offsets[0], num_threads)
        for i, result in zip(group, found, strict=True):
            results[i] = result
        first += len(group)
    return results
