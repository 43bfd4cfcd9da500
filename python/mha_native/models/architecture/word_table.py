"""A model without layers: the row of each token in a table."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...functions.dtypes import dtype_name, packed_state, unpacked_state
from ...functions.messages import shown
from ..front_ends.tokens import Tokens, TokensConfig
from .config import ModelConfig, StackConfig
from .model import Model
from .norms import in_dtype


class WordTable(Model):
    """The rows of tokens in a table [V, E], which static embeddings average."""

    def __init__(self, words: NDArray[Any]) -> None:
        front_end = TokensConfig(words.shape[0], words.shape[1], max_positions=None)
        super().__init__(ModelConfig((StackConfig(front_end, (), None),)), [])
        self._rows = Tokens(front_end, {"words": words})

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the table and of rows."""
        dtype: np.dtype[Any] = self._words.dtype
        return dtype

    @property
    def weight_dtype(self) -> str:
        """The name of `dtype`: there are no matrices of layers."""
        return dtype_name(self.dtype)

    @property
    def _words(self) -> NDArray[Any]:
        words: NDArray[Any] = self._rows.tables["words"]
        return words

    def weight_bytes(self) -> dict[str, int]:
        """Return the bytes of the table, by its dtype."""
        return {dtype_name(self.dtype): self._words.nbytes}

    def astype(self, dtype: np.dtype[Any]) -> "WordTable":
        """Return the same model in another dtype."""
        return WordTable(in_dtype(self._words, dtype))

    def quantize(self, weight_dtype: Any) -> "WordTable":
        """Raise ValueError: there are no matrices of layers."""
        raise ValueError(f"weight_dtype is for layers, and a static model has none; got {shown(weight_dtype)}")

    def hidden_states(
        self,
        tokens: NDArray[np.integer],
        cu_seqlens: NDArray[np.integer],
        num_threads: int | None,
        token_types: NDArray[np.integer] | None = None,
    ) -> NDArray[Any]:
        """Return the rows [N, E] of tokens; there are no token types."""
        return self._rows(tokens, cu_seqlens, num_threads)

    def attention_weights(self, tokens: NDArray[np.integer], num_threads: int | None) -> NDArray[Any]:
        """Raise ValueError: there is no attention."""
        raise ValueError("a static model has no layers, and no attention weights")

    def __getstate__(self) -> dict[str, Any]:
        return {"words": packed_state({"words": self._words})}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        WordTable.__init__(self, unpacked_state(saved["words"])["words"])
