"""Texts, and their tokens, in groups of a limited size, as they come."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Text = TypeVar("Text")  # a str, or several that are read as one text
Item = TypeVar("Item")


def slabs(texts: Iterable[Text], most_texts: int, most_characters: int) -> Iterator[list[Text]]:
    """Texts in groups: the tokenizer is faster with many texts at once than one by one.

    A group ends with the text that makes up either number.
    """
    slab: list[Text] = []
    characters = 0
    for text in texts:
        slab.append(text)
        parts = text if isinstance(text, tuple) else (text,)
        characters += sum(len(part) for part in parts if isinstance(part, str))
        if len(slab) == most_texts or characters >= most_characters:
            yield slab
            slab, characters = [], 0
    if slab:
        yield slab


def batches(
    sequences: Iterable[Item],
    most_tokens: int,
    length: Callable[[Item], int] = len,  # type: ignore[assignment]
) -> Iterator[list[Item]]:
    """Sequences in order, in groups of at most `most_tokens` tokens. Nothing is padded, so lengths may differ."""
    batch: list[Item] = []
    tokens = 0
    for sequence in sequences:
        more = length(sequence)
        if batch and tokens + more > most_tokens:
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
