"""What the parts of a decoder compute together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mha_native.layers._constructor_arguments import checked_dtypes
from mha_native.models.architecture.language_model import LanguageModel
from mha_native.models.decoders.opening import open_decoder
from mha_native.models.decoders.source import LanguageModelParts
from mha_native.models.files.folder import FolderSource

Array = np.ndarray[Any, Any]


def opened(
    directory: Path, dtype: str = "float32", weight_dtype: Any = None, max_positions: int | None = None
) -> LanguageModelParts:
    """The parts of the model in a folder."""
    kind, stored = checked_dtypes("opened", dtype, weight_dtype)
    return open_decoder(FolderSource(directory), dtype=kind, weight_dtype=stored, max_positions=max_positions)


def logits(parts: LanguageModelParts, sequences: list[list[int]]) -> list[Array]:
    """[T, V] for each sequence of T tokens, all of them in one ragged batch."""
    model, cu_seqlens = LanguageModel(parts), np.cumsum([0, *map(len, sequences)])
    rows = model.logits(model.hidden_states(np.concatenate(sequences), cu_seqlens, None), None)
    return np.split(rows, cu_seqlens[1:-1])
