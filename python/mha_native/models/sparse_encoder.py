"""Sparse embeddings of texts by a masked language model: SPLADE."""

from collections.abc import Iterable, Iterator
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..functions.messages import in_the_name_of, shown
from ..functions.runtime import threads_of_call
from ..layers._constructor_arguments import WeightDType, checked_dtypes, checked_size
from .architecture.family import EMBEDDING
from .architecture.model import Model
from .architecture.open import open_model
from .files.entries import Entries
from .files.folder import FolderSource
from .files.hub_cache import find_directory
from .files.modules_json import read_splade
from .files.sentence_files import SentenceConfig, read_sentence_config
from .heads.masked_language import MaskedHead, SparsePooling, masked_head_of
from .heads.sparse import SparseEmbeddings
from .text.inputs import checked_texts
from .text.prompts import Settings, read_settings
from .text.tokenizer import Tokenizer, read_tokenizer, require_library
from .text_encoder import TextEncoder

__all__ = ["SparseEmbeddings", "SparseEncoder"]

_POOLING_KEYS = ("pooling_strategy", "activation_function", "embedding_dimension", "word_embedding_dimension")


class SparseEncoder(TextEncoder):
    """Sparse embeddings of texts: for each token of the vocabulary, how well it fits the text (SPLADE).

    Use `from_pretrained` to open a model.

    Parameters
    ----------
    model, tokenizer, head, pooling, config, settings
        The parts that `from_pretrained` reads.

    See Also
    --------
    from_pretrained : Open a model.
    encode : Embeddings of texts.
    SentenceEncoder : Dense embeddings.

    Notes
    -----
    The numbers of a text are ``log(1 + relu(largest logit))`` over its tokens, for each token of the vocabulary. The
    head computes some columns of the logits at a time, so they are never stored whole. The embedding of a text has the
    same bits alone and in any batch.

    Needs the package tokenizers. You can call a model from several threads at once.

    Examples
    --------
    >>> from mha_native.models import SparseEncoder
    >>> model = SparseEncoder.from_pretrained("naver/splade-v3")
    >>> embeddings = model.encode(["Where do I get rid of an old couch?", "Bulky waste is collected on Mondays."])
    >>> embeddings.dot(embeddings).shape
    (2, 2)
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        head: MaskedHead,
        pooling: SparsePooling,
        config: SentenceConfig,
        settings: Settings,
    ) -> None:
        super().__init__(model, tokenizer, config, settings)
        self._head, self._pooling = head, pooling

    @property
    def embed_dim(self) -> int:
        """V, the features of an embedding: the tokens of the vocabulary."""
        return self._head.features

    @property
    def max_active_dims(self) -> int | None:
        """The largest number of features of an embedding that are not zero; None: any number."""
        return self._settings.max_active_dims

    @classmethod
    def from_pretrained(
        cls, model: str | PathLike[str], *, dtype: DTypeLike = "float32", weight_dtype: WeightDType = None
    ) -> "SparseEncoder":
        """Open a model in the files of sentence-transformers or transformers.

        Parameters
        ----------
        model : path of a directory, or name of a model
            As for `SentenceEncoder.from_pretrained`. The ``model_type`` is bert, roberta, xlm-roberta, camembert,
            distilbert, mpnet or modernbert. modules.json lists a Transformer and a SpladePooling; without it the class
            in config.json is ...ForMaskedLM, and logits are pooled by their maximum.
        dtype, weight_dtype
            As for `SentenceEncoder.from_pretrained`; the head is computed in float32.

        Raises
        ------
        FileNotFoundError, ValueError, OSError, ImportError
            As for `SentenceEncoder.from_pretrained`.
        """
        function = f"{cls.__name__}.from_pretrained"
        with in_the_name_of(function):
            require_library()
            kind, stored = checked_dtypes(function, dtype, weight_dtype)
            home = find_directory(model)
            modules = read_splade(home)
            folder, pooling = (home, SparsePooling()) if modules is None else (modules[0], _read_pooling(modules[1]))
            is_listed = modules is not None
            settings = read_settings(home, "SparseEncoder") if is_listed else Settings(similarity="dot")
            opened = open_model(FolderSource(folder), EMBEDDING)
            _check_class(opened.source.path, opened.source.config)
            front_end = opened.config.stacks[0].front_end
            limits = front_end.max_positions or 0, is_listed, front_end.first_position
            sentences = read_sentence_config(folder, *limits, "fill-mask")
            head = masked_head_of(opened)
            tokenizer = read_tokenizer(folder, opened.config.vocab_size, sentences, needs_first_token=False)
            with opened.tensors(head.tensor_shapes()) as tensors:
                masked = MaskedHead(head, tensors)
                computation = opened.build(tensors, kind, stored)
            return cls(computation, tokenizer, masked, pooling, sentences, settings)

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        max_active_dims: int | None = None,
        num_threads: int | None = None,
    ) -> SparseEmbeddings:
        """Return the sparse embeddings of texts.

        Parameters
        ----------
        texts : str, or N of them
            Texts may be empty. Longer texts are cut to `max_length` tokens.
        prompt_name, prompt
            As for `SentenceEncoder.encode`.
        max_active_dims : int, optional
            Keep at most this many numbers of a text, the largest. Default: the number in
            config_sentence_transformers.json, or all.
        num_threads : int, optional
            Threads of the computation; default: `mha_native.num_threads`. The tokenizer has its own threads.

        Returns
        -------
        embeddings : SparseEmbeddings
            Of N texts; for one str N is 1.

        Raises
        ------
        TypeError, ValueError
            As for `SentenceEncoder.encode`.
        """
        name = f"{type(self).__name__}.encode"
        given = [texts] if isinstance(texts, str) else list(checked_texts(name, texts))
        parts = self._embed(name, given, prompt_name, prompt, max_active_dims, num_threads)
        return SparseEmbeddings.concatenated(parts, self.embed_dim)

    def encode_batches(
        self,
        texts: Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        max_active_dims: int | None = None,
        num_threads: int | None = None,
    ) -> Iterator[SparseEmbeddings]:
        """Yield the embeddings of `encode` in order, some at a time: for more texts than fit in memory.

        Parameters
        ----------
        texts : iterable of str
            Read as needed, a bounded number of texts ahead of the embeddings.
        prompt_name, prompt, max_active_dims, num_threads
            As for `encode`.

        Yields
        ------
        embeddings : SparseEmbeddings
            The embeddings of the next texts.
        """
        name = f"{type(self).__name__}.encode_batches"
        return self._embed(name, texts, prompt_name, prompt, max_active_dims, num_threads)

    def decode(self, embeddings: SparseEmbeddings, *, top_k: int | None = None) -> list[list[tuple[str, float]]]:
        """Return the tokens of embeddings with their numbers, the largest first.

        Parameters
        ----------
        embeddings : SparseEmbeddings
            Of N texts.
        top_k : int, optional
            Tokens of a text. Default: all.

        Returns
        -------
        tokens : list of N lists
            Of ``(token, number)``, as the tokenizer writes tokens.
        """
        name = f"{type(self).__name__}.decode"
        if not isinstance(embeddings, SparseEmbeddings) or embeddings.features != self.embed_dim:
            raise ValueError(f"{name}: embeddings must be SparseEmbeddings of {self.embed_dim} features")
        most = len(embeddings.values) if top_k is None else checked_size(name, "top_k", top_k)
        found = []
        for i in range(embeddings.num_texts):
            indices, values = embeddings.row(i)
            order = np.argsort(-values, kind="stable")[:most]
            words = [self._tokenizer.library.id_to_token(int(indices[j])) for j in order]
            found.append(list(zip(words, values[order].tolist(), strict=True)))
        return found

    def _embed(
        self,
        name: str,
        texts: Iterable[str],
        prompt_name: str | None,
        prompt: str | None,
        max_active_dims: int | None,
        num_threads: int | None,
    ) -> Iterator[SparseEmbeddings]:
        """Yield the embeddings of `texts`, some at a time. Arguments are checked here, texts as they are read."""
        most = self.max_active_dims
        if max_active_dims is not None:
            most = checked_size(name, "max_active_dims", max_active_dims)
        threads = threads_of_call(name, num_threads)
        before = self._settings.prompts.chosen(name, prompt_name, prompt)
        return self._embeddings(name, checked_texts(name, texts), before, most, threads)

    def _embeddings(
        self, name: str, texts: Iterable[str], prompt: str, most: int | None, num_threads: int | None
    ) -> Iterator[SparseEmbeddings]:
        tokens = self._tokenize(name, texts, prompt)
        for _, rows, cu_seqlens in self._model.batches(f"{name}: texts", tokens, num_threads):
            vectors = self._head.vectors(rows, cu_seqlens, self._pooling, num_threads)
            found = SparseEmbeddings.of_dense(vectors)
            yield found if most is None else found.largest(most)


def _read_pooling(entries: Entries) -> SparsePooling:
    """Read the settings of a SpladePooling."""
    entries.refuse_others(_POOLING_KEYS)
    mode = entries.choice("pooling_strategy", "max", "sum", default="max")
    activation = entries.choice("activation_function", "relu", "log1p_relu", default="relu")
    return SparsePooling(mode, activation == "log1p_relu")


def _check_class(path: Any, config: Any) -> None:
    """Refuse a model whose files have no masked language model, by the class in config.json."""
    names = config.get("architectures")
    if isinstance(names, list) and names and not str(names[0]).endswith("ForMaskedLM"):
        raise ValueError(f"{path}: architectures must have a ...ForMaskedLM for a SparseEncoder; got {shown(names)}")
