"""Texts, and their tokens, in groups of a limited size, as they come."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

# The most texts, and the most characters, that are tokenized at once; a longer text is tokenized alone. That takes some
# 0.1 s, in which no signal is handled, and a few MiB.
MOST_TEXTS = 1024
MOST_CHARACTERS = 1 << 17

# The most tokens that go through the layers at once. With all-MiniLM-L6-v2 they take 19 MiB beyond the weights. Twice
# as many take 34 MiB and no less time per token, since layers work on blocks of rows in cache.
MOST_TOKENS = 2048

Text = TypeVar("Text")  # a str, or several that are read as one text
Item = TypeVar("Item")


def slabs(texts: Iterable[Text]) -> Iterator[list[Text]]:
    """Texts in groups: the tokenizer is faster with many texts at once than one by one.

    A group ends with the text that makes up MOST_TEXTS or MOST_CHARACTERS.
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
    """Sequences in order, in groups of at most MOST_TOKENS tokens. Nothing is padded, so lengths may differ."""
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
    """The integers of all sequences one after another, and where those of each begin and end."""
    cu_seqlens = np.zeros(len(sequences) + 1, np.int64)
    np.cumsum([len(sequence) for sequence in sequences], out=cu_seqlens[1:])
    return np.fromiter(chain.from_iterable(sequences), np.int64, cu_seqlens[-1]), cu_seqlens
