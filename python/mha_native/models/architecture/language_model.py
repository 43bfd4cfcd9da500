"""The computation of a decoder of any family: tokens to vectors, and vectors to logits."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...functions.arrays import widened
from ...functions.dtypes import packed_state, unpacked_state
from ...layers._constructor_arguments import WeightDType
from ...layers.causal_decoder import CausalDecoder
from ..decoders.source import LanguageModelParts
from ..generation.engine import CachedModel, NewTokens
from .build import in_dtype

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

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self._parts.layers)

    @property
    def num_heads(self) -> int:
        """H, the heads of each layer."""
        return self.config.blocks[0].num_heads

    def astype(self, dtype: np.dtype[Any]) -> "LanguageModel":
        """The same model in another dtype."""
        parts = self._parts
        changed: dict[str, Any] = {name: getattr(parts, name).astype(dtype) for name in ("final_norm", "head")}
        changed |= {name: in_dtype(table, dtype) for name, table in self._tables().items()}
        return LanguageModel(parts._replace(layers=[layer.astype(dtype) for layer in parts.layers], **changed))

    def quantize(self, weight_dtype: WeightDType) -> "LanguageModel":
        """The same model with the matrices of its layers and of its head in another format."""
        layers = [layer.quantize(weight_dtype) for layer in self._parts.layers]
        return LanguageModel(self._parts._replace(layers=layers, head=self._parts.head.quantize(weight_dtype)))

    def cached(self, num_threads: int | None) -> CachedModel:
        """The model as the engine of generation uses it."""

        def read(new: NewTokens, caches: list[Any]) -> NDArray[Any]:
            x = self._embed(new.tokens, new.places)
            ragged: Any = {"cu_seqlens": new.cu_seqlens, "sequences": new.slots}
            y: NDArray[Any] = self._layers(x, caches=caches, num_threads=num_threads, **ragged)
            return y

        return CachedModel(self._layers.layers, read, lambda rows: self.logits(rows, num_threads))

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

    def _embed(self, tokens: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[Any]:
        rows = self._parts.embeddings[tokens]
        positions = self._parts.positions
        if positions is None:
            return rows
        return _core.convert(widened(rows) + widened(positions[places]), self.dtype)

    def _tables(self) -> dict[str, NDArray[Any]]:
        tables = {"embeddings": self._parts.embeddings, "positions": self._parts.positions}
        return {name: table for name, table in tables.items() if table is not None}

    def __getstate__(self) -> dict[str, Any]:
        parts = self._parts._replace(embeddings=np.empty(0), positions=None)
        return {"parts": parts, "tables": packed_state(self._tables())}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__init__(saved["parts"]._replace(**unpacked_state(saved["tables"])))  # type: ignore[misc]
