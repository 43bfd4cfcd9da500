"""Group texts, and sequences of tokens, into batches of a limited size while they are read."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

# The largest number of texts, and of characters, in one call of the tokenizer; a longer text is tokenized alone. A call
# takes about 0.1 s, during which no signal is handled, and a few MiB.
MOST_TEXTS = 1024
MOST_CHARACTERS = 1 << 17

# The largest number of tokens in one call of the layers. all-MiniLM-L6-v2 needs 19 MiB for them, without the weights.
# Twice as many tokens need 34 MiB and the same time per token, since layers work on blocks of rows in cache.
MOST_TOKENS = 2048

Text = TypeVar("Text")  # a str, or several that are read as one text
Item = TypeVar("Item")


def slabs(texts: Iterable[Text]) -> Iterator[list[Text]]:
    """Yield texts in groups: a tokenizer is faster with many texts in one call than with one.

    A group ends with the text that reaches MOST_TEXTS or MOST_CHARACTERS.
    """
    slab: list[Text] = []
    characters = 0
    for text in texts:
        slab.append(text)
        parts = text if isinstance(text, tuple) else (text,)
        characters += sum(len(part) for part in parts if isinstance(part, str))
        if len(slab) == MOST_TEXTS or characters >= MOST_CHARACTERS:
            yield slab
            slab, characters = [], 0
    if slab:
        yield slab


def batches(
    sequences: Iterable[Item],
    length: Callable[[Item], int] = len,  # type: ignore[assignment]
) -> Iterator[list[Item]]:
    """Yield sequences in order, in batches of at most MOST_TOKENS tokens. Batches are ragged: lengths can differ."""
    batch: list[Item] = []
    tokens = 0
    for sequence in sequences:
        more = length(sequence)
        if batch and tokens + more > MOST_TOKENS:
            yield batch
            batch, tokens = [], 0
        batch.append(sequence)
        tokens += more
    if batch:
        yield batch


def packed(sequences: Sequence[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the integers of all sequences, concatenated, and the offsets of the sequences."""
    cu_seqlens = np.array([0, *accumulate(map(len, sequences))], np.int64)
    return np.fromiter(chain.from_iterable(sequences), np.int64, cu_seqlens[-1]), cu_seqlens
