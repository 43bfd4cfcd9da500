"""Sparse embeddings of texts by a masked language model: SPLADE."""

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..functions.messages import in_the_name_of, listed, shown
from ..functions.runtime import threads_of_call
from ..functions.scalars import checked_integer
from ..layers._constructor_arguments import WeightDType, checked_dtypes, checked_size
from .architecture.family import EMBEDDING
from .architecture.model import Model
from .architecture.open import open_model
from .files.entries import Entries
from .files.folder import FolderSource
from .files.hub_cache import find_directory
from .files.modules_json import SparseModules, read_sparse_modules
from .files.sentence_files import SentenceConfig, read_sentence_config
from .heads.masked_language import MaskedHead, SparsePooling, masked_head_of
from .heads.sparse import SparseEmbeddings
from .heads.sparse_words import SparseWords, read_sparse_words
from .text.batching import slabs
from .text.inputs import checked_each, checked_texts
from .text.prompts import DOCUMENT_PROMPTS, QUERY_PROMPTS, Settings, read_settings
from .text.text_call import TextCall, TokensOfText, text_call
from .text.tokenizer import Tokenizer, read_tokenizer, require_library
from .text_encoder import TextEncoder

__all__ = ["SparseEmbeddings", "SparseEncoder"]

_POOLING_KEYS = ("pooling_strategy", "activation_function", "embedding_dimension", "word_embedding_dimension")


class Routes(NamedTuple):
    """The tasks of a model with a Router: some pass the layers, others look up static numbers of tokens."""

    words: Mapping[str, SparseWords]
    tasks: tuple[str, ...]  # empty without a Router: tasks have no effect
    default: str | None

    def words_of(self, function: str, task: str | None) -> SparseWords | None:
        """Return the static words of a task, or None for the layers. ValueError for an unknown task."""
        if not self.tasks:
            return None
        task = self.default if task is None else task
        if task not in self.tasks:
            raise ValueError(f"{function}: task must be one of the model, {listed(self.tasks)}; got {shown(task)}")
        return self.words.get(task)


class _Call(NamedTuple):
    """The checked arguments of a call."""

    prompt: str
    words: SparseWords | None
    max_active_dims: int | None
    num_threads: int | None


class _Rows(NamedTuple):
    """The head of texts whose results are the indices and values of each."""

    head: MaskedHead
    max_active_dims: int | None

    def __call__(
        self, rows: NDArray[Any], cu_seqlens: NDArray[np.int64], num_threads: int | None
    ) -> list[SparseEmbeddings]:
        found = _kept(SparseEmbeddings.of_dense(self.head.vectors(rows, cu_seqlens, num_threads)), self.max_active_dims)
        return [found.texts(i, i + 1) for i in range(found.num_texts)]


class SparseEncoder(TextEncoder):
    """Sparse embeddings of texts: for each token of the vocabulary, how well it fits the text (SPLADE).

    Use `from_pretrained` to open a model.

    Parameters
    ----------
    model, tokenizer, head, config, settings, routes
        The parts that `from_pretrained` reads.

    See Also
    --------
    from_pretrained : Open a model.
    encode, encode_query, encode_document : Embeddings of texts.
    SentenceEncoder : Dense embeddings.

    Notes
    -----
    The numbers of a text are ``log(1 + relu(largest logit))`` over its tokens, for each token of the vocabulary. The
    head computes some columns of the logits at a time, so they are never stored whole. The embedding of a text has the
    same bits alone and in any batch.

    Inference-free models compute documents so, and look up queries: a number for each token in the text, such as its
    inverse document frequency. Call `encode_query` and `encode_document` for them.

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
        config: SentenceConfig,
        settings: Settings,
        routes: Routes,
    ) -> None:
        super().__init__(model, tokenizer, config, settings)
        self._head, self._routes = head, routes

    @property
    def embed_dim(self) -> int:
        """V, the features of an embedding: the tokens of the vocabulary."""
        return self._head.features

    @property
    def max_active_dims(self) -> int | None:
        """The largest number of features of an embedding that are not zero; None: any number."""
        return self._settings.max_active_dims

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks of a model that treats them differently, such as "query" and "document"; else empty."""
        return self._routes.tasks

    def looks_up(self, task: str | None = None) -> bool:
        """Return whether texts of a task are looked up, without a computation of the layers.

        Parameters
        ----------
        task : str, optional
            As for `encode`.
        """
        return self._routes.words_of(f"{type(self).__name__}.looks_up", task) is not None

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
            in config.json is ...ForMaskedLM, and logits are pooled by their maximum. Or modules.json lists a Router to
            these two for documents, and to a SparseStaticEmbedding for queries.
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
            modules = read_sparse_modules(home)
            is_listed = modules is not None
            modules = modules or SparseModules(home, home, {})
            settings = read_settings(home, "SparseEncoder") if is_listed else Settings(similarity="dot")
            opened = open_model(FolderSource(modules.transformer), EMBEDDING)
            _check_class(opened.source.path, opened.source.config)
            front_end, vocab_size = opened.config.stacks[0].front_end, opened.config.vocab_size
            limits = front_end.max_positions or 0, is_listed, front_end.first_position
            sentences = read_sentence_config(modules.transformer, *limits, "fill-mask")
            head = masked_head_of(opened)
            pooling = _read_pooling(modules.pooling) if is_listed else SparsePooling()
            tokenizer = read_tokenizer(modules.transformer, vocab_size, sentences, needs_first_token=False)
            words = {task: read_sparse_words(folder, vocab_size) for task, folder in modules.words.items()}
            with opened.tensors(head.tensor_shapes()) as tensors:
                masked = MaskedHead(head, tensors, pooling)
                computation = opened.build(tensors, kind, stored)
            routes = Routes(words, modules.tasks, modules.default_task)
            return cls(computation, tokenizer, masked, sentences, settings, routes)

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        task: str | None = None,
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
        task : str, optional
            One of `tasks`. Default: as the model says, mostly "document". It has no effect on a model without tasks.
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
        call = self._call(name, prompt_name, prompt, task, max_active_dims, num_threads)
        return self._encoded(name, texts, call)

    def encode_query(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        max_active_dims: int | None = None,
        num_threads: int | None = None,
    ) -> SparseEmbeddings:
        """Return the sparse embeddings of queries: `encode` with the task "query".

        Parameters
        ----------
        texts : str, or N of them
        prompt_name, prompt
            As for `encode`. Default: the prompt "query".
        max_active_dims, num_threads
            As for `encode`.

        Returns
        -------
        embeddings : SparseEmbeddings
        """
        name = f"{type(self).__name__}.encode_query"
        call = self._call(name, prompt_name, prompt, "query", max_active_dims, num_threads, QUERY_PROMPTS)
        return self._encoded(name, texts, call)

    def encode_document(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        max_active_dims: int | None = None,
        num_threads: int | None = None,
    ) -> SparseEmbeddings:
        """Return the sparse embeddings of documents: `encode` with the task "document".

        Parameters
        ----------
        texts : str, or N of them
        prompt_name, prompt
            As for `encode`. Default: the first of "document", "passage" and "corpus" that the model has.
        max_active_dims, num_threads
            As for `encode`.

        Returns
        -------
        embeddings : SparseEmbeddings
        """
        name = f"{type(self).__name__}.encode_document"
        call = self._call(name, prompt_name, prompt, "document", max_active_dims, num_threads, DOCUMENT_PROMPTS)
        return self._encoded(name, texts, call)

    def encode_batches(
        self,
        texts: Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        task: str | None = None,
        max_active_dims: int | None = None,
        num_threads: int | None = None,
    ) -> Iterator[SparseEmbeddings]:
        """Yield the embeddings of `encode` in order, some at a time: for more texts than fit in memory.

        Parameters
        ----------
        texts : iterable of str
            Read as needed, a bounded number of texts ahead of the embeddings.
        prompt_name, prompt, task, max_active_dims, num_threads
            As for `encode`.

        Yields
        ------
        embeddings : SparseEmbeddings
            The embeddings of the next texts.
        """
        name = f"{type(self).__name__}.encode_batches"
        call = self._call(name, prompt_name, prompt, task, max_active_dims, num_threads)
        return self._embeddings(name, checked_texts(name, texts), call)

    def decode(self, embeddings: SparseEmbeddings, *, top_k: int | None = None) -> list[list[tuple[str | None, float]]]:
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
            words = [self.token(int(indices[j])) for j in order]
            found.append(list(zip(words, values[order].tolist(), strict=True)))
        return found

    def token(self, index: int) -> str | None:
        """Return the token of a feature, as the tokenizer writes it; None for a feature without a token.

        Parameters
        ----------
        index : int
            From 0 to `embed_dim` - 1.
        """
        place = checked_integer(f"{type(self).__name__}.token", "index", index, 0, self.embed_dim - 1)
        token: str | None = self._tokenizer.library.id_to_token(place)
        return token

    def _encoded(self, name: str, texts: str | Iterable[str], call: _Call) -> SparseEmbeddings:
        given = [texts] if isinstance(texts, str) else list(checked_texts(name, texts))
        return SparseEmbeddings.concatenated(self._embeddings(name, given, call), self.embed_dim)

    def _call(
        self,
        name: str,
        prompt_name: str | None,
        prompt: str | None,
        task: str | None,
        max_active_dims: int | None,
        num_threads: int | None,
        names: Iterable[str] = (),
    ) -> _Call:
        """Check the arguments of a call, and return them with the defaults of the model."""
        most = self.max_active_dims
        if max_active_dims is not None:
            most = checked_size(name, "max_active_dims", max_active_dims)
        before = self._settings.prompts.chosen(name, prompt_name, prompt, names)
        return _Call(before, self._routes.words_of(name, task), most, threads_of_call(name, num_threads))

    def _embeddings(self, name: str, texts: Iterable[str], call: _Call) -> Iterator[SparseEmbeddings]:
        """Yield the embeddings of `texts`, some at a time. Texts are checked as they are read."""
        if call.words is not None:
            for slab in slabs(checked_each(f"{name}: texts", texts)):
                with in_the_name_of(type(self).__name__):
                    yield _kept(call.words.embeddings([call.prompt + text for text in slab]), call.max_active_dims)
            return
        tokens = self._tokenize(name, texts, call.prompt)
        for _, rows, cu_seqlens in self._model.batches(f"{name}: texts", tokens, call.num_threads):
            vectors = self._head.vectors(rows, cu_seqlens, call.num_threads)
            yield _kept(SparseEmbeddings.of_dense(vectors), call.max_active_dims)

    def _text_call(
        self,
        name: str,
        texts: Any,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        task: str | None = None,
        max_active_dims: int | None = None,
    ) -> TextCall:
        """Return the call `encode` of texts."""
        call = self._call(name, prompt_name, prompt, task, max_active_dims, None)
        given = [texts] if isinstance(texts, str) else list(checked_texts(name, texts))

        def result(parts: list[SparseEmbeddings]) -> SparseEmbeddings:
            return SparseEmbeddings.concatenated(parts, self.embed_dim)

        if call.words is not None:  # which are looked up at once
            found = list(self._embeddings(name, given, call))
            return TextCall(self._model, [], [], lambda _: result(found))
        head = _Rows(self._head, call.max_active_dims)
        tokens = self._tokenize(name, given, call.prompt)
        return text_call(self._model, [TokensOfText(ids, [], head) for ids in tokens], result)


def _kept(found: SparseEmbeddings, max_active_dims: int | None) -> SparseEmbeddings:
    return found if max_active_dims is None else found.largest(max_active_dims)


def _read_pooling(folder: Path) -> SparsePooling:
    """Read the settings of a SpladePooling in its folder."""
    entries = Entries.read(folder / "config.json")
    entries.refuse_others(_POOLING_KEYS)
    mode = entries.choice("pooling_strategy", "max", "sum", default="max")
    activation = entries.choice("activation_function", "relu", "log1p_relu", default="relu")
    return SparsePooling(mode, activation == "log1p_relu")


def _check_class(path: Any, config: Any) -> None:
    """Refuse a model whose files have no masked language model, by the class in config.json."""
    names = config.get("architectures")
    if isinstance(names, list) and names and not str(names[0]).endswith("ForMaskedLM"):
        raise ValueError(f"{path}: architectures must have a ...ForMaskedLM for a SparseEncoder; got {shown(names)}")
