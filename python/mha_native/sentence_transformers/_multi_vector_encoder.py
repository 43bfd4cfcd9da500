"""`MultiVectorEncoder`: vectors of tokens for late interaction, with the arguments of sentence-transformers."""

import logging
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..functions.maxsim import maxsim
from ..functions.messages import in_the_name_of, listed, shown
from ..models import MultiVectorEncoder as Encoder
from ..models.heads.pooling import scaled_to_length_1
from ..models.text.inputs import checked_texts
from ._model import Embedder, Pool, check_call
from ._tensors import as_array, as_tensor, is_tensor

_SIMILARITIES = ("maxsim", "meanmaxsim")
_TASKS = (None, "query", "document")

_logger = logging.getLogger(__name__)


class MultiVectorEncoder(Embedder):
    """Vectors of the tokens of texts, for late interaction: a drop-in for the class of sentence-transformers 6.2.

    Parameters
    ----------
    model_name_or_path : path, or name of a model
        As for `mha_native.models.MultiVectorEncoder.from_pretrained`: of sentence-transformers, PyLate or ColBERT.
    device, cache_folder, revision, local_files_only, token, backend
        As for `SentenceTransformer`.
    prompts, default_prompt_name, model_kwargs, processor_kwargs, config_kwargs
        As for `SentenceTransformer`. The marker of a role stands before its prompt, unless it is the prompt.
    similarity_fn_name : {"maxsim", "meanmaxsim"}, optional
        Default: as the model says, or "maxsim".
    trust_remote_code, model_card_data
        Have no effect: no code of a model runs, and no model is saved.
    modules
        Not supported.

    Attributes
    ----------
    prompts, default_prompt_name
        As for `SentenceTransformer`.

    See Also
    --------
    mha_native.models.MultiVectorEncoder : Computes the vectors, as one array for all texts.

    Notes
    -----
    In contrast to that class, results are arrays unless `convert_to_numpy` is False or an argument is a tensor.
    `encode` without a task reads documents. The marker of a role stands before any prompt, also an empty one, as in
    PyLate. Several threads may use a model at once.

    Examples
    --------
    >>> from mha_native.sentence_transformers import MultiVectorEncoder
    >>> model = MultiVectorEncoder("lightonai/GTE-ModernColBERT-v1")
    >>> queries = model.encode_query(["Where do I get rid of an old couch?"])
    >>> documents = model.encode_document(["Children swim for free.", "Bulky waste is collected on Mondays."])
    >>> model.similarity(queries, documents).shape
    (1, 2)
    """

    _KIND = Encoder
    _encoder: Encoder

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
        config_kwargs: Mapping[str, Any] | None = None,
        model_card_data: Any = None,
        backend: str = "torch",
        similarity_fn_name: Any = None,
    ) -> None:
        self._open(locals())

    @property
    def similarity_fn_name(self) -> str:
        """ "maxsim", or "meanmaxsim": maxsim over the number of vectors of the query. You can set it."""
        return super().similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, similarity_fn_name: Any) -> None:
        name = getattr(similarity_fn_name, "value", similarity_fn_name)
        name = "maxsim" if name is None else name
        if name not in _SIMILARITIES:
            known = listed(map(repr, _SIMILARITIES))
            raise ValueError(f"{type(self).__name__}: similarity_fn_name must be one of {known}; got {shown(name)}")
        self._similarity = name

    def encode(
        self,
        inputs: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: Literal["token_embeddings"] | None = "token_embeddings",
        convert_to_numpy: bool = True,
        device: Any = None,
        normalize_embeddings: bool = False,
        pool: Pool | None = None,
        chunk_size: int | None = None,
        token_pooling: Any = None,
        task: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Compute vectors of the tokens of texts.

        Parameters
        ----------
        inputs : str, or N of them
            Longer texts are cut.
        prompt_name, prompt
            As for `SentenceTransformer.encode`.
        batch_size, show_progress_bar, chunk_size, device, pool
            As for `SentenceTransformer.encode`; there is no progress bar.
        output_value : {"token_embeddings"}
            Other values are not supported.
        convert_to_numpy : bool
            Return arrays; otherwise tensors of torch.
        normalize_embeddings : bool
            Scale each vector to length 1.
        token_pooling
            Must be None.
        task : {"query", "document"}, optional
            The role of the texts; default: documents, with the default prompt.

        Returns
        -------
        embeddings : list of N float32 [T, D]
            For one str [T, D].

        Raises
        ------
        TypeError, ValueError
            If a text is not a str, or an argument is not valid.
        """
        function = f"{type(self).__name__}.encode"
        if output_value != "token_embeddings" or token_pooling is not None:
            got = f"{shown(output_value)}, and {shown(token_pooling)} as token_pooling"
            raise ValueError(f"{function}: output_value must be 'token_embeddings', and token_pooling None; got {got}")
        if task not in _TASKS:
            raise ValueError(f"{function}: task must be 'query' or 'document'; got {shown(task)}")
        check_call(function, batch_size, device, pool, chunk_size, kwargs)
        is_one = isinstance(inputs, str)
        with in_the_name_of(function, texts="inputs"):
            texts = list(checked_texts(function, [inputs] if isinstance(inputs, str) else inputs))
            before = self._prompt(function, prompt_name, prompt)
            encode = self._encoder.encode_query if task == "query" else self._encoder.encode_document
            found = encode(texts, prompt=before)
        rows = found.rows
        if normalize_embeddings:
            rows = scaled_to_length_1(rows, None)
        parts = np.split(rows, found.cu_seqlens[1:-1]) if texts else []
        vectors = [part.copy() if convert_to_numpy else _tensor(function, part.copy()) for part in parts]
        return vectors[0] if is_one else vectors

    def similarity(self, embeddings1: Any, embeddings2: Any, *, length_normalize: bool | None = None) -> Any:
        """Compute the score of each of N queries with each of M documents.

        Parameters
        ----------
        embeddings1 : list of N [T, D], [N, T, D] or [T, D]
            The vectors of queries: arrays or tensors of torch. In [N, T, D] all vectors count.
        embeddings2 : list of M [T, D], [M, T, D] or [T, D]
            The vectors of documents.
        length_normalize : bool, optional
            Divide scores by the number of vectors of the query. Default: as `similarity_fn_name` says.

        Returns
        -------
        scores : float32 [N, M]
            A tensor if an argument is one, or a list of them; else an array.
        """
        function = f"{type(self).__name__}.similarity"
        return self._scores(function, embeddings1, embeddings2, length_normalize, False)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any, *, length_normalize: bool | None = None) -> Any:
        """Compute the scores of N queries with the documents at the same index.

        Parameters
        ----------
        embeddings1, embeddings2, length_normalize
            As for `similarity`; as many queries as documents.

        Returns
        -------
        scores : float32 [N]
            A tensor if an argument is one, or a list of them; else an array.
        """
        function = f"{type(self).__name__}.similarity_pairwise"
        return self._scores(function, embeddings1, embeddings2, length_normalize, True)

    def _scores(
        self, function: str, queries: Any, documents: Any, length_normalize: bool | None, pairwise: bool
    ) -> Any:
        q, d = _matrices(function, "embeddings1", queries), _matrices(function, "embeddings2", documents)
        if pairwise and len(q) != len(d):
            raise ValueError(f"{function}: embeddings1 and embeddings2 must be as many; got {len(q)} and {len(d)}")
        pairs = np.stack([np.arange(len(q))] * 2, axis=1) if pairwise else None
        if not q or not d:
            scores = np.zeros((0,) if pairwise else (len(q), len(d)), np.float32)
        else:
            with in_the_name_of(function, queries="embeddings1", documents="embeddings2"):
                scores = maxsim(q, d, pairs=pairs)
        divides = self.similarity_fn_name == "meanmaxsim" if length_normalize is None else length_normalize
        if divides and q:
            lengths = np.maximum([len(one) for one in q], 1).astype(np.float32)
            scores /= lengths if pairwise else lengths[:, None]
        return _tensor(function, scores) if is_tensor(queries) or is_tensor(documents) else scores


def _tensor(function: str, array: NDArray[Any]) -> Any:
    return as_tensor(function, "convert_to_numpy", array)


def _matrices(function: str, name: str, given: Any) -> list[NDArray[np.float32]]:
    """Return the matrices of a list, of [N, T, D], or one matrix, in float32."""
    if not isinstance(given, (list, tuple)):
        array = as_array(given)
        given = [array] if array.ndim == 2 else list(array)
    found = [as_array(one) for one in given]
    for one in found:
        if one.ndim != 2 or one.dtype.kind not in "fiu":
            raise TypeError(f"{function}: {name} must be matrices [T, D] of numbers; got {shown(one)}")
    return [np.ascontiguousarray(one, dtype=np.float32) for one in found]
