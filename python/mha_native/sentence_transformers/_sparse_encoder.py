"""`SparseEncoder`: sparse embeddings of texts, with the arguments of sentence-transformers."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import models
from ..functions.messages import in_the_name_of
from ..functions.progress import is_wanted, progress_bar
from ..layers._constructor_arguments import optional_size
from ..models import SparseEmbeddings
from ..models.text.inputs import checked_texts
from ._model import Embedder, Pool, check_call
from ._similarity import SimilarityFunction
from ._sparse_tensors import as_sparse, as_sparse_tensor, is_sparse, torch_or_none
from ._tensors import is_tensor

_ROWS = 128  # embeddings that are dense at once, some 16 MiB

_logger = logging.getLogger(__name__)


class SparseEncoder(Embedder):
    """Sparse embeddings of texts by a pretrained model, a drop-in for the class of sentence-transformers 6.2.

    Parameters
    ----------
    model_name_or_path : path, or name of a model
        As for `mha_native.models.SparseEncoder.from_pretrained`. A name without an organization is one of
        ``sparse-encoder``.
    device, cache_folder, revision, local_files_only, token, backend
        As for `SentenceTransformer`.
    prompts, default_prompt_name, model_kwargs, processor_kwargs, tokenizer_kwargs, config_kwargs
        As for `SentenceTransformer`.
    similarity_fn_name : {"dot", "cosine", "euclidean", "manhattan"} or SimilarityFunction, optional
        Default: as the model says, or "dot".
    max_active_dims : int, optional
        Keep at most this many numbers of an embedding. Default: as the model says, or all.
    trust_remote_code, model_card_data
        Have no effect: no code of a model runs, and no model is saved.
    modules
        Not supported.

    Attributes
    ----------
    max_active_dims : int, optional
        You can set it.
    prompts, default_prompt_name
        As for `SentenceTransformer`.
    splade_pooling_chunk_size : int, optional
        Has no effect: logits are never stored whole.

    See Also
    --------
    mha_native.models.SparseEncoder : Computes the embeddings.

    Notes
    -----
    Embeddings are tensors of torch, as there, where torch is installed, and `SparseEmbeddings` or arrays otherwise.
    Unsupported are models with a SparseAutoEncoder. The embedding of a text has the same bits alone and in any batch.
    Several threads may use a model at once, and pickle supports it.

    Examples
    --------
    >>> from mha_native.sentence_transformers import SparseEncoder
    >>> model = SparseEncoder("naver/splade-v3")
    >>> documents = model.encode_document(["Children swim for free.", "Bulky waste is collected on Mondays."])
    >>> list(model.similarity(model.encode_query("an old couch"), documents).shape)
    [1, 2]
    """

    _KIND, _ORGANIZATION = models.SparseEncoder, "sparse-encoder"
    _encoder: models.SparseEncoder
    splade_pooling_chunk_size: int | None = None

    def __init__(
        self,
        model_name_or_path: str | PathLike[str] | None = None,
        *,
        modules: Any = None,
        device: Any = None,
        prompts: Mapping[str, str | None] | None = None,
        default_prompt_name: str | None = None,
        cache_folder: str | PathLike[str] | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        local_files_only: bool = False,
        token: bool | str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        processor_kwargs: Mapping[str, Any] | None = None,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        config_kwargs: Mapping[str, Any] | None = None,
        model_card_data: Any = None,
        backend: str = "torch",
        similarity_fn_name: str | SimilarityFunction | None = None,
        max_active_dims: int | None = None,
    ) -> None:
        self._open(locals())
        self.max_active_dims = self._encoder.max_active_dims if max_active_dims is None else max_active_dims

    def encode(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_tensor: bool = True,
        convert_to_sparse_tensor: bool = True,
        save_to_cpu: bool = False,
        device: Any = None,
        max_active_dims: int | None = None,
        pool: Pool | None = None,
        chunk_size: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Embed texts.

        Parameters
        ----------
        inputs : str, or N of them
            A long text is cut to `max_seq_length` tokens. ``sentences`` is the old name of this argument.
        prompt_name, prompt, batch_size, show_progress_bar, device, pool, chunk_size
            As for `SentenceTransformer.encode`.
        convert_to_tensor : bool
            False gives a list with one embedding for each text.
        convert_to_sparse_tensor : bool
            False gives dense embeddings.
        save_to_cpu : bool
            Has no effect: results are on the CPU.
        max_active_dims : int, optional
            Keep at most this many numbers of an embedding, the largest. Default: the attribute.
        **kwargs
            ``task``: "query" or "document", for models that treat them differently.

        Returns
        -------
        embeddings : [N, V]
            A sparse or dense tensor in float32; for one str [V], for no texts [0]. Without torch `SparseEmbeddings` of
            N texts, or a dense array.

        Raises
        ------
        TypeError, ValueError
            If a text is not a str, or an argument is not valid.
        """
        function = f"{type(self).__name__}.encode"
        sentences = kwargs.pop("sentences", None)
        inputs = sentences if inputs is None else inputs
        check_call(function, batch_size, device, pool, chunk_size, kwargs)
        is_one = isinstance(inputs, str)
        with in_the_name_of(function, texts="inputs"):
            texts = list(checked_texts(function, [inputs] if is_one else inputs))
            most = self.max_active_dims if max_active_dims is None else max_active_dims
            before = self._prompt(function, prompt_name, prompt)
            found = self._encoder.encode_batches(texts, prompt=before, max_active_dims=most, **kwargs)
            shows = bool(texts) and is_wanted(show_progress_bar, _logger)
            bar = progress_bar(len(texts), "texts") if shows else contextlib.nullcontext(lambda count: None)
            with bar as advance:
                parts = []
                for part in found:
                    parts.append(part)
                    advance(part.num_texts)
        embeddings = SparseEmbeddings.concatenated(parts, self._encoder.embed_dim)
        if convert_to_tensor and not is_one:
            return _form(embeddings, convert_to_sparse_tensor)
        rows = [_form(embeddings.texts(i, i + 1), convert_to_sparse_tensor, True) for i in range(len(texts))]
        return rows[0] if is_one else rows

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Compute the similarity of each of `embeddings1` to each of `embeddings2`, by `similarity_fn_name`.

        Parameters
        ----------
        embeddings1 : [N, V] or [V]
            A sparse or dense tensor of torch, an array, a list of either, or SparseEmbeddings.
        embeddings2 : [M, V] or [V]

        Returns
        -------
        scores : [N, M]
            A tensor if an argument is one, or a list of them; else an array.
        """
        if not (is_sparse(embeddings1) or is_sparse(embeddings2)):
            return super().similarity(embeddings1, embeddings2)
        function = f"{type(self).__name__}.similarity"
        a, b = _both(function, embeddings1, embeddings2)
        name = self.similarity_fn_name
        if name == "cosine":
            a, b = a.normalized(), b.normalized()
        if name in ("dot", "cosine"):
            scores = a.dot(b)
        else:
            score = SimilarityFunction.to_similarity_fn(name)
            scores = np.zeros((a.num_texts, b.num_texts), np.float32)
            for first, some in _dense_blocks(a):
                for second, others in _dense_blocks(b):
                    scores[first : first + len(some), second : second + len(others)] = score(some, others)
        return _like(scores, embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Compute the similarity of `embeddings1` [N, V] and `embeddings2` [N, V] at the same index.

        Returns
        -------
        scores : [N]
            A tensor if an argument is one, or a list of them; else an array.
        """
        if not (is_sparse(embeddings1) or is_sparse(embeddings2)):
            return super().similarity_pairwise(embeddings1, embeddings2)
        function = f"{type(self).__name__}.similarity_pairwise"
        a, b = _both(function, embeddings1, embeddings2)
        if a.num_texts != b.num_texts:
            got = f"got {a.num_texts} and {b.num_texts}"
            raise ValueError(f"{function}: embeddings1 and embeddings2 must be as many; {got}")
        score = SimilarityFunction.to_similarity_pairwise_fn(self.similarity_fn_name)
        scores = np.zeros(a.num_texts, np.float32)
        for (first, some), (_, others) in zip(_dense_blocks(a), _dense_blocks(b), strict=True):
            scores[first : first + len(some)] = score(some, others)
        return _like(scores, embeddings1, embeddings2)

    @staticmethod
    def sparsity(embeddings: Any) -> dict[str, float]:
        """Return the mean number of numbers that are not zero, and the mean share of zeros.

        Parameters
        ----------
        embeddings : [N, V] or [V]
            As for `similarity`.

        Returns
        -------
        statistics : dict
            ``{"active_dims": float, "sparsity_ratio": float}``.
        """
        found, _ = as_sparse("SparseEncoder.sparsity", "embeddings", embeddings)
        if not found.num_texts or not found.features:
            return {"active_dims": 0.0, "sparsity_ratio": 1.0}
        mean = len(found.values) / found.num_texts
        return {"active_dims": mean, "sparsity_ratio": 1.0 - mean / found.features}

    @staticmethod
    def intersection(embeddings_1: Any, embeddings_2: Any) -> Any:
        """Return the positive products of an embedding with others, for tokens that both have.

        Parameters
        ----------
        embeddings_1 : [V]
            As for `similarity`.
        embeddings_2 : [N, V] or [V]

        Returns
        -------
        products : [N, V] or [V]
            A sparse tensor if an argument is a tensor; else SparseEmbeddings.
        """
        function = "SparseEncoder.intersection"
        one, others = _both(function, embeddings_1, embeddings_2)
        if one.num_texts != 1:
            raise ValueError(f"{function}: embeddings_1 must be one embedding [V]; got {one.num_texts}")
        values = others.values * one.to_dense()[0][others.indices]
        found = SparseEmbeddings(others.offsets, others.indices, values, others.features).positive()
        if is_tensor(embeddings_1) or is_tensor(embeddings_2):
            return as_sparse_tensor(found, as_sparse(function, "embeddings_2", embeddings_2)[1])
        return found

    def decode(self, embeddings: Any, top_k: int | None = None) -> Any:
        """Return the tokens of embeddings with their numbers, the largest first.

        Parameters
        ----------
        embeddings : [N, V] or [V]
            As for `similarity`.
        top_k : int, optional
            Tokens of an embedding. Default: all.

        Returns
        -------
        tokens : list of ``(token, number)``
            For [N, V], or SparseEmbeddings of N texts, a list of N lists.
        """
        function = f"{type(self).__name__}.decode"
        with in_the_name_of(function):
            found, is_one = as_sparse(function, "embeddings", embeddings)
            tokens = self._encoder.decode(found, top_k=top_k)
        return tokens[0] if is_one else tokens

    @property
    def max_active_dims(self) -> int | None:
        """The largest number of numbers of an embedding that are not zero; None: any number. You can set it."""
        return self._max_active_dims

    @max_active_dims.setter
    def max_active_dims(self, max_active_dims: int | None) -> None:
        self._max_active_dims = optional_size(type(self).__name__, "max_active_dims", max_active_dims)

    def get_model_kwargs(self) -> list[str]:
        """Return the names of arguments that `encode` passes to a model: the task, if it treats tasks differently."""
        return ["task"] if self._encoder.tasks else []


def _form(embeddings: SparseEmbeddings, is_sparse: bool, is_one: bool = False) -> Any:
    """Return embeddings as a tensor of torch, [V] if `is_one`, or without torch as SparseEmbeddings or an array."""
    torch = torch_or_none()
    if torch is not None and not embeddings.num_texts:  # as there
        return torch.zeros(0).to_sparse() if is_sparse else torch.zeros(0)
    if is_sparse:
        return embeddings if torch is None else as_sparse_tensor(embeddings, is_one)
    dense = embeddings.to_dense()[0] if is_one else embeddings.to_dense()
    return dense if torch is None else torch.from_numpy(dense)


def _both(function: str, embeddings1: Any, embeddings2: Any) -> tuple[SparseEmbeddings, SparseEmbeddings]:
    """Return both arguments as sparse vectors, which must have the same number of features."""
    a, _ = as_sparse(function, "embeddings1", embeddings1)
    b, _ = as_sparse(function, "embeddings2", embeddings2)
    if a.features != b.features:
        got = f"got {a.features} and {b.features}"
        raise ValueError(f"{function}: embeddings1 and embeddings2 must have as many features; {got}")
    return a, b


def _dense_blocks(embeddings: SparseEmbeddings) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield the vectors as arrays of some rows, with the number of the first row."""
    for first in range(0, embeddings.num_texts, _ROWS):
        yield first, embeddings.texts(first, min(first + _ROWS, embeddings.num_texts)).to_dense()


def _like(scores: NDArray[np.float32], *embeddings: Any) -> Any:
    """Return scores as a tensor if some embeddings are tensors."""
    torch = torch_or_none() if any(map(is_tensor, embeddings)) else None
    return scores if torch is None else torch.from_numpy(scores)
