"""What the parts of a decoder compute together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mha_native.models._language_model import LanguageModel
from mha_native.models.decoders.folder_source import FolderSource
from mha_native.models.decoders.opening import open_decoder
from mha_native.models.decoders.source import LanguageModelParts

Array = np.ndarray[Any, Any]


def opened(directory: Path, **options: Any) -> LanguageModelParts:
    """The parts of the model in a folder."""
    return open_decoder(FolderSource(directory), **options)


def logits(parts: LanguageModelParts, sequences: list[list[int]]) -> list[Array]:
    """[T, V] for each sequence of T tokens, all of them in one ragged batch."""
    model, cu_seqlens = LanguageModel(parts), np.cumsum([0, *map(len, sequences)])
    rows = model.logits(model.hidden_states(np.concatenate(sequences), cu_seqlens, None), None)
    return np.split(rows, cu_seqlens[1:-1])
