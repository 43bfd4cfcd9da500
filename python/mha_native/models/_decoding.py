"""The loop of generation: embed the last token of each sequence, read it over caches, choose the next one."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..kv_cache import KVCache
from ._sampling import Chooser

# For how many tokens beside the prompts there is room at first. When it is full it doubles, so that a long generation
# moves each key about once, while every step reads all of them.
FIRST_ROOM = 256


class CachedModel(Protocol):
    """A stack of layers, as far as its caches go."""

    @property
    def layers(self) -> tuple[Any, ...]: ...
    def new_caches(self, batch_size: int, capacity: int, /) -> list[KVCache]: ...


class Room:
    """Caches of a model for as many tokens as are needed so far.

    Parameters
    ----------
    model : stack of layers
    batch, capacity : int
        How many sequences, and for how many tokens of each there is room at first.
    """

    def __init__(self, model: CachedModel, batch: int, capacity: int) -> None:
        self._model, self._batch = model, batch
        self.capacity, self.caches = capacity, model.new_caches(batch, capacity)

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` tokens. The caches are replaced, one after another, in the same list."""
        for i, (layer, old) in enumerate(zip(self._model.layers, self.caches, strict=True)):
            filled = slice(old.longest)
            self.caches[i] = layer.new_cache(self._batch, capacity)
            self.caches[i].append(old.keys[:, :, filled], old.values[:, :, filled], old.lengths)
        self.capacity = capacity


class Steps(NamedTuple):
    """What a step of a model is made of.

    Parameters
    ----------
    embed : function
        From tokens [B, T] and their places [B, T] to rows [B, T, E]. Places of padding may lie behind the last one.
    read : function
        From those and how many of them each sequence takes, [B], to the rows [B, T, E] of the last layer. It appends to
        the caches.
    logits : function
        From rows [B, E], and nothing else, to logits [B, V] in float32 or float64.
    """

    embed: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[Any]]
    read: Callable[[NDArray[Any], NDArray[np.int64]], NDArray[Any]]
    logits: Callable[[NDArray[Any]], NDArray[Any]]


def decode(
    steps: Steps,
    room: Room,
    choose: Chooser,
    tokens: NDArray[np.int64],
    lengths: NDArray[np.int64],
    going: NDArray[np.bool_],
    max_new_tokens: int,
) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    """The next tokens of sequences, and the logits that they are chosen by, step by step.

    Parameters
    ----------
    tokens : [B, T]
        The prompts, with padding behind them.
    lengths : [B]
        How many tokens of each count, at least one.
    going : bool [B]
        Which sequences go on: the caller clears what has ended after a step, and with the last of them it ends.

    Yields
    ------
    chosen : int64 [B]
        Of a sequence that does not go on, anything.
    logits : [B, V]
    """
    batch, longest = tokens.shape
    most = longest + max_new_tokens - 1  # tokens that the model reads
    read, every = np.zeros(batch, np.int64), np.arange(batch)
    new, counts = tokens, lengths
    for _ in range(max_new_tokens):
        if (needed := int(read.max()) + new.shape[1]) > room.capacity:
            room.grow(min(max(needed, 2 * room.capacity), most))
        x = steps.embed(new, read[:, None] + np.arange(new.shape[1]))
        y = steps.read(x, counts)
        read = read + counts
        logits = steps.logits(y[every, np.maximum(counts, 1) - 1])
        chosen = choose(logits, going)
        yield chosen, logits
        if not going.any():
            return
        new, counts = chosen[:, None], going.astype(np.int64)
