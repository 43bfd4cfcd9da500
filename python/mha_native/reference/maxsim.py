"""Late interaction in NumPy and float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._errors import named


@named
def maxsim(
    queries: ArrayLike,
    documents: ArrayLike,
    *,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    query_scale: ArrayLike | None = None,
    document_scale: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Scores [Nq, Nd]: for each query the sum over its tokens of the largest product with a token of the document.

    `queries` [Tq, D] and `documents` [Tk, D] are matrices one after another, with cumulative lengths as for
    `mha_native.maxsim`. A document without tokens has minus infinity, a query without tokens 0.
    """
    rows = [np.asarray(x, np.float64) for x in (queries, documents)]
    for i, scale in enumerate((query_scale, document_scale)):
        if scale is not None:
            rows[i] = rows[i] * np.asarray(scale, np.float64)[:, None]
    q, d = np.asarray(cu_seqlens_q), np.asarray(cu_seqlens_k)
    products = rows[0] @ rows[1].T
    scores = np.empty((len(q) - 1, len(d) - 1))
    for i in range(len(q) - 1):
        for j in range(len(d) - 1):
            scores[i, j] = products[q[i] : q[i + 1], d[j] : d[j + 1]].max(axis=1, initial=-np.inf).sum()
    return scores
