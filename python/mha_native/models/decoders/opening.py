"""From the files of a decoder to its parts."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...functions.arrays import widened
from ...layers.norm import Norm
from ..architecture.build import in_dtype, make_layer, make_linear, make_norm, rotary_tables
from ..architecture.tensor_names import Tensors
from .config import family_of, read_config
from .family import Names
from .source import DecoderConfig, LanguageModelParts, ModelSource

_FLOAT32 = np.dtype("float32")


def open_decoder(
    source: ModelSource,
    *,
    dtype: np.dtype[Any] = _FLOAT32,
    weight_dtype: str = _FLOAT32.name,
    max_positions: int | None = None,
) -> LanguageModelParts:
    """The parts of a decoder.

    Parameters
    ----------
    source : ModelSource
    dtype : dtype, default float32
        What is computed in.
    weight_dtype : str, default "float32"
        What the matrices of the layers and of the head are stored as.
    max_positions : int, optional
        As for `read_config`.

    Raises
    ------
    OSError
        If a file cannot be read.
    ValueError
        If config.json asks for what is not computed, which is known before weights are read; if weights are missing or
        of other shapes.
    """
    config, family = read_config(source, max_positions), family_of(source)
    names = family.names
    with source.tensors(_shapes(config, names), family.prefix) as tensors:
        words = tensors[names.words]
        tables = rotary_tables(config.blocks, dtype)
        return LanguageModelParts(
            config=config,
            embeddings=_embeddings(words, config.embedding_scale, dtype),
            layers=[
                make_layer(block, names.blocks.read(block, i, tensors, dtype), tables, dtype, weight_dtype)
                for i, block in enumerate(config.blocks)
            ],
            layer_options=[block.options for block in config.blocks],
            final_norm=_final_norm(config, names, tensors, dtype),
            head=make_linear(in_dtype(words if config.is_tied else tensors[names.head], dtype), weight_dtype),
            positions=None
            if names.positions is None
            else in_dtype(tensors[names.positions][: config.max_positions], dtype),
        )


def _shapes(config: DecoderConfig, names: Names) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all tensors that the model is made of."""
    width = config.embed_dim
    yield names.words, (config.vocab_size, width)
    if names.positions is not None:
        yield names.positions, (config.trained_positions, width)
    for i, block in enumerate(config.blocks):
        yield from names.blocks.shapes(block, i)
    for which in ["weight"] + ["bias"] * config.final_norm.bias:
        yield f"{names.final_norm}.{which}", (width,)
    if not config.is_tied:
        yield names.head, (config.vocab_size, width)


def _embeddings(words: NDArray[np.float32], scale: float, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Words in `dtype`, multiplied with `scale`, which transformers rounds to `dtype`, too."""
    table = in_dtype(words, dtype)
    if scale == 1:
        return table
    factor = widened(in_dtype(np.array([scale], np.float32), dtype))
    return in_dtype(widened(table) * factor, dtype)


def _final_norm(config: DecoderConfig, names: Names, tensors: Tensors, dtype: np.dtype[Any]) -> Norm:
    weights = {
        which: in_dtype(tensors[f"{names.final_norm}.{which}"], dtype)
        for which in ["weight"] + ["bias"] * config.final_norm.bias
    }
    return make_norm(config.final_norm, weights, dtype)
