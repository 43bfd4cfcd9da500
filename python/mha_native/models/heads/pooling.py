"""The Pooling module of sentence-transformers: one vector for a text from the vectors of its tokens."""

from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...functions.arrays import widened
from ...functions.messages import listed, shown
from ..files.entries import Entries

# Keys of the file before version 5.4, and the values of `pooling_mode` since then, in the order of concatenation.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_MODES = tuple(_FLAGS.values())
_WIDTHS = ("embedding_dimension", "word_embedding_dimension")  # E, in newer and older versions

_MOST_MODES = 64  # in one file; there are six different modes


class Pooling(NamedTuple):
    """Pool the vectors of tokens into one vector."""

    # The results are concatenated: "cls", the first token; "lasttoken", the last one; "max" of each feature; "mean",
    # the sum over T tokens divided by T; "mean_sqrt_len_tokens", divided by the square root of T; "weightedmean", with
    # the weight p for the token at position p, counted from 1.
    modes: tuple[str, ...] = ("mean",)
    # Whether the tokens of a prompt are pooled. Without them the other tokens keep their positions.
    include_prompt: bool = True

    def __call__(
        self,
        rows: NDArray[Any],
        cu_seqlens: NDArray[np.int64],
        prompt_tokens: int,
        normalize: bool,
        num_threads: int | None,
    ) -> NDArray[Any]:
        """Return the vectors [n, E len(modes)] of n texts, scaled to length 1 on request; zeros for no tokens.

        `rows` [N, E] are the vectors of the tokens of all texts, and `cu_seqlens` [n + 1] the offsets of the rows of
        each text. The first `prompt_tokens` tokens of each text are left out.
        """
        if prompt_tokens:
            lengths = np.diff(cu_seqlens)
            places = np.arange(len(rows)) - np.repeat(cu_seqlens[:-1], lengths)
            rows = rows[places >= prompt_tokens]
            cu_seqlens = _offsets(np.maximum(lengths - prompt_tokens, 0))
        if len(self.modes) == 1 and self.modes[0] in ("mean", "cls", "lasttoken"):
            return _core.mean_pool(*_selected(self.modes[0], rows, cu_seqlens), normalize, None, num_threads)
        parts = [_pooled(mode, rows, cu_seqlens, prompt_tokens, num_threads) for mode in self.modes]
        vectors = np.concatenate(parts, axis=1)
        return scaled_to_length_1(vectors, num_threads) if normalize else vectors


def scaled_to_length_1(vectors: NDArray[Any], num_threads: int | None) -> NDArray[Any]:
    """Divide each of `vectors` [n, E] by its length; zeros stay zeros."""
    return _core.mean_pool(vectors, np.arange(len(vectors) + 1), True, None, num_threads)


def read_pooling(path: Path, embed_dim: int) -> Pooling:
    """Read the pooling of vectors with `embed_dim` features; the default is the mean.

    Raises OSError or ValueError if the file cannot be read, or asks for an unsupported mode.
    """
    entries = Entries.read(path)
    entries.refuse_others({*_WIDTHS, *_FLAGS, "pooling_mode", "include_prompt"})
    entries.expect(dict.fromkeys(_WIDTHS, embed_dim))
    modes = [mode for name, mode in _FLAGS.items() if entries.flag(name)] or ["mean"]
    if "pooling_mode" in entries.values:
        given = entries.values["pooling_mode"]
        modes = given.split("+") if isinstance(given, str) else given
        if (
            not isinstance(modes, list)
            or not 0 < len(modes) <= _MOST_MODES
            or not all(isinstance(mode, str) and mode in _MODES for mode in modes)
        ):
            raise ValueError(f"{path}: pooling_mode must be one or several of {listed(_MODES)}; got {shown(given)}")
    return Pooling(tuple(modes), entries.flag("include_prompt", True))


def _pooled(
    mode: str, rows: NDArray[Any], cu_seqlens: NDArray[np.int64], prompt_tokens: int, num_threads: int | None
) -> NDArray[Any]:
    counts = np.diff(cu_seqlens)
    if mode == "max":
        numbers = widened(rows)
        largest = [
            numbers[a:b].max(axis=0) if a < b else np.zeros_like(numbers, shape=numbers.shape[1])
            for a, b in pairwise(cu_seqlens)
        ]
        return np.stack(largest) + 0  # max of -0 and 0 can be either
    if mode == "weightedmean":
        numbers = widened(rows)
        places = prompt_tokens + 1 + np.arange(len(rows)) - np.repeat(cu_seqlens[:-1], counts)
        means = _core.mean_pool(numbers * places[:, None].astype(np.float64), cu_seqlens, False, None, num_threads)
        average_place = prompt_tokens + (counts + 1) / 2  # the divisor of the mean
        return (means / average_place[:, None]).astype(numbers.dtype, copy=False)
    means = _core.mean_pool(*_selected(mode, rows, cu_seqlens), False, None, num_threads)
    if mode == "mean_sqrt_len_tokens":
        means = (means * np.sqrt(counts)[:, None]).astype(means.dtype, copy=False)
    return means


def _selected(mode: str, rows: NDArray[Any], cu_seqlens: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the rows to average, and the offsets of the texts."""
    if mode not in ("cls", "lasttoken"):
        return rows, cu_seqlens
    has_tokens = cu_seqlens[:-1] < cu_seqlens[1:]
    chosen = cu_seqlens[:-1] if mode == "cls" else cu_seqlens[1:] - 1
    return rows[chosen[has_tokens]], _offsets(has_tokens)


def _offsets(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Return the offsets of parts with these numbers of rows."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64, copy=False)
