"""What the parts of a decoder compute together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mha_native.layers.causal_decoder import CausalDecoder
from mha_native.models.decoders.folder_source import FolderSource
from mha_native.models.decoders.opening import open_decoder
from mha_native.models.decoders.source import LanguageModelParts

Array = np.ndarray[Any, Any]


def opened(directory: Path, **options: Any) -> LanguageModelParts:
    """The parts of the model in a folder."""
    return open_decoder(FolderSource(directory), **options)


def logits(parts: LanguageModelParts, sequences: list[list[int]]) -> list[Array]:
    """[T, V] for each sequence of T tokens, all of them in one ragged batch."""
    lengths = [len(sequence) for sequence in sequences]
    x = parts.embeddings[np.concatenate(sequences)]
    if parts.positions is not None:
        x = x + parts.positions[np.concatenate([np.arange(length) for length in lengths])]
    decoder = CausalDecoder.__new__(CausalDecoder)
    decoder.layers, decoder.norm = tuple(parts.layers), parts.final_norm
    decoder.layer_options = tuple(dict(options) for options in parts.layer_options)
    rows = parts.head(decoder(x, cu_seqlens=np.cumsum([0, *lengths]))).astype(np.float64)
    if (cap := parts.config.logit_softcap) is not None:
        rows = cap * np.tanh(rows / cap)
    return np.split(rows, np.cumsum(lengths)[:-1])
