"""Sentence embeddings by a pretrained model: BERT, or another family of text encoders."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from .. import _core
from .._arrays import widened
from .._dtypes import checked_dtype
from .._messages import in_the_name_of
from ..layers._constructor_arguments import WeightDType, checked_dtypes, checked_size
from ._batching import batches, packed, slabs
from ._checkpoint import Checkpoint
from ._head import Head, read_head
from ._hub_cache import find_directory
from ._inputs import check_text, checked_sequences, checked_texts
from ._modules import Module, read_modules
from ._prompts import Settings, read_settings
from ._sentence_files import SentenceConfig, read_sentence_config
from ._sentence_settings import SentenceSettings
from ._text_encoder import TextEncoder
from ._tokenizer import Tokenizer, require_library
from .families import read_config

__all__ = ["SentenceEncoder"]


class SentenceEncoder(SentenceSettings):
    """Sentence embeddings: tokens, their vectors after the layers of an encoder, and one vector from those.

    Made by `from_pretrained`.

    Parameters
    ----------
    model, tokenizer, head, config, settings
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

    def __init__(
        self, model: TextEncoder, tokenizer: Tokenizer, head: Head, config: SentenceConfig, settings: Settings
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._head = head
        self._config = config
        self._settings = settings

    @classmethod
    def from_pretrained(
        cls, directory: str | PathLike[str], *, dtype: DTypeLike = "float32", weight_dtype: WeightDType = None
    ) -> "SentenceEncoder":
        """The model in `directory`, as sentence-transformers and transformers save it.

        Parameters
        ----------
        directory : path, or name of a model
            With config.json, tokenizer.json and model.safetensors (or several such files with
            model.safetensors.index.json) of a model whose ``model_type`` is bert, roberta, xlm-roberta, camembert,
            distilbert, mpnet, modernbert, nomic_bert, gte, gemma3_text, llama, mistral, qwen2, qwen3 or t5, with GELU,
            ReLU or, after BERT, SiLU, in float32, float16 or bfloat16. If there is modules.json, the files of
            sentence-transformers count, of old and new versions: the pooling, Dense and Normalize modules,
            ``max_seq_length``, prompts, ``truncate_dim``. Without it embeddings are the mean of their tokens, and are
            not scaled.

            A str that is no directory, such as ``"BAAI/bge-small-en-v1.5"``, is looked up in the local cache of
            Hugging Face. Only what is not there is downloaded, by huggingface_hub, if that is installed and
            HF_HUB_OFFLINE is not set.
        dtype : {"float32", "bfloat16", "float16", "float64"}, default "float32"
            What the model is computed in, whatever its file is in: weights are converted, and those of 16 bits become
            float32 without a loss. In 16 bits it takes half the memory. Embeddings are float32 with any of them.
        weight_dtype : str, optional
            Of a model in float32, what the weights of the layers are stored as, see `MultiHeadAttention.quantize`;
            embeddings of tokens stay in float32. Default: `dtype`.

        Raises
        ------
        FileNotFoundError, ValueError
            If a file is missing, damaged, or describes what is not computed here, or if weights are not finite. The
            message names the file, and tensors with both shapes.
        OSError
            If a file cannot be read, or a model cannot be downloaded.
        ImportError
            Without tokenizers.
        """
        function = f"{cls.__name__}.from_pretrained"
        with in_the_name_of(function):
            require_library()
            kind, stored = checked_dtypes(function, dtype, weight_dtype)
            home = find_directory(directory)
            modules = read_modules(home)
            is_listed = len(modules) > 1
            settings = read_settings(home) if is_listed else Settings()
            return cls._of_modules(modules, is_listed, settings, kind, stored)

    @classmethod
    def _of_modules(
        cls, modules: list[Module], is_listed: bool, settings: Settings, dtype: np.dtype[Any], weight_dtype: str
    ) -> "SentenceEncoder":
        """The model of a Transformer and what is behind it. The files of sentence-transformers count if it `is_listed`
        in modules.json."""
        folder = modules[0].folder
        config = read_config(folder / "config.json")
        sentences = read_sentence_config(folder, config.max_positions, is_listed, config.first_position)
        head = read_head(modules, config.embed_dim)
        tokenizer = Tokenizer(folder, config.vocab_size, sentences, "cls" in head.pooling.modes)
        with Checkpoint(folder, config.tensor_shapes(), config.family.prefix) as tensors:
            model = TextEncoder(config, tensors, dtype, weight_dtype)
        return cls(model, tokenizer, Head(head), sentences, settings)

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
        normalize: bool | None = None,
        num_threads: int | None = None,
    ) -> NDArray[np.float32]:
        """Embeddings of texts.

        Parameters
        ----------
        texts : str, or N of them
            An empty text is a text. Of a long one the first `max_seq_length` tokens count.
        prompt_name : str, optional
            The name of a prompt of the model, such as "query", which is put before each text. Default: the
            ``default_prompt_name`` of config_sentence_transformers.json, or none.
        prompt : str, optional
            The prompt itself; an empty one for none.
        truncate_dim : int, optional
            Keep the first features alone; if there are no more, all of them. Default: as
            config_sentence_transformers.json says.
        normalize : bool, optional
            Scale embeddings to length 1, what `truncate_dim` keeps of them. Default: as modules.json says, before the
            others are left out; False without it.
        num_threads : int, optional
            Threads of the computation; default: `mha_native.num_threads`. The tokenizer has its own.

        Returns
        -------
        embeddings : float32 [N, E]
            For one str [E].

        Raises
        ------
        TypeError, ValueError
            If a text is no str, or holds what is no character: half of a surrogate pair. The message says which. If the
            model has no such prompt.
        """
        name = f"{type(self).__name__}.encode"
        is_one = isinstance(texts, str)
        given = [texts] if isinstance(texts, str) else list(checked_texts(name, texts))
        embeddings = np.empty((len(given), self._features(name, truncate_dim)), np.float32)
        first = 0
        for rows in self._embed_texts(name, given, prompt_name, prompt, truncate_dim, normalize, num_threads):
            embeddings[first : first + len(rows)] = rows
            first += len(rows)
        return embeddings[0] if is_one else embeddings

    def encode_batches(
        self,
        texts: Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
        normalize: bool | None = None,
        num_threads: int | None = None,
    ) -> Iterator[NDArray[np.float32]]:
        """The embeddings of `encode` in order, some at a time: for more texts than memory holds.

        Parameters
        ----------
        texts : iterable of str
            Read as needed, and never by much further than the embeddings that have been given.
        prompt_name, prompt, truncate_dim, normalize, num_threads
            As for `encode`.

        Yields
        ------
        embeddings : float32 [n, E]
            Of the next n texts.
        """
        name = f"{type(self).__name__}.encode_batches"
        return self._embed_texts(name, texts, prompt_name, prompt, truncate_dim, normalize, num_threads)

    def encode_tokens(
        self,
        sequences: Sequence[ArrayLike],
        *,
        truncate_dim: int | None = None,
        normalize: bool | None = None,
        num_threads: int | None = None,
    ) -> NDArray[np.float32]:
        """Embeddings of texts that are tokens already, for whoever has a tokenizer, or tokens that are stored.

        Parameters
        ----------
        sequences : N of integers [T]
            The tokens of each text, which need not be equally many, special tokens and those of a prompt included; they
            are not cut, and all are pooled.
        truncate_dim, normalize, num_threads
            As for `encode`.

        Returns
        -------
        embeddings : float32 [N, E]
            Zeros where there are no tokens, or what a Dense module makes of them.

        Raises
        ------
        TypeError, ValueError
            If tokens are no integers, none of the model's, or more than it has positions.
        """
        name = f"{type(self).__name__}.encode_tokens"
        tokens = checked_sequences(f"{name}: sequences", sequences)
        parts = list(self._embed(f"{name}: sequences", name, tokens, 0, truncate_dim, normalize, num_threads))
        features = self._features(name, truncate_dim)
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty((0, features), np.float32), *parts])

    def _embed_texts(
        self,
        name: str,
        texts: Iterable[str],
        prompt_name: str | None,
        prompt: str | None,
        truncate_dim: int | None,
        normalize: bool | None,
        num_threads: int | None,
    ) -> Iterator[NDArray[np.float32]]:
        """The embeddings of `texts`, some at a time."""
        before = self._settings.prompts.chosen(name, prompt_name, prompt)
        with in_the_name_of(type(self).__name__):
            prompt_tokens = 0 if not before or self._head.pools_prompts else self._tokenizer.prompt_length(before)
        tokens = self._tokenize(name, checked_texts(name, texts), before)
        return self._embed(f"{name}: texts", name, tokens, prompt_tokens, truncate_dim, normalize, num_threads)

    def _embed(
        self,
        what: str,
        name: str,
        sequences: Iterable[list[int]],
        prompt_tokens: int,
        truncate_dim: int | None,
        normalize: bool | None,
        num_threads: int | None,
    ) -> Iterator[NDArray[np.float32]]:
        """The embeddings of `sequences`, some at a time. They are checked as they are read, all else is here."""
        features = self._features(name, truncate_dim)
        if normalize is not None:
            normalize = _core.boolean(name, "normalize", normalize)
        if num_threads is not None:
            num_threads = checked_size(name, "num_threads", num_threads)
        return self._embeddings(what, sequences, prompt_tokens, features, normalize, num_threads)

    def _embeddings(
        self,
        what: str,
        sequences: Iterable[list[int]],
        prompt_tokens: int,
        features: int,
        normalize: bool | None,
        num_threads: int | None,
    ) -> Iterator[NDArray[np.float32]]:
        for _, rows, cu_seqlens in self._hidden_states(what, sequences, num_threads):
            yield self._head.embeddings(rows, cu_seqlens, prompt_tokens, features, normalize, num_threads)

    def _hidden_states(
        self, what: str, sequences: Iterable[list[int]], num_threads: int | None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int64]]]:
        """The tokens [n] of some sequences after one another, their vectors [n, E], and where each of them begins."""
        for batch in batches(sequences):
            tokens, cu_seqlens = packed(batch)
            with in_the_name_of(what):
                rows = self._model.hidden_states(tokens, cu_seqlens, num_threads)
            yield tokens, rows, cu_seqlens

    def _features(self, name: str, truncate_dim: int | None) -> int:
        """The features of embeddings of which so many are kept; by default as the files of the model say."""
        if truncate_dim is None:
            return self.embed_dim
        return min(self._head.features, checked_size(name, "truncate_dim", truncate_dim))

    def encode_to_rows(
        self,
        texts: Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        num_threads: int | None = None,
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """The vectors of the tokens of each text, before they are pooled.

        Parameters
        ----------
        texts : iterable of str
            Read as needed.
        prompt_name, prompt, num_threads
            As for `encode`.

        Yields
        ------
        tokens : int64 [T]
            Of the next text, those of the prompt and special ones included.
        rows : float32 [T, E]
            Their vectors, as the last layer gives them.
        """
        name = f"{type(self).__name__}.encode_to_rows"
        if num_threads is not None:
            num_threads = checked_size(name, "num_threads", num_threads)
        before = self._settings.prompts.chosen(name, prompt_name, prompt)
        return self._rows_of_texts(name, checked_texts(name, texts), before, num_threads)

    def _rows_of_texts(
        self, name: str, texts: Iterable[str], prompt: str, num_threads: int | None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        sequences = self._tokenize(name, texts, prompt)
        for tokens, rows, cu_seqlens in self._hidden_states(f"{name}: texts", sequences, num_threads):
            vectors = widened(rows).astype(np.float32, copy=False)
            for first, end in pairwise(cu_seqlens):
                yield tokens[first:end].copy(), vectors[first:end].copy()

    def attention_weights(self, text: str, *, num_threads: int | None = None) -> tuple[list[str], NDArray[np.float32]]:
        """What each token of a text attends to, in each layer and head.

        Parameters
        ----------
        text : str
            Without a prompt.
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
        check_text(f"{name}: text", text, 0)
        if num_threads is not None:
            num_threads = checked_size(name, "num_threads", num_threads)
        with in_the_name_of(type(self).__name__):
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
        return type(self)(self._model.astype(kind), self._tokenizer, self._head, self._config, self._settings)

    def __repr__(self) -> str:
        config = self._model.config
        return (
            f"{type(self).__name__}(embed_dim={self.embed_dim}, num_layers={config.num_layers}, "
            f"num_heads={config.num_heads}, max_seq_length={self.max_seq_length}, "
            f"dtype={_core.dtype_name(self.dtype)!r}, weight_dtype={self.weight_dtype!r})"
        )

    def _tokenize(self, name: str, texts: Iterable[str], prompt: str) -> Iterator[list[int]]:
        """The tokens of each text behind the prompt."""
        first = 0
        for slab in slabs(texts):
            for i, text in enumerate(slab):
                check_text(f"{name}: texts", text, first + i)
            first += len(slab)
            with in_the_name_of(type(self).__name__):
                yield from self._tokenizer.encode_batch([prompt + text for text in slab] if prompt else slab)
