"""From the files of an encoder-decoder to its parts."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...functions.arrays import widened
from ...layers._layer_options import in_dtype_of_scores
from ...layers.decoder import DecoderLayer
from ..architecture.build import BlockConfig, NormConfig, in_dtype, make_attention, make_layer, make_linear, make_norm
from ..architecture.relative_buckets import position_bias_of_buckets
from ..architecture.tensor_names import BlockNames, Tensors
from ..files.folder import FolderSource
from .config import Seq2SeqConfig, family_of, read_config
from .family import Family, StackNames

Shapes = Iterator[tuple[str, tuple[int, ...]]]


class StackParts(NamedTuple):
    """One of the two stacks of layers.

    Attributes
    ----------
    layers : list of layers
    tables : dict of arrays
        Of those that there are: ``positions`` [P, E], which are added to embeddings, and ``norm_weight`` [E] and
        ``norm_bias`` [E] of the norm of the sums.
    final_norm : norm, optional
    options : dict
        The score options of every layer, as a call of the stack takes them.
    """

    layers: list[Any]
    tables: dict[str, NDArray[Any]]
    final_norm: Any
    options: dict[str, Any]


class Seq2SeqParts(NamedTuple):
    """An encoder-decoder, as `open_seq2seq` makes it.

    Attributes
    ----------
    words : [V, E]
        Embeddings of tokens, in the dtype of the layers, scaled.
    head : Linear
        From rows [..., E] to logits [..., V].
    logit_bias : [V], optional
        What is added to logits.
    """

    config: Seq2SeqConfig
    words: NDArray[Any]
    encoder: StackParts
    decoder: StackParts
    head: Any
    logit_bias: NDArray[np.float32] | None


def open_seq2seq(source: FolderSource, dtype: np.dtype[Any], weight_dtype: str) -> Seq2SeqParts:
    """The parts of an encoder-decoder.

    Parameters
    ----------
    source : FolderSource
    dtype : dtype
        What is computed in.
    weight_dtype : str
        What the matrices of the layers and of the head are stored as.

    Raises
    ------
    OSError
        If a file cannot be read.
    ValueError
        If config.json asks for what is not computed, which is known before weights are read; if weights are missing or
        of other shapes.
    """
    config, family = read_config(source), family_of(source)
    with source.tensors((), family.prefix) as tensors:
        words_names = [name for name in family.words if name in tensors] or list(family.words[:1])
        tables = (family.encoder.positions, family.decoder.positions)
        computed = frozenset(name for name in tables if name is not None and family.sinusoidal and name not in tensors)
        has_head, has_bias = "lm_head.weight" in tensors, family.logit_bias is not None and family.logit_bias in tensors
    own_head = ["lm_head.weight"] * (has_head or not config.is_tied)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(words_names + own_head, (config.vocab_size, config.embed_dim))
    if has_bias:
        shapes[str(family.logit_bias)] = (1, config.vocab_size)
    shapes |= dict(_stack_shapes(config, family, config.encoder, family.encoder, computed))
    shapes |= dict(_stack_shapes(config, family, config.decoder, family.decoder, computed))
    with source.tensors(shapes.items(), family.prefix) as tensors:
        words = tensors[words_names[0]]
        for other in words_names[1:]:
            if not np.array_equal(words, tensors[other]):
                raise ValueError(f"{source.path.parent}: {words_names[0]} and {other} must hold the same numbers")
        head = tensors[own_head[0]] if own_head else words
        return Seq2SeqParts(
            config=config,
            words=_scaled(words, config.embedding_scale, dtype),
            encoder=_stack(config, family, family.encoder, tensors, computed, dtype, weight_dtype),
            decoder=_stack(config, family, family.decoder, tensors, computed, dtype, weight_dtype),
            head=make_linear(in_dtype(head, dtype), weight_dtype),
            logit_bias=tensors[str(family.logit_bias)][0] if has_bias else None,
        )


def _stack_shapes(
    config: Seq2SeqConfig,
    family: Family,
    blocks: tuple[BlockConfig, ...],
    names: StackNames,
    computed: frozenset[str],
) -> Shapes:
    """Names and shapes of the tensors of a stack, without those that are `computed`."""
    width, norm = config.embed_dim, config.norm
    if names.positions is not None and config.max_positions is not None and names.positions not in computed:
        yield names.positions, (family.first_position + config.max_positions, width)
    if names.position_bias is not None and config.num_buckets is not None:
        yield names.position_bias, (config.num_buckets, blocks[0].num_heads)
    norms = [name for name in (names.embedding_norm, names.final_norm) if name is not None]
    for i, block in enumerate(blocks):
        block_names = _block_names(names, block)
        yield from block_names.shapes(block, i)
        if names is family.decoder:
            first = names.blocks.layer.format(i)
            for part in ("query", "key", "value", "out"):
                name = f"{first}{getattr(family.memory, part)}"
                yield f"{name}.weight", block.products()[part]
                if part in block.biases:
                    yield f"{name}.bias", block.products()[part][:1]
            norms.append(f"{first}{family.memory.norm}")
    for name in norms:
        for which in _of_norm(norm):
            yield f"{name}.{which}", (width,)


def _stack(
    config: Seq2SeqConfig,
    family: Family,
    names: StackNames,
    tensors: Tensors,
    computed: frozenset[str],
    dtype: np.dtype[Any],
    weight_dtype: str,
) -> StackParts:
    is_decoder = names is family.decoder
    blocks = config.decoder if is_decoder else config.encoder
    layers: list[Any] = []
    for i, block in enumerate(blocks):
        weights = _block_names(names, block).read(block, i, tensors, dtype)
        layer: Any = make_layer(block, weights, {}, dtype, weight_dtype)
        if is_decoder:
            first = names.blocks.layer.format(i)
            memory = make_attention(
                block, _memory_weights(family, block, first, tensors, dtype), None, dtype, weight_dtype
            )
            norm = _norm_weights(block.norm, f"{first}{family.memory.norm}", tensors, dtype)
            layer = DecoderLayer.from_parts(
                layer.self_attn,
                memory,
                layer.feed_forward,
                layer.norm1,
                make_norm(block.norm, norm, dtype),
                layer.norm2,
                norm_first=layer.norm_first,
            )
        layers.append(layer)
    options: dict[str, Any] = {**blocks[0].options}
    if is_decoder and blocks[0].scale is not None:
        options["memory_scale"] = blocks[0].scale
    if names.position_bias is not None and config.max_distance is not None:
        table = position_bias_of_buckets(tensors[names.position_bias], config.max_distance, is_decoder)
        options |= in_dtype_of_scores({"position_bias": table}, dtype)
    tables = {}
    if names.positions is not None and config.max_positions is not None:
        if names.positions in computed:
            positions = _sines_and_cosines(config.max_positions, config.embed_dim)
        else:
            positions = tensors[names.positions][family.first_position :]
        tables["positions"] = in_dtype(positions, dtype)
    if names.embedding_norm is not None:
        weights = _norm_weights(config.norm, names.embedding_norm, tensors, dtype)
        tables |= {f"norm_{which}": numbers for which, numbers in weights.items()}
    final_norm = None
    if names.final_norm is not None:
        weights = _norm_weights(config.norm, names.final_norm, tensors, dtype)
        final_norm = make_norm(config.norm, weights, dtype)
    return StackParts(layers, tables, final_norm, options)


def _sines_and_cosines(count: int, width: int) -> NDArray[np.float32]:
    """The table [P, E] of positions: the sines of all wavelengths, and behind them the cosines."""
    pairs = _core.sinusoidal_positions(count, width, 0, "float32")
    return np.concatenate([pairs[:, 0::2], pairs[:, 1::2]], axis=1)


def _memory_weights(
    family: Family, block: BlockConfig, first: str, tensors: Tensors, dtype: np.dtype[Any]
) -> dict[str, NDArray[Any]]:
    """The weights of the attention to the memory, whose names begin with `first`."""
    weights = {}
    for part in ("query", "key", "value", "out"):
        for which in ["weight"] + ["bias"] * (part in block.biases):
            weights[f"{part}.{which}"] = in_dtype(tensors[f"{first}{getattr(family.memory, part)}.{which}"], dtype)
    return weights


def _block_names(names: StackNames, block: BlockConfig) -> BlockNames:
    """The names of the parts of a layer, which may be others without a gate."""
    if block.gated or names.ungated_up is None:
        return names.blocks
    return names.blocks._replace(up=names.ungated_up)


def _of_norm(norm: NormConfig) -> list[str]:
    return ["weight"] + ["bias"] * norm.bias


def _norm_weights(norm: NormConfig, name: str, tensors: Tensors, dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
    """The weights of the norm of that name, as `make_norm` takes them."""
    return {which: in_dtype(tensors[f"{name}.{which}"], dtype) for which in _of_norm(norm)}


def _scaled(words: NDArray[np.float32], scale: float, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Words in `dtype`, multiplied with `scale`, and rounded once more."""
    table = in_dtype(words, dtype)
    return table if scale == 1 else in_dtype(widened(table) * scale, dtype)
