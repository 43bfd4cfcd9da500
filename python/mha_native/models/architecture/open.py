"""Opening of models: from files to a model, in one of its roles."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from ...functions.block_matrix import BlockMatrix
from ...layers.linear import Linear
from ..files.entries import Entries
from ..files.source import Matrix, Shapes, Source, Tensors
from ..front_ends.tokens import TokensNames, scaled_words
from .build import make_layer, make_stack, rotary_tables
from .config import ModelConfig, StackConfig
from .disentangled import make_disentangled, relative_rows
from .family import Family
from .model import LanguageHead, Model, Stack
from .norms import in_dtype, make_norm
from .registry import describe, family_of
from .relative_buckets import position_bias_of_buckets
from .tensor_names import StackNames


class OpenModel(NamedTuple):
    """The files of a model, and the computation that they describe. Weights are read by `load`."""

    source: Source
    family: Family
    config: ModelConfig
    optional: frozenset[str]  # the tensors in the files that a model of this family may lack

    def tensors(self, further: Iterable[tuple[str, tuple[int, ...]]] = ()) -> AbstractContextManager[Tensors]:
        """Return the tensors of the model, and `further` ones by names and shapes, after checks of all of them."""
        return self.source.tensors((*self._shapes(), *further), self.family.prefix)

    def load(self, dtype: np.dtype[Any], weight_dtype: str | None) -> Model:
        """Return the model, with computation in `dtype` and matrices of layers and head in `weight_dtype`.

        None: for a model in float32 each matrix has the format of the files, and so has the word table; for another
        model matrices are in `dtype`.

        Raises OSError or ValueError if a file cannot be read, or weights are missing or have other shapes.
        """
        with self.tensors() as tensors:
            return self.build(tensors, dtype, weight_dtype)

    def build(self, tensors: Tensors, dtype: np.dtype[Any], weight_dtype: str | None) -> Model:
        """Return the model with `tensors`, from `self.tensors`."""
        config, head = self.config, self.config.head
        if not config.reads_tokens:
            return Model(config, self._stacks(None, tensors, dtype, weight_dtype))
        first, *others = self._words()
        keeps_blocks = weight_dtype is None and dtype == np.float32 and config.tokens.norm is None
        matrix: Any = tensors.matrix(first) if keeps_blocks and not others else tensors[first]
        for other in others:
            if not np.array_equal(matrix, tensors[other]):
                raise ValueError(f"{self.source.path.parent}: {first} and {other} must hold the same numbers")
        if isinstance(matrix, BlockMatrix) and head is not None and not self._has_own_head():
            matrix = Linear.from_weights(matrix)  # the matrix of the head, which is stored once
        words = scaled_words(matrix, config.tokens, dtype)
        stacks = self._stacks(words, tensors, dtype, weight_dtype)
        if head is None or self.family.head is None:
            return Model(config, stacks)
        names = self.family.head
        if self._has_own_head():
            matrix = tensors.matrix(names.weight)
        linear = matrix
        if not isinstance(matrix, Linear):
            linear = Linear.from_weights(in_dtype(matrix, dtype), weight_dtype=weight_dtype)
        bias = tensors[names.bias][0] if names.bias in self.optional else None
        return Model(config, stacks, LanguageHead(head, linear, bias))

    def _stacks(
        self, words: Matrix | None, tensors: Tensors, dtype: np.dtype[Any], weight_dtype: str | None
    ) -> list[Stack]:
        return [
            _stack(stack, names, words, tensors, dtype, weight_dtype)
            for stack, names in zip(self.config.stacks, self.family.stacks, strict=False)
        ]

    def _words(self) -> list[str]:
        """Return the names of the word table. The first one counts, and the others must have equal tensors."""
        names = _word_tables(self.family)
        return [name for name in names if name in self.optional] or [names[0]]

    def _has_own_head(self) -> bool:
        head, names = self.config.head, self.family.head
        return head is not None and names is not None and (not head.is_tied or names.weight in self.optional)

    def _shapes(self) -> Shapes:
        """Yield names and shapes of all tensors of the model."""
        if self.config.reads_tokens:
            words = self.config.vocab_size, self.config.tokens.width
            yield from ((name, words) for name in self._words())
        for config, names in zip(self.config.stacks, self.family.stacks, strict=False):
            yield from names.front_end.shapes(config.front_end, self.optional)
            if config.buckets is not None:
                shape = config.buckets.num_buckets, config.blocks[0].num_heads
                yield from ((name, shape) for name in names.position_biases(config))
            if config.relative is not None:
                yield names.relative, (2 * config.relative.span, self.config.embed_dim)
                if config.relative.norm is not None:
                    yield from config.relative.norm.shapes(names.relative_norm, self.config.embed_dim)
            for i, block in config.numbered().items():
                yield from names.blocks.shapes(block, i)
            if config.final_norm is not None:
                yield from config.final_norm.shapes(names.final_norm, self.config.embed_dim)
        if self.family.head is not None and self._has_own_head():
            yield self.family.head.weight, (self.config.vocab_size, self.config.embed_dim)
        if self.family.head is not None and self.family.head.bias in self.optional:
            yield self.family.head.bias, (1, self.config.vocab_size)


def open_model(source: Source, role: str, max_positions: int | None = None) -> OpenModel:
    """Open a model in a role, `EMBEDDING`, `GENERATION` or `TEXT_TO_TEXT`: describe it from config.json.

    Its sizes are known before `load` reads weights. `max_positions` is the largest number of tokens of a text, as for
    `described`.

    Raises OSError or ValueError if a file cannot be read, if no family with this role has the model, or if it asks for
    an unsupported feature.
    """
    entries = Entries(source.path, source.config)
    family = family_of(entries, role)
    config = describe(family, entries, role, max_positions)
    optional = frozenset(_optional_names(family, config))
    if optional:
        with source.tensors((), family.prefix) as tensors:
            optional = frozenset(name for name in optional if name in tensors)
    return OpenModel(source, family, config, optional)


def _word_tables(family: Family) -> tuple[str, ...]:
    """Return the names of the word table, which the last stack reads in all models."""
    names: TokensNames = family.stacks[-1].front_end
    return names.words


def _optional_names(family: Family, config: ModelConfig) -> Iterable[str]:
    """Yield the tensors that a model of this family may lack."""
    if len(config.stacks) > 1:
        yield from _word_tables(family)
    if family.sines:
        yield from filter(None, (names.front_end.positions for names in family.stacks))
    if config.head is not None and family.head is not None and family.head.is_optional:
        yield from filter(None, (family.head.weight, family.head.bias))


def _stack(
    config: StackConfig,
    names: StackNames,
    words: Matrix | None,
    tensors: Tensors,
    dtype: np.dtype[Any],
    weight_dtype: str | None,
) -> Stack:
    made: dict[int, Any] = {}
    own: dict[int, dict[str, Any]] = {}
    if config.relative is not None:
        positions = relative_rows(config.relative, names, tensors)
        for i, block in config.numbered().items():
            weights = names.blocks.read(block, i, tensors, dtype)
            made[i] = make_disentangled(block, config.relative, weights, positions, dtype, weight_dtype)
    else:
        rotary = rotary_tables(config.blocks, dtype)
        for i, block in config.numbered().items():
            weights = names.blocks.read(block, i, tensors, dtype)
            made[i] = make_layer(block, weights, rotary, dtype, weight_dtype)
            sinks: Any = weights.get("sinks")
            own[i] = {} if sinks is None else {"sinks": sinks}
    numbers = config.numbers or list(made)
    layers = [made[i] for i in numbers]
    front_end = config.front_end.built(names.front_end.read(config.front_end, words, tensors, dtype))
    norm = config.final_norm
    biases = [
        position_bias_of_buckets(tensors[name], config.buckets.max_distance, config.is_causal)
        for name in names.position_biases(config)
        if config.buckets is not None
    ]
    final_norm = None if norm is None else make_norm(norm, norm.read(names.final_norm, tensors, dtype), dtype)
    own_options = [own.get(i, {}) for i in numbers]
    if len(biases) > 1:
        own_options = [{**of_layer, "position_bias": bias} for of_layer, bias in zip(own_options, biases, strict=True)]
    bias = biases[0] if len(biases) == 1 else None
    return Stack(config, front_end, make_stack(config, layers, final_norm, own_options), bias, own_options)
