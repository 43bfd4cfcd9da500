"""The computation of a decoder of any family: tokens to vectors, and vectors to logits."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ... import _core
from ...functions.arrays import widened
from ...functions.dtypes import packed_state, unpacked_state
from ...functions.paged_kv_cache import PagedKVCache
from ...functions.token_cache import TokenCache
from ...layers.causal_decoder import CausalDecoder
from ..decoders.source import LanguageModelParts
from ..generation.decoding import Room, Steps
from ..text.inputs import check_vocabulary

# The most logits that are computed at once where more rows than one have some: 32 MiB in float64.
_MOST_LOGITS = 1 << 22


class LanguageModel:
    """Embeddings, layers and the head of a decoder.

    Parameters
    ----------
    parts : LanguageModelParts
    """

    def __init__(self, parts: LanguageModelParts) -> None:
        self.config, self._parts = parts.config, parts
        options = parts.layer_options if any(parts.layer_options) else None
        self._layers = CausalDecoder.from_layers(parts.layers, parts.final_norm, layer_options=options)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What the model is computed in."""
        return self._layers.layers[0].dtype  # type: ignore[no-any-return]

    @property
    def weight_dtype(self) -> str:
        """What the matrices of the layers are stored as, by name."""
        return self._layers.layers[0].weight_dtype  # type: ignore[no-any-return]

    def room(self, batch: int, capacity: int, dtype: DTypeLike | None = None) -> Room:
        """Caches for `capacity` tokens in each of `batch` sequences. Default: of the dtype of the model."""
        return Room(self._layers, batch, capacity, dtype)

    def paged_caches(
        self, num_sequences: int, num_pages: int, page_size: int, dtype: DTypeLike | None
    ) -> list[PagedKVCache]:
        """Caches of `num_sequences` sequences that share the pages of a layer. Default: of the dtype of the model."""
        return [
            layer.new_cache(num_sequences, 1, dtype=dtype, page_size=page_size, num_pages=num_pages)
            for layer in self._layers.layers
        ]

    def steps(self, room: Room, num_threads: int | None) -> Steps:
        """What a step of generation is made of, over the caches of `room`."""

        def read(
            tokens: NDArray[np.int64],
            places: NDArray[np.int64],
            cu_seqlens: NDArray[np.int64],
            sequences: NDArray[np.int64],
        ) -> NDArray[Any]:
            return self.read(tokens, places, cu_seqlens, room.caches, sequences, num_threads)

        def logits(rows: NDArray[Any]) -> NDArray[Any]:
            return self.logits(rows, num_threads)

        return Steps(read, logits)

    def read(
        self,
        tokens: NDArray[np.int64],
        places: NDArray[np.int64],
        cu_seqlens: NDArray[np.int64],
        caches: Sequence[TokenCache],
        sequences: NDArray[np.int64],
        num_threads: int | None,
    ) -> NDArray[Any]:
        """The vectors [N, E] of the next tokens [N], at their places [N], of some sequences of caches, to which they
        are appended.

        Those of sequence ``sequences[i]`` are the ones from ``cu_seqlens[i]`` to ``cu_seqlens[i + 1]``.
        """
        y: NDArray[Any] = self._layers(
            self._embed(tokens, places),
            caches=caches,
            cu_seqlens=cu_seqlens,
            sequences=sequences,
            num_threads=num_threads,
        )
        return y

    def hidden_states(
        self, tokens: NDArray[np.int64], cu_seqlens: NDArray[np.int64], num_threads: int | None
    ) -> NDArray[Any]:
        """The vectors [N, E] of tokens [N] of texts one after another, which begin and end at `cu_seqlens` [B + 1]."""
        places = np.arange(len(tokens)) - np.repeat(cu_seqlens[:-1], np.diff(cu_seqlens))
        y: NDArray[Any] = self._layers(self._embed(tokens, places), cu_seqlens=cu_seqlens, num_threads=num_threads)
        return y

    def logits(self, rows: NDArray[Any], num_threads: int | None) -> NDArray[Any]:
        """The logits [N, V] of rows [N, E]; of a model in 16 bits in float32."""
        logits = widened(self._parts.head(rows, num_threads=num_threads))
        softcap = self.config.logit_softcap
        if softcap is not None:
            logits = logits / softcap
            np.tanh(logits, out=logits)
            logits *= softcap
        return logits

    def log_likelihoods(
        self, rows: NDArray[Any], tokens: NDArray[np.int64], num_threads: int | None
    ) -> NDArray[np.float64]:
        """The logarithms [N] of the probabilities that rows [N, E] give to tokens [N]."""
        result = np.empty(len(rows))
        step = max(1, _MOST_LOGITS // self.config.vocab_size)
        for first in range(0, len(rows), step):
            some = slice(first, first + step)
            logits = self.logits(rows[some], num_threads).astype(np.float64)
            logits -= logits.max(-1, keepdims=True)
            chosen = logits[np.arange(len(logits)), tokens[some]]
            result[some] = chosen - np.log(np.exp(logits, out=logits).sum(-1))
        return result

    @property
    def max_length(self) -> int:
        """P, the most tokens of a text."""
        return self.config.max_positions

    def check_sequences(self, what: str, sequences: Sequence[Sequence[int]]) -> None:
        """ValueError unless each of `sequences` has from one token to as many as there are positions, and no other."""
        for i, sequence in enumerate(sequences):
            if not sequence:
                raise ValueError(f"{what} must have a token; got none at {i}")
            if len(sequence) > self.max_length:
                raise ValueError(
                    f"{what} must have no more tokens than the model has positions, {self.max_length}; "
                    f"got {len(sequence)} at {i}"
                )
            check_vocabulary(what, sequence, self.config.vocab_size, i)

    def _embed(self, tokens: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[Any]:
        rows = self._parts.embeddings[tokens]
        positions = self._parts.positions
        if positions is None:
            return rows
        return _core.convert(widened(rows) + widened(positions[places]), self.dtype)

    def __getstate__(self) -> dict[str, Any]:
        tables = {"embeddings": self._parts.embeddings}
        if self._parts.positions is not None:
            tables["positions"] = self._parts.positions
        parts = self._parts._replace(embeddings=np.empty(0), positions=None)
        return {"parts": parts, "tables": packed_state(tables)}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__init__(saved["parts"]._replace(**unpacked_state(saved["tables"])))  # type: ignore[misc]
