"""Sentence embeddings by a pretrained text encoder."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from .. import _core
from ..functions.arrays import widened
from ..functions.deprecation import renamed_keyword
from ..functions.messages import in_the_name_of
from ..functions.runtime import threads_of_call
from ..layers._constructor_arguments import WeightDType, checked_dtypes
from .architecture.family import EMBEDDING
from .architecture.model import Model
from .architecture.norms import in_dtype
from .architecture.open import open_model
from .architecture.word_table import WordTable
from .files.folder import FolderSource
from .files.hub_cache import find_directory
from .files.json_files import MAX_SIZE
from .files.modules_json import Module, read_modules
from .files.sentence_files import SentenceConfig, read_sentence_config
from .files.static_words import read_static_words
from .heads.embedding import Form, HasHead, Head, read_head
from .text.inputs import check_sequences, checked_sequences, checked_texts, prompts_in
from .text.prompts import Settings, read_settings
from .text.text_call import TextCall, TokensOfText, text_call
from .text.tokenizer import Tokenizer, read_tokenizer, read_tokenizer_of_words, require_library
from .text_encoder import TextEncoder

__all__ = ["SentenceEncoder"]


class _Embeddings(NamedTuple):
    """The head of texts whose embeddings have one form."""

    head: Head
    prompt_tokens: int
    features: int
    normalize: bool | None

    def __call__(
        self, rows: NDArray[Any], cu_seqlens: NDArray[np.int64], num_threads: int | None
    ) -> NDArray[np.float32]:
        return self.head.embeddings(rows, cu_seqlens, *self[1:], num_threads)


class _Rows(NamedTuple):
    """The head of texts whose result is the vectors of their tokens."""

    def __call__(
        self, rows: NDArray[Any], cu_seqlens: NDArray[np.int64], num_threads: int | None
    ) -> list[NDArray[np.float32]]:
        vectors = widened(rows).astype(np.float32, copy=False)
        return [vectors[first:end].copy() for first, end in pairwise(cu_seqlens)]


class SentenceEncoder(HasHead, TextEncoder):
    """Sentence embeddings: tokens, their vectors after the layers of an encoder, and one vector for each text.

    Use `from_pretrained` to open a model.

    Parameters
    ----------
    model, tokenizer, head, config, settings
        The parts that `from_pretrained` reads.

    See Also
    --------
    from_pretrained : Open a model.
    encode : Embeddings of texts.

    Notes
    -----
    Texts are packed one after another without padding, so the cost of a batch is the cost of its tokens. The embedding
    of a text has the same bits alone and in any batch.

    Needs the package tokenizers. You can call a model from several threads at once. A setting such as `max_length` is
    replaced as a whole: calls in other threads see the old value or the new one.

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
        self, model: Model, tokenizer: Tokenizer, head: Head, config: SentenceConfig, settings: Settings
    ) -> None:
        super().__init__(model, tokenizer, config, settings)
        self._head = head

    @property
    def pooling_modes(self) -> tuple[str, ...]:
        """How vectors of tokens become one vector: "mean", "cls", "max" and others, concatenated if several."""
        return self._head.pooling_modes

    @classmethod
    @renamed_keyword("directory", "model")
    def from_pretrained(
        cls, model: str | PathLike[str], *, dtype: DTypeLike = "float32", weight_dtype: WeightDType = None
    ) -> "SentenceEncoder":
        """Open a model in the files of sentence-transformers or transformers.

        Parameters
        ----------
        model : path of a directory, or name of a model
            The directory has config.json, tokenizer.json and model.safetensors (or several such files and
            model.safetensors.index.json). The ``model_type`` is bert, roberta, xlm-roberta, camembert, distilbert,
            mpnet, modernbert, nomic_bert, gte, albert, electra, deberta-v2, gemma3_text, llama, mistral, mixtral,
            olmoe, qwen2, qwen2_moe, qwen3, qwen3_moe, t5, mt5 or umt5; the activation GELU, ReLU or, after BERT, SiLU;
            the weights float32, float16 or bfloat16.
            With modules.json the files of sentence-transformers count, in their old and new forms: pooling, Dense and
            Normalize modules, ``max_seq_length``, prompts, ``truncate_dim``. Without it an embedding is the mean of the
            vectors of its tokens, and is not normalized.

            A static model has a table of tokens and no layers: StaticEmbedding of sentence-transformers, and model2vec.
            All tokens of a text count, as in sentence-transformers; the package model2vec leaves out unknown ones.

            A str that is not a directory, such as ``"BAAI/bge-small-en-v1.5"``, is looked up in the local cache of
            Hugging Face. Missing models are downloaded by huggingface_hub, if it is installed and HF_HUB_OFFLINE is not
            set.
        dtype : {"float32", "bfloat16", "float16", "float64"}, default "float32"
            The dtype of the computation. Weights are converted to it; 16-bit weights become float32 without a loss. A
            model in 16 bits takes half the memory. Embeddings are float32 with any of them.
        weight_dtype : str, optional
            The format of the weights of the layers, for a model in float32, see `MultiHeadAttention.quantize`. The
            table of tokens stays in float32. Default: as in quantized files, else `dtype`.

        Raises
        ------
        FileNotFoundError, ValueError
            If a file is missing or damaged, if it asks for an unsupported feature, or if weights are not finite. The
            message names the file, and tensors with both shapes.
        OSError, ImportError
            If a file cannot be read, or a model cannot be downloaded; without tokenizers.
        """
        function = f"{cls.__name__}.from_pretrained"
        with in_the_name_of(function):
            require_library()
            kind, stored = checked_dtypes(function, dtype, weight_dtype)
            home = find_directory(model)
            modules = read_modules(home)
            is_listed = (home / "modules.json").exists()
            settings = read_settings(home) if is_listed else Settings()
            return cls._of_modules(modules, is_listed, settings, kind, stored)

    @classmethod
    def _of_modules(
        cls, modules: list[Module], is_listed: bool, settings: Settings, dtype: np.dtype[Any], weight_dtype: str | None
    ) -> "SentenceEncoder":
        """Return the model of a Transformer and the modules after it. If it `is_listed` in modules.json, the files of
        sentence-transformers count."""
        folder = modules[0].folder
        if modules[0].kind == "StaticEmbedding":
            return cls._of_words(modules, settings, dtype, weight_dtype)
        opened = open_model(FolderSource(folder), EMBEDDING)
        config, front_end = opened.config, opened.config.tokens
        sentences = read_sentence_config(folder, front_end.max_positions or 0, is_listed, front_end.first_position)
        head = read_head(modules, config.embed_dim)
        tokenizer = read_tokenizer(folder, config.vocab_size, sentences, "cls" in head.pooling.modes)
        model = opened.load(dtype, weight_dtype)
        return cls(model, tokenizer, Head(head), sentences, settings)

    @classmethod
    def _of_words(
        cls, modules: list[Module], settings: Settings, dtype: np.dtype[Any], weight_dtype: str | None
    ) -> "SentenceEncoder":
        """Return the model of a StaticEmbedding and the modules after it."""
        folder = modules[0].folder
        model = WordTable(in_dtype(read_static_words(folder), dtype))
        if weight_dtype is not None:
            model = model.quantize(weight_dtype)
        head = read_head(modules, model.config.embed_dim)
        tokenizer, length = read_tokenizer_of_words(folder, model.config.vocab_size)
        return cls(model, tokenizer, Head(head), SentenceConfig(length or MAX_SIZE, False, {}), settings)

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
        """Return the embeddings of texts.

        Parameters
        ----------
        texts : str, or N of them
            Texts may be empty. Longer texts are cut to `max_length` tokens.
        prompt_name : str, optional
            The name of a prompt of the model, such as "query", to put before each text. Default:
            ``default_prompt_name`` of config_sentence_transformers.json, or no prompt.
        prompt : str, optional
            The prompt itself; empty for no prompt.
        truncate_dim : int, optional
            Keep at most this many features, the first ones. Default: the number in
            config_sentence_transformers.json, or all features.
        normalize : bool, optional
            Scale the features that `truncate_dim` keeps to length 1. Default: scale all features first if modules.json
            lists Normalize; otherwise never scale.
        num_threads : int, optional
            Threads of the computation; default: `mha_native.num_threads`. The tokenizer has its own threads.

        Returns
        -------
        embeddings : float32 [N, E]
            For one str [E].

        Raises
        ------
        TypeError, ValueError
            If a text is not a str, or holds half of a surrogate pair; the message says which text. If the model has no
            such prompt.
        """
        name = f"{type(self).__name__}.encode"
        is_one = isinstance(texts, str)
        given = [texts] if isinstance(texts, str) else list(checked_texts(name, texts))
        form = self._form(name, truncate_dim, normalize, num_threads)
        embeddings = np.empty((len(given), form.features), np.float32)
        first = 0
        for rows in self._embed_texts(name, given, prompt_name, prompt, form):
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
        """Yield the embeddings of `encode` in order, some at a time: for more texts than fit in memory.

        Parameters
        ----------
        texts : iterable of str
            Read as needed, a bounded number of texts ahead of the embeddings.
        prompt_name, prompt, truncate_dim, normalize, num_threads
            As for `encode`.

        Yields
        ------
        embeddings : float32 [n, E]
            The embeddings of the next n texts.
        """
        name = f"{type(self).__name__}.encode_batches"
        form = self._form(name, truncate_dim, normalize, num_threads)
        return self._embed_texts(name, texts, prompt_name, prompt, form)

    def encode_tokens(
        self,
        sequences: Sequence[ArrayLike],
        *,
        truncate_dim: int | None = None,
        normalize: bool | None = None,
        num_threads: int | None = None,
    ) -> NDArray[np.float32]:
        """Return the embeddings of tokenized texts.

        Parameters
        ----------
        sequences : N of integers [T]
            The tokens of each text, of any lengths, with special tokens and the tokens of a prompt. They are not cut,
            and all are pooled.
        truncate_dim, normalize, num_threads
            As for `encode`.

        Returns
        -------
        embeddings : float32 [N, E]
            A text without tokens has zeros, or the result of a Dense module for zeros.

        Raises
        ------
        TypeError, ValueError
            If tokens are not integers or not in the vocabulary, or if a text has more tokens than the model has
            positions.
        """
        name = f"{type(self).__name__}.encode_tokens"
        tokens = checked_sequences(f"{name}: sequences", sequences)
        form = self._form(name, truncate_dim, normalize, num_threads)
        parts = list(self._embeddings(f"{name}: sequences", tokens, 0, form))
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty((0, form.features), np.float32), *parts])

    def _embed_texts(
        self, name: str, texts: Iterable[str], prompt_name: str | None, prompt: str | None, form: Form
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the embeddings of `texts`, some at a time. The prompt is checked here, texts as they are read."""
        before = self._settings.prompts.chosen(name, prompt_name, prompt)
        tokens = self._tokenize(name, checked_texts(name, texts), before)
        return self._embeddings(f"{name}: texts", tokens, self._prompt_tokens(before), form)

    def _prompt_tokens(self, prompt: str) -> int:
        """Return the number of tokens of a prompt that are not pooled."""
        with in_the_name_of(type(self).__name__):
            return 0 if not prompt or self._head.pools_prompts else self._tokenizer.prompt_length(prompt)

    def _text_call(
        self,
        name: str,
        texts: Any,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
        normalize: bool | None = None,
        per_token: bool = False,
    ) -> TextCall:
        """Return the call `encode` of texts, or `encode_tokens` of those that are tokens; or, `per_token`, the rows
        [T, E] of each text by `encode_to_rows`."""
        before = self._settings.prompts.chosen(name, prompt_name, prompt)
        form = self._form(name, truncate_dim, normalize, None)
        what = f"{name}: texts"
        is_one, given = prompts_in(what, texts)
        strings = [text for text in given if isinstance(text, str)]
        if _core.boolean(name, "per_token", per_token):
            if truncate_dim is not None or normalize is not None:
                raise ValueError(f"{name}: truncate_dim and normalize need embeddings; got per_token")
            sequences = self._tokenize(name, checked_texts(name, given), before)
            texts_of_rows = [TokensOfText(ids, [], _Rows()) for ids in sequences]
            return text_call(self._model, texts_of_rows, lambda rows: rows[0] if is_one else rows)
        if len(strings) == len(given):
            head = _Embeddings(self._head, self._prompt_tokens(before), form.features, form.normalize)
            tokens = list(self._tokenize(name, strings, before))
        elif before:
            raise ValueError(f"{name}: texts must be str with a prompt, which tokens have already; got tokens")
        else:
            head = _Embeddings(self._head, 0, form.features, form.normalize)
            tokens = checked_sequences(what, given)
            check_sequences(what, tokens, self._model.config.vocab_size, self._model.config.max_positions)

        def result(rows: list[Any]) -> "NDArray[np.float32]":  # a string, which no call evaluates
            embeddings = np.array(rows, np.float32).reshape(len(rows), form.features)
            return embeddings[0] if is_one else embeddings

        return text_call(self._model, [TokensOfText(ids, [], head) for ids in tokens], result)

    def _embeddings(
        self, what: str, sequences: Iterable[list[int]], prompt_tokens: int, form: Form
    ) -> Iterator[NDArray[np.float32]]:
        for _, rows, cu_seqlens in self._model.batches(what, sequences, form.num_threads):
            yield self._head.embeddings(rows, cu_seqlens, prompt_tokens, *form)

    def encode_to_rows(
        self,
        texts: Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        num_threads: int | None = None,
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Yield the vectors of the tokens of each text, before pooling.

        Parameters
        ----------
        texts : iterable of str
            Read as needed.
        prompt_name, prompt, num_threads
            As for `encode`.

        Yields
        ------
        tokens : int64 [T]
            The tokens of the next text, with the tokens of the prompt and special tokens.
        rows : float32 [T, E]
            Their vectors after the last layer.
        """
        name = f"{type(self).__name__}.encode_to_rows"
        num_threads = threads_of_call(name, num_threads)
        before = self._settings.prompts.chosen(name, prompt_name, prompt)
        return self._rows_of_texts(name, checked_texts(name, texts), before, num_threads)

    def _rows_of_texts(
        self, name: str, texts: Iterable[str], prompt: str, num_threads: int | None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        sequences = self._tokenize(name, texts, prompt)
        for tokens, rows, cu_seqlens in self._model.batches(f"{name}: texts", sequences, num_threads):
            vectors = widened(rows).astype(np.float32, copy=False)
            for first, end in pairwise(cu_seqlens):
                yield tokens[first:end].copy(), vectors[first:end].copy()
