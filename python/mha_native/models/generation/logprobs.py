"""Log-probabilities of tokens: the softmax in float64 of the logits of a model, before all options of sampling."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class TokenLogprobs(NamedTuple):
    """The log-probability of a token, and of the most probable tokens at its place.

    Parameters
    ----------
    token : int
    logprob : float
        The natural logarithm of the probability, by the softmax of the logits in float64, before all sampling options.
    top : tuple of (int, float)
        The most probable tokens and their log-probabilities, as many as were asked for, the largest first.

    Examples
    --------
    >>> from mha_native.models import TokenLogprobs
    >>> TokenLogprobs(7, -1.25, ((3, -0.5), (7, -1.25))).top[0]
    (3, -0.5)
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprobs(logits: NDArray[Any], tokens: Sequence[int], count: int) -> list[TokenLogprobs]:
    """Return the log-probabilities of tokens [n], and of the `count` most probable ones, by logits [n, V]."""
    found = []
    for row, token, logs in zip(logits, tokens, _log_softmax(logits), strict=True):
        order = largest(row, min(count, len(row))) if count else np.empty(0, np.int64)
        top = tuple(zip(order.tolist(), logs[order].tolist(), strict=True))
        found.append(TokenLogprobs(int(token), float(logs[token]), top))
    return found


def largest(logits: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Return the places of the `count` largest logits in descending order, the first ones of equals."""
    if count == len(logits):
        return np.argsort(-logits, kind="stable")
    candidates = np.flatnonzero(logits >= np.partition(logits, -count)[-count])
    return candidates[np.argsort(-logits[candidates], kind="stable")[:count]]


def _log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # infinite logits have no softmax: NaN
        logs: NDArray[np.float64] = np.subtract(logits, logits.max(-1, keepdims=True), dtype=np.float64)
        logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
    return logs
