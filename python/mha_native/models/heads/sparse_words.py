"""Sparse vectors of texts by a number for each token: the queries of inference-free models."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...functions.messages import shown
from ..files.checkpoint import Checkpoint
from ..files.entries import Entries
from ..files.json_files import MAX_SIZE, is_below, read_json
from ..files.sentence_files import read_sentence_config
from ..text.batching import packed
from ..text.tokenizer import Tokenizer, read_tokenizer_of_words
from .sparse import SparseEmbeddings

_KEYS = ("frozen", "path")


class SparseWords:
    """The numbers [V] of the tokens of a vocabulary. The vector of a text has the numbers of the tokens in it."""

    def __init__(self, numbers: NDArray[np.float32], tokenizer: Tokenizer) -> None:
        self._numbers, self._tokenizer = numbers, tokenizer

    def embeddings(self, texts: list[str]) -> SparseEmbeddings:
        """Return the vectors of texts, in which a token counts once, and special tokens are not added."""
        tokens, cu_seqlens = packed(list(self._sequences(texts)))
        rows = np.repeat(np.arange(len(texts)), np.diff(cu_seqlens))
        pairs = np.unique(rows * len(self._numbers) + tokens)  # ascending by text, then by token
        rows, tokens = np.divmod(pairs, len(self._numbers))
        values = self._numbers[tokens]
        kept = values != 0
        offsets = np.concatenate([[0], np.cumsum(np.bincount(rows[kept], minlength=len(texts)))]).astype(np.int64)
        return SparseEmbeddings(offsets, tokens[kept].astype(np.int32), values[kept], len(self._numbers))

    def _sequences(self, texts: list[str]) -> Iterator[list[int]]:
        return self._tokenizer.encode_batch(texts) if texts else iter(())


def read_sparse_words(folder: Path, vocab_size: int) -> SparseWords:
    """Read a SparseStaticEmbedding of sentence-transformers for a vocabulary of V tokens.

    The numbers are the tensor ``weight`` [V], or a JSON file of numbers by token, such as idf.json, which the entry
    ``path`` of config.json names and which is in the folder.

    Raises OSError or ValueError if a file cannot be read or is damaged, or does not fit the vocabulary.
    """
    path = folder / "config.json"
    entries = Entries.read(path) if path.exists() else Entries(path, {})
    entries.refuse_others(_KEYS)
    entries.flag("frozen")
    settings = read_sentence_config(folder, MAX_SIZE, False)
    length = settings.max_seq_length if settings.max_seq_length < MAX_SIZE else None
    tokenizer, _ = read_tokenizer_of_words(folder, vocab_size, settings.tokenizer, length)
    if (last := max(tokenizer.library.get_vocab().values(), default=0)) >= vocab_size:
        raise ValueError(f"{folder / 'tokenizer.json'} must have tokens from 0 to {vocab_size - 1}; got {last}")
    if entries.has("path"):
        return SparseWords(_read_numbers(folder, entries, vocab_size, tokenizer), tokenizer)
    with Checkpoint(folder, [("weight", (vocab_size,))]) as tensors:
        return SparseWords(tensors["weight"], tokenizer)


def _read_numbers(folder: Path, entries: Entries, vocab_size: int, tokenizer: Tokenizer) -> NDArray[np.float32]:
    """Return the numbers [V] of tokens in a JSON file; tokens without an entry have 0."""
    name: Any = entries.values["path"]
    if not isinstance(name, str) or not name.endswith(".json") or not is_below(name):
        raise ValueError(f"{entries.path}: path must be a JSON file in its folder, such as idf.json; got {shown(name)}")
    path = folder / name
    numbers = np.zeros(vocab_size, np.float32)
    for token, number in read_json(path, dict).items():
        place = tokenizer.library.token_to_id(token)
        if place is None:
            raise ValueError(f"{path}: {shown(token)} must be a token of {folder / 'tokenizer.json'}")
        if type(number) not in (int, float) or not abs(number) <= np.finfo(np.float32).max:
            raise ValueError(f"{path}: {shown(token)} must be a number of float32; got {shown(number)}")
        numbers[place] = number
    return numbers
