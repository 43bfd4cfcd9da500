"""Texts, and their tokens, in groups of a limited size, as they come."""

from collections.abc import Iterable, Iterator


def slabs(texts: Iterable[str], most_texts: int, most_characters: int) -> Iterator[list[str]]:
    """Texts in groups: the tokenizer is faster with many texts at once than one by one.

    A group ends with the text that makes up either number.
    """
    slab: list[str] = []
    characters = 0
    for text in texts:
        slab.append(text)
        characters += len(text) if isinstance(text, str) else 0
        if len(slab) == most_texts or characters >= most_characters:
            yield slab
            slab, characters = [], 0
    if slab:
        yield slab


def batches(sequences: Iterable[list[int]], most_tokens: int) -> Iterator[list[list[int]]]:
    """Sequences in order, in groups of at most `most_tokens` tokens. Nothing is padded, so lengths may differ."""
    batch: list[list[int]] = []
    tokens = 0
    for sequence in sequences:
        if batch and tokens + len(sequence) > most_tokens:
            yield batch
            batch, tokens = [], 0
        batch.append(sequence)
        tokens += len(sequence)
    if batch:
        yield batch
