"""Late interaction: the public functions, which document and forward. The core checks and computes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _core
from .arrays import Tensor, like, to_numpy


def maxsim(
    queries: Tensor,
    documents: Tensor,
    *,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    query_scale: Tensor | None = None,
    document_scale: Tensor | None = None,
    pairs: Tensor | None = None,
    out: Tensor | None = None,
    num_threads: int | None = None,
) -> Tensor:
    """Return the late-interaction scores of queries and documents that have a vector for each token.

    The score of a query q and a document d is ``sum over tokens i of q of max over tokens j of d of q_i . d_j``, called
    MaxSim in ColBERT. No array of the products of a query and a document is stored.

    Parameters
    ----------
    queries : [Tq, D], list of Nq arrays [T, D], or [Nq, T, D]
        The vectors of the tokens of all queries, one query after another: NumPy array, or CPU tensor of any library
        that speaks DLPack, in float32, float64, float16, bfloat16 or int8. The arrays of a list are copied into one.
    documents : [Tk, D], list of Nd arrays [T, D], or [Nd, T, D]
        Likewise, in the dtype of `queries`.
    cu_seqlens_q, cu_seqlens_k : integer array [Nq + 1], [Nd + 1], optional
        Cumulative lengths of [Tq, D] and [Tk, D], as for `scaled_dot_product_attention_varlen`. A query or document may
        be empty. Default: one query, one document.
    query_scale, document_scale : float32 [Tq], [Tk], optional
        The factors of int8 vectors, as `quantize_tokens` returns them. For int8 both are needed.
    pairs : integer array [P, 2], optional
        Numbers of a query and a document, in any order. Only these scores are computed. Default: all.
    out : [Nq, Nd] or [P], optional
        Array to write the scores to; it must not overlap an input.
    num_threads : int, optional
        Threads for this call; default: `mha_native.num_threads`.

    Returns
    -------
    scores : [Nq, Nd], with `pairs` [P]
        Float64 for float64, else float32, of the kind of `queries`.

    Raises
    ------
    TypeError, ValueError
        Before any work, if an argument breaks a rule.

    See Also
    --------
    quantize_tokens : Vectors to int8.
    mha_native.models.MultiVectorEncoder : Vectors of the tokens of texts.

    Notes
    -----
    A score has the same bits alone and in any call, whatever the number of threads. Products have the order of sums of
    attention; maxima are added in double precision. A document without tokens has a score of minus infinity, a query
    without tokens a score of 0. NaN in a vector makes the scores of its query or document NaN.

    Examples
    --------
    A query of two tokens, and two documents of one and three tokens:

    >>> import numpy as np
    >>> import mha_native as mha
    >>> query = np.array([[1, 0], [0, 1]], np.float32)
    >>> documents = np.array([[0.5, 0.75], [1, 0], [0, 0.5], [-1, 0]], np.float32)
    >>> mha.maxsim(query, documents, cu_seqlens_k=[0, 1, 4])
    array([[1.25, 1.5 ]], dtype=float32)
    """
    name = "maxsim"
    q, q_offsets, first = _ragged(name, "queries", "cu_seqlens_q", queries, cu_seqlens_q)
    d, k_offsets, _ = _ragged(name, "documents", "cu_seqlens_k", documents, cu_seqlens_k)
    for what, array, scale in (("query_scale", q, query_scale), ("document_scale", d, document_scale)):
        if scale is None and isinstance(array, np.ndarray) and array.dtype == np.int8:
            raise ValueError(f"{name}: {what} must be given for int8; quantize_tokens returns it")
    chosen: tuple[Any, Any] = (None, None)
    if pairs is not None:
        numbers = to_numpy(name, "pairs", np.asarray(pairs) if isinstance(pairs, (list, tuple)) else pairs)
        if not isinstance(numbers, np.ndarray) or numbers.ndim != 2 or numbers.shape[1] != 2:
            got = list(numbers.shape) if isinstance(numbers, np.ndarray) else type(numbers).__name__
            raise ValueError(f"{name}: pairs must be an integer array [P, 2]; got {got}")
        if numbers.dtype.kind not in "iu":
            raise TypeError(f"{name}: pairs must be an integer array; got {numbers.dtype}")
        chosen = numbers[:, 0], numbers[:, 1]
    scores = _core.maxsim(
        q,
        d,
        q_offsets,
        k_offsets,
        to_numpy(name, "query_scale", query_scale),
        to_numpy(name, "document_scale", document_scale),
        *chosen,
        None if out is None else to_numpy(name, "out", out),
        num_threads,
    )
    return like(first, scores) if out is None else out


def quantize_tokens(x: Tensor, *, num_threads: int | None = None) -> tuple[Tensor, Tensor]:
    """Return vectors rounded to int8 with a scale each, as `maxsim` takes them: a quarter of the memory of float32.

    A number becomes ``integer * scale`` with ``scale = max |x| / 127`` of its row. Its error is at most half a scale.

    Parameters
    ----------
    x : float32 [T, D]
        Kinds and strides as for `maxsim`.
    num_threads : int, optional
        Threads for this call; default: `mha_native.num_threads`.

    Returns
    -------
    integers : int8 [T, D]
    scale : float32 [T]
        Of a row with an infinity or NaN the scale is this, and the integers are 0.

    Raises
    ------
    TypeError, ValueError
        If `x` has another dtype or number of axes.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> integers, scale = mha.quantize_tokens(np.array([[0.5, -1.0, 0.25]], np.float32))
    >>> integers
    array([[  64, -127,   32]], dtype=int8)
    """
    integers, scale = _core.quantize_tokens(to_numpy("quantize_tokens", "x", x), num_threads)
    return like(x, integers), like(x, scale)


def _ragged(function: str, name: str, name_of_offsets: str, given: Any, offsets: Any) -> tuple[Any, Any, Any]:
    """Return the rows of all matrices, their cumulative lengths, and a tensor of the kind of the result."""
    if not isinstance(given, (list, tuple)):
        rows = to_numpy(function, name, given)
        if isinstance(rows, np.ndarray) and rows.ndim == 3 and offsets is None:
            count, length = rows.shape[:2]
            return rows.reshape(count * length, rows.shape[2]), np.arange(count + 1) * length, given
        if offsets is None:
            offsets = np.array([0, len(rows) if isinstance(rows, np.ndarray) and rows.ndim else 0])
        elif isinstance(offsets, (list, tuple)):
            offsets = np.asarray(offsets)
        return rows, to_numpy(function, name_of_offsets, offsets), given
    if offsets is not None:
        raise ValueError(f"{function}: {name_of_offsets} must be None for a list of arrays, whose lengths are known")
    if not given:
        raise ValueError(f"{function}: {name} must have an array; for none pass [0, D] and {name_of_offsets} [0]")
    arrays = [to_numpy(function, f"{name}[{i}]", matrix) for i, matrix in enumerate(given)]
    for i, array in enumerate(arrays):
        if not isinstance(array, np.ndarray) or array.ndim != 2 or array.shape[1] != arrays[0].shape[1]:
            got = list(array.shape) if isinstance(array, np.ndarray) else type(array).__name__
            raise ValueError(f"{function}: {name}[{i}] must be [T, D], with D as in {name}[0]; got {got}")
        if array.dtype != arrays[0].dtype:
            got = f"{array.dtype} and {arrays[0].dtype}"
            raise TypeError(f"{function}: {name}[{i}] must have the dtype of {name}[0]; got {got}")
    lengths = [len(array) for array in arrays]
    return np.concatenate(arrays), np.cumsum([0, *lengths]), given[0]
