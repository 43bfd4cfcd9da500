"""The loop of generation: embed the last token of each sequence, read it over caches, choose the next one."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...functions.token_cache import TokenCache
from .sampling import Chooser

# For how many tokens beside the prompts there is room at first. When it is full it doubles, so that a long generation
# moves each key about once, while every step reads all of them.
FIRST_ROOM = 256


class CachedModel(Protocol):
    """A stack of layers, as far as its caches go."""

    @property
    def layers(self) -> tuple[Any, ...]: ...
    def new_caches(self, batch_size: int, capacity: int, /, *, dtype: DTypeLike | None = None) -> list[TokenCache]: ...


class Room:
    """Caches of a model for as many tokens as are needed so far.

    Parameters
    ----------
    model : stack of layers
    batch, capacity : int
        How many sequences, and for how many tokens of each there is room at first.
    dtype : optional
        Of keys and values. Default: that of the model.
    """

    def __init__(self, model: CachedModel, batch: int, capacity: int, dtype: DTypeLike | None = None) -> None:
        self._model, self._batch, self._dtype = model, batch, dtype
        self.capacity, self.caches = capacity, model.new_caches(batch, capacity, dtype=dtype)

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` tokens. The caches are replaced, one after another, in the same list."""
        for i, (layer, old) in enumerate(zip(self._model.layers, self.caches, strict=True)):
            self.caches[i] = layer.new_cache(self._batch, capacity, dtype=self._dtype)
            self.caches[i]._take_tokens(old)
        self.capacity = capacity


class Steps(NamedTuple):
    """What a step of a model is made of.

    Parameters
    ----------
    read : function
        From tokens [N] of some sequences one after another, their places [N], where those of each begin and end,
        [n + 1], and which sequences of the caches they go on with, [n], to the rows [N, E] of the last layer. It
        appends to the caches.
    logits : function
        From rows [n, E], and nothing else, to logits [n, V] in float32 or float64.
    """

    read: Callable[[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], NDArray[Any]]
    logits: Callable[[NDArray[Any]], NDArray[Any]]


class Step(NamedTuple):
    """The next tokens [n] of the sequences [n] that go on, and the logits [n, V] that they are chosen by."""

    sequences: NDArray[np.int64]
    tokens: NDArray[np.int64]
    logits: NDArray[Any]


def decode(
    steps: Steps,
    room: Room,
    choose: Chooser,
    tokens: NDArray[np.int64],
    lengths: NDArray[np.int64],
    going: NDArray[np.bool_],
    max_new_tokens: int,
) -> Iterator[Step]:
    """The next tokens of sequences, step by step. Only those that go on are read.

    Parameters
    ----------
    tokens : [B, T]
        The prompts, with padding behind them.
    lengths : [B]
        How many tokens of each count, at least one.
    going : bool [B]
        Which sequences go on: the caller clears what has ended after a step, and with the last of them it ends.
    """
    batch, longest = tokens.shape
    most = longest + max_new_tokens - 1  # tokens that the model reads
    read, sequences = np.zeros(batch, np.int64), np.arange(batch)
    new, counts = tokens[np.arange(longest) < lengths[:, None]], lengths
    for _ in range(max_new_tokens):
        begin = read[sequences]
        if (needed := int((begin + counts).max())) > room.capacity:
            room.grow(min(max(needed, 2 * room.capacity), most))
        cu_seqlens = np.concatenate([[0], np.cumsum(counts)])
        places = np.arange(len(new)) + np.repeat(begin - cu_seqlens[:-1], counts)
        y = steps.read(new, places, cu_seqlens, sequences)
        read[sequences] += counts
        logits = steps.logits(y[cu_seqlens[1:] - 1])
        chosen = choose(logits, sequences)
        yield Step(sequences, chosen, logits)
        is_left = going[sequences]
        if not is_left.any():
            return
        sequences, new = sequences[is_left], chosen[is_left]
        counts = np.ones(len(new), np.int64)
