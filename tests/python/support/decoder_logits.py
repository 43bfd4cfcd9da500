"""A decoder in a directory, opened, and its logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mha_native.layers._constructor_arguments import checked_dtypes
from mha_native.models.architecture.family import GENERATION
from mha_native.models.architecture.model import Model
from mha_native.models.architecture.open import open_model
from mha_native.models.files.folder import FolderSource
from mha_native.models.files.source import Source

Array = np.ndarray[Any, Any]


def opened(
    source: Path | Source, dtype: str = "float32", weight_dtype: Any = None, max_positions: int | None = None
) -> Model:
    """The model in a folder, or in another source."""
    source = FolderSource(source) if isinstance(source, Path) else source
    kind, stored = checked_dtypes("opened", dtype, weight_dtype)
    return open_model(source, GENERATION, max_positions).load(kind, stored)


def logits(model: Model, sequences: list[list[int]]) -> list[Array]:
    """[T, V] for each sequence of T tokens, all of them in one ragged batch."""
    cu_seqlens = np.cumsum([0, *map(len, sequences)])
    rows = model.logits(model.hidden_states(np.concatenate(sequences), cu_seqlens, None), None)
    return np.split(rows, cu_seqlens[1:-1])
