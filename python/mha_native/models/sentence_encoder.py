"""Sentence embeddings by a pretrained model of the BERT family."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from .. import _core
from .._dtypes import checked_dtype
from .._messages import in_the_name_of, listed, name_of_type, shown
from ..layers._constructor_arguments import WeightDType, checked_size, checked_weight_dtype
from ._bert import BertModel, read_config
from ._checkpoint import Checkpoint
from ._model_files import FUNCTION
from ._sentence_files import SentenceConfig, read_sentence_config
from ._tokenizer import Tokenizer

__all__ = ["SentenceEncoder"]

# The most texts, and the most characters, that are tokenized at once; a longer text is tokenized alone. That takes some
# 0.1 s, in which no signal is handled, and a few MiB.
_SLAB_TEXTS = 1024
_SLAB_CHARACTERS = 1 << 17

# The most tokens that go through the layers at once. With all-MiniLM-L6-v2 they take 19 MiB beyond the weights. Twice
# as many take 34 MiB and no less time per token, since layers work on blocks of rows in cache.
_BATCH_TOKENS = 2048


class SentenceEncoder:
    """Sentence embeddings: tokens, their vectors after the layers of a BERT, the mean of those, scaled to length 1.

    Made by `from_pretrained`.

    Parameters
    ----------
    model, tokenizer, config
        What `from_pretrained` reads.

    See Also
    --------
    from_pretrained : What a directory holds.
    encode : Embeddings of texts.

    Notes
    -----
    Texts are packed one after another, so that a batch costs what its tokens do, and nothing is padded. The embedding
    of a text has the same bits alone and in any batch.

    Needs tokenizers: ``pip install "mha_native[text]"``. May be used from several threads at once.

    Examples
    --------
    >>> from mha_native.models import SentenceEncoder
    >>> model = SentenceEncoder.from_pretrained("all-MiniLM-L6-v2")
    >>> embeddings = model.encode(["A dog was hungry.", "The puppy wanted food.", "Stocks fell on Tuesday."])
    >>> embeddings.shape
    (3, 384)
    >>> (embeddings @ embeddings[0]).round(2)
    array([1.  , 0.78, 0.05], dtype=float32)
    """

    def __init__(self, model: BertModel, tokenizer: Tokenizer, config: SentenceConfig) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._config = config

    @classmethod
    def from_pretrained(
        cls, directory: str | PathLike[str], *, dtype: DTypeLike = "float32", weight_dtype: WeightDType = None
    ) -> "SentenceEncoder":
        """The model in `directory`, as sentence-transformers and transformers save it.

        Parameters
        ----------
        directory : path
            With config.json, model.safetensors and tokenizer.json of a BERT (``model_type`` bert) with GELU or ReLU, in
            float32, float16 or bfloat16. The files of sentence-transformers count if they are there:
            sentence_bert_config.json (``max_seq_length``), 1_Pooling/config.json (mean or first token), modules.json
            (whether embeddings are scaled to length 1; they are without it).
        dtype : {"float32", "bfloat16", "float16", "float64"}, default "float32"
            What the model is computed in, whatever its file is in: weights are converted, and those of 16 bits become
            float32 without a loss. In 16 bits it takes half the memory. Embeddings are float32 with any of them.
        weight_dtype : {"float32", "bfloat16", "int8"}, optional
            Of a model in float32, what the weights of the layers are stored as, see `MultiHeadAttention.quantize`;
            embeddings of tokens stay in float32. Default: `dtype`.

        Raises
        ------
        FileNotFoundError, ValueError
            If a file is missing, damaged, or describes a model of another kind, or if weights are not finite. The
            message names the file, and tensors with both shapes.
        OSError
            If a file cannot be read.
        ImportError
            Without tokenizers.
        """
        try:
            import tokenizers  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
        except ImportError as error:
            raise ImportError(f'{FUNCTION}: {error.name} is not installed: pip install "mha_native[text]"') from error
        kind = checked_dtype(FUNCTION, dtype)
        stored = checked_weight_dtype(FUNCTION, weight_dtype, kind)
        try:
            folder = Path(directory)
        except Exception as error:  # whatever the object raises
            raise TypeError(f"{FUNCTION}: directory must be a path; got {shown(directory)}") from error
        config = read_config(folder / "config.json")
        sentences = read_sentence_config(folder, config.max_positions)
        tokenizer = Tokenizer(folder / "tokenizer.json", config.vocab_size, sentences)
        with Checkpoint(folder / "model.safetensors", config.tensor_shapes()) as tensors:
            return cls(BertModel(config, tensors, kind, stored), tokenizer, sentences)

    def encode(
        self, texts: str | Iterable[str], *, normalize: bool | None = None, num_threads: int | None = None
    ) -> NDArray[np.float32]:
        """Embeddings of texts.

        Parameters
        ----------
        texts : str, or N of them
            An empty text is a text. Of a long one the first `max_seq_length` tokens count.
        normalize : bool, optional
            Scale embeddings to length 1. Default: as modules.json says; True without it.
        num_threads : int, optional
            Threads of the computation; default: `mha_native.num_threads`. The tokenizer has its own.

        Returns
        -------
        embeddings : float32 [N, E]
            For one str [E].

        Raises
        ------
        TypeError, ValueError
            If a text is no str, or holds what is no character: half of a surrogate pair. The message says which.
        """
        name = f"{type(self).__name__}.encode"
        given = [texts] if isinstance(texts, str) else list(_checked_iterable(f"{name}: texts", texts))
        embeddings = np.empty((len(given), self.embed_dim), np.float32)
        first = 0
        for rows in self._embed(name, "texts", self._tokenize(name, given), normalize, num_threads):
            embeddings[first : first + len(rows)] = rows
            first += len(rows)
        return embeddings[0] if isinstance(texts, str) else embeddings

    def encode_batches(
        self, texts: Iterable[str], *, normalize: bool | None = None, num_threads: int | None = None
    ) -> Iterator[NDArray[np.float32]]:
        """The embeddings of `encode` in order, some at a time: for more texts than memory holds.

        Parameters
        ----------
        texts : iterable of str
            Read as needed, and never by much further than the embeddings that have been given.
        normalize, num_threads
            As for `encode`.

        Yields
        ------
        embeddings : float32 [n, E]
            Of the next n texts.
        """
        name = f"{type(self).__name__}.encode_batches"
        sequences = self._tokenize(name, _checked_iterable(f"{name}: texts", texts))
        return self._embed(name, "texts", sequences, normalize, num_threads)

    def encode_tokens(
        self, sequences: Sequence[ArrayLike], *, normalize: bool | None = None, num_threads: int | None = None
    ) -> NDArray[np.float32]:
        """Embeddings of texts that are tokens already, for whoever has a tokenizer, or tokens that are stored.

        Parameters
        ----------
        sequences : N of integers [T]
            The tokens of each text, which need not be equally many, special tokens included; they are not cut.
        normalize, num_threads
            As for `encode`.

        Returns
        -------
        embeddings : float32 [N, E]
            Zeros where there are no tokens.

        Raises
        ------
        TypeError, ValueError
            If tokens are no integers, none of the model's, or more than it has positions.
        """
        name = f"{type(self).__name__}.encode_tokens"
        given = enumerate(_checked_iterable(f"{name}: sequences", sequences))
        tokens = [_checked_tokens(f"{name}: sequences", sequence, i) for i, sequence in given]
        parts = list(self._embed(name, "sequences", tokens, normalize, num_threads))
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty((0, self.embed_dim), np.float32), *parts])

    def _embed(
        self,
        name: str,
        argument: str,
        sequences: Iterable[list[int]],
        normalize: bool | None,
        num_threads: int | None,
    ) -> Iterator[NDArray[np.float32]]:
        """The embeddings of `sequences`, some at a time. They are checked as they are read, all else is here."""
        if normalize is not None:
            normalize = _core.boolean(name, "normalize", normalize)
        if num_threads is not None:
            num_threads = checked_size(name, "num_threads", num_threads)
        normalize = self._config.normalize if normalize is None else normalize
        return self._embeddings(f"{name}: {argument}", sequences, normalize, num_threads)

    def _embeddings(
        self, what: str, sequences: Iterable[list[int]], normalize: bool, num_threads: int | None
    ) -> Iterator[NDArray[np.float32]]:
        for batch in _batches(sequences):
            cu_seqlens = np.zeros(len(batch) + 1, np.int64)
            np.cumsum([len(tokens) for tokens in batch], out=cu_seqlens[1:])
            tokens = np.fromiter(chain.from_iterable(batch), np.int64, cu_seqlens[-1])
            with in_the_name_of(what):
                rows = self._model.hidden_states(tokens, cu_seqlens, num_threads)
            if self._config.pooling == "cls":  # the mean of the first token alone
                rows, cu_seqlens = rows[cu_seqlens[:-1]], np.arange(len(batch) + 1)
            yield _core.mean_pool(rows, cu_seqlens, normalize, None, num_threads).astype(np.float32, copy=False)

    def attention_weights(self, text: str, *, num_threads: int | None = None) -> tuple[list[str], NDArray[np.float32]]:
        """What each token of a text attends to, in each layer and head.

        Parameters
        ----------
        text : str
        num_threads : int, optional
            As for `encode`.

        Returns
        -------
        tokens : list of T str
            As the tokenizer writes them, its special tokens included.
        weights : float32 [layers, H, T, T]
            Rows sum to 1.
        """
        name = f"{type(self).__name__}.attention_weights"
        _check_text(f"{name}: text", text, 0)
        if num_threads is not None:
            num_threads = checked_size(name, "num_threads", num_threads)
        ids, tokens = self._tokenizer.encode(text)
        weights = self._model.attention_weights(np.array(ids, np.int64), num_threads)
        return tokens, weights.astype(np.float32, copy=False)

    def astype(self, dtype: DTypeLike) -> "SentenceEncoder":
        """The same model in another dtype, every weight rounded once, as by `MultiHeadAttention.astype`.

        Parameters
        ----------
        dtype : {"float32", "bfloat16", "float16", "float64"}
        """
        kind = checked_dtype("SentenceEncoder.astype", dtype)
        return type(self)(self._model.astype(kind), self._tokenizer, self._config)

    @property
    def embed_dim(self) -> int:
        """E, the features of an embedding."""
        return self._model.config.embed_dim

    @property
    def max_seq_length(self) -> int:
        """The most tokens of a text that count, its special tokens included."""
        return self._config.max_seq_length

    @property
    def dtype(self) -> np.dtype[Any]:
        """What the model is computed in."""
        return self._model.dtype

    @property
    def weight_dtype(self) -> str:
        """What the weights of the layers are stored as."""
        return self._model.weight_dtype

    @property
    def num_layers(self) -> int:
        """Layers of the encoder."""
        return self._model.config.num_layers

    @property
    def num_heads(self) -> int:
        """H, the heads of each layer."""
        return self._model.config.num_heads

    def __repr__(self) -> str:
        config = self._model.config
        return (
            f"{type(self).__name__}(embed_dim={config.embed_dim}, num_layers={config.num_layers}, "
            f"num_heads={config.num_heads}, max_seq_length={self.max_seq_length}, "
            f"dtype={_core.dtype_name(self.dtype)!r}, weight_dtype={self.weight_dtype!r})"
        )

    def _tokenize(self, name: str, texts: Iterable[str]) -> Iterator[list[int]]:
        """The tokens of each text."""
        first = 0
        for slab in _slabs(texts):
            for i, text in enumerate(slab):
                _check_text(f"{name}: texts", text, first + i)
            first += len(slab)
            yield from self._tokenizer.encode_batch(slab)


def _checked_iterable(what: str, values: Iterable[Any]) -> Iterable[Any]:
    if not isinstance(values, Iterable):
        raise TypeError(f"{what} must be a sequence of them; got {name_of_type(values)}")
    return values


def _check_text(what: str, text: str, index: int) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{what} must be str; got {name_of_type(text)} at {index}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what}: text {index} holds half of a surrogate pair, {text[error.start]!r}, at character {error.start}"
        ) from None


def _checked_tokens(what: str, sequence: ArrayLike, index: int) -> list[int]:
    try:
        tokens = np.asarray(sequence)
    except Exception as error:  # rows of different length, or whatever the object raises
        raise TypeError(f"{what} must hold integers [T]; got {shown(sequence)} at {index}") from error
    if tokens.ndim != 1:
        raise ValueError(f"{what}: the tokens of a text must have one axis; got {tokens.shape} at {index}")
    ids: list[int] = tokens.tolist()
    # Integers of more than 64 bits are objects to NumPy.
    if ids and not np.issubdtype(tokens.dtype, np.integer) and not all(type(token) is int for token in ids):
        raise TypeError(f"{what}: tokens must be integers; got {listed([str(tokens.dtype)])} at {index}")
    if ids and max(max(ids), -min(ids)) >= 2**63:
        raise ValueError(f"{what}: tokens must be integers of at most 63 bits; got larger ones at {index}")
    return ids


def _slabs(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts in groups: the tokenizer is faster with many texts at once than one by one."""
    slab: list[str] = []
    characters = 0
    for text in texts:
        slab.append(text)
        characters += len(text) if isinstance(text, str) else 0
        if len(slab) == _SLAB_TEXTS or characters >= _SLAB_CHARACTERS:
            yield slab
            slab, characters = [], 0
    if slab:
        yield slab


def _batches(sequences: Iterable[list[int]]) -> Iterator[list[list[int]]]:
    """Sequences in order, in groups of at most _BATCH_TOKENS tokens. Nothing is padded, so lengths may differ."""
    batch: list[list[int]] = []
    tokens = 0
    for sequence in sequences:
        if batch and tokens + len(sequence) > _BATCH_TOKENS:
            yield batch
            batch, tokens = [], 0
        batch.append(sequence)
        tokens += len(sequence)
    if batch:
        yield batch
