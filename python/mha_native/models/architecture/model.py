"""The computation of a model: front ends, stacks of layers, and a language head."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...functions.arrays import widened
from ...functions.block_matrix import BlockMatrix
from ...functions.dtypes import LAYER_DTYPES, checked_dtype, dtype_name, packed_state, unpacked_state
from ...functions.kv_cache import KVCache
from ...functions.messages import in_the_name_of
from ...layers._layer_options import in_dtype_of_scores, merged_options
from ...layers.linear import Linear
from ...layers.transformer import stack_of
from ..generation.engine import CachedModel, NewTokens, read_padded
from ..text.batching import batches, packed
from .build import each_once, make_stack, rotary_tables, with_rotary
from .config import HeadConfig, ModelConfig, StackConfig

# The largest number of logits that are computed at once for more rows than one: 32 MiB in float64.
_MOST_LOGITS = 1 << 22


class Stack:
    """A front end, `Tokens`, `Frames` or `Patches`, and layers.

    `position_bias` [H, 2 R + 1], as for attention, is one for all layers; `own_options` are as for `make_stack`.
    """

    def __init__(
        self,
        config: StackConfig,
        front_end: Any,
        layers: Any,
        position_bias: NDArray[np.float32] | None = None,
        own_options: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.config, self.front_end, self.layers = config, front_end, layers
        self._position_bias, self._own = position_bias, own_options
        self._options: dict[str, Any] = {}
        if layers.layer_options is None:
            self._options |= config.blocks[0].options
        if position_bias is not None:
            self._options |= in_dtype_of_scores({"position_bias": position_bias}, layers.dtype)
        # For whole texts the core is called with options that have been checked once.
        self._core: Any = layers
        if config.relative is None:
            self._core = stack_of(type(layers).__name__, layers.layers, layers.norm)
        self._core_options: Any = self._options | ({"is_causal": True} if config.is_causal else {})
        self._extras: dict[str, Any] = {}
        if layers.layer_options is not None:
            merged = merged_options("Stack", self._core_options, layers.layer_options, layers.dtype)
            self._core_options, self._extras = {}, {"layer_options": merged}
        if config.reads_memory and config.blocks[0].scale is not None:
            self._options["memory_scale"] = config.blocks[0].scale

    def __call__(
        self,
        tokens: NDArray[np.integer],
        cu_seqlens: NDArray[np.integer],
        num_threads: int | None,
        token_types: NDArray[np.integer] | None = None,
    ) -> NDArray[Any]:
        """Return the rows [N, E] of the last layer for whole texts; the arguments are as for `Tokens`."""
        x = self.front_end(tokens, cu_seqlens, num_threads, token_types=token_types)
        return self.through(x, cu_seqlens, num_threads)

    def through(self, x: NDArray[Any], cu_seqlens: NDArray[np.integer], num_threads: int | None) -> NDArray[Any]:
        """Return the rows [N, E] of the last layer for the rows `x` of the front end, which are overwritten."""
        self._core.forward(x, self._core_options, self._extras | {"cu_seqlens": cu_seqlens}, x, num_threads)
        return x

    def run(self, x: NDArray[Any], **arguments: Any) -> Any:
        """Return the result of the layers for `x`, with the score options of the model."""
        return self.layers(x, **self._options, **arguments)

    def astype(self, dtype: np.dtype[Any]) -> "Stack":
        """Return the same stack in another dtype."""
        layers = each_once(self.layers.layers, lambda layer: layer.astype(dtype))
        if dtype == np.float64:  # a table of float32 is less precise than one that is made in float64
            tables = rotary_tables(self.config.blocks, dtype)
            layers = [
                layer if block.rotary is None else with_rotary(layer, tables[block.rotary])
                for layer, block in zip(layers, self.config.blocks, strict=True)
            ]
        return self._with(self.front_end.astype(dtype), layers, _converted(self.layers.norm, dtype))

    def quantize(self, weight_dtype: Any) -> "Stack":
        """Return the same stack with the matrices of its layers in another format."""
        layers = each_once(self.layers.layers, lambda layer: layer.quantize(weight_dtype))
        return self._with(self.front_end, layers, self.layers.norm)

    def _with(self, front_end: Any, layers: Sequence[Any], norm: Any) -> "Stack":
        return Stack(
            self.config, front_end, make_stack(self.config, layers, norm, self._own), self._position_bias, self._own
        )


class LanguageHead:
    """Logits [..., V] of rows [..., E]: ``softcap(scale * linear(rows)) + bias``, with a bias [V] in float32."""

    def __init__(self, config: HeadConfig, linear: Linear, bias: NDArray[np.float32] | None = None) -> None:
        self.config, self.linear, self.bias = config, linear, bias

    def __call__(self, rows: NDArray[Any], num_threads: int | None) -> NDArray[Any]:
        """Return the logits [N, V] of rows [N, E]: in float32, or float64 for rows in float64."""
        logits = widened(self.linear(rows, num_threads=num_threads))
        if self.config.scale != 1:
            logits = logits * self.config.scale
        if self.config.softcap is not None:
            logits = logits / self.config.softcap
            np.tanh(logits, out=logits)
            logits *= self.config.softcap
        return logits if self.bias is None else logits + self.bias

    def astype(self, dtype: np.dtype[Any]) -> "LanguageHead":
        """Return the same head in another dtype."""
        return LanguageHead(self.config, self.linear.astype(dtype), self.bias)

    def quantize(self, weight_dtype: Any) -> "LanguageHead":
        """Return the same head with its matrix in another format."""
        return LanguageHead(self.config, self.linear.quantize(weight_dtype), self.bias)


class Model:
    """A model without its tokenizer: one stack; or an encoder, and a decoder that reads its rows as a memory."""

    def __init__(self, config: ModelConfig, stacks: Sequence[Stack], head: LanguageHead | None = None) -> None:
        self.config, self.stacks, self.head = config, tuple(stacks), head

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of tables, layers and rows."""
        dtype: np.dtype[Any] = self.stacks[0].layers.dtype
        return dtype

    @property
    def weight_dtype(self) -> str:
        """The format of the matrices of the layers, by name; "mixed" if there are several."""
        formats = {str(stack.layers.weight_dtype) for stack in self.stacks}
        return formats.pop() if len(formats) == 1 else "mixed"

    def weight_bytes(self) -> dict[str, int]:
        """Return the bytes of the matrices of layers and head and of the word tables, by their formats."""
        tables = [matrix for stack in self.stacks for matrix in stack.front_end.matrices()]
        parts: list[Any] = [*tables, *(stack.layers for stack in self.stacks)]
        parts += [] if self.head is None else [self.head.linear]
        found = Counter[str]()
        for part in {id(part): part for part in parts}.values():  # a table can be shared
            if isinstance(part, BlockMatrix):
                found[part.dtype] += part.nbytes
            elif isinstance(part, np.ndarray):
                found[dtype_name(part.dtype)] += part.nbytes
            else:
                for leaf in part._leaves().values():
                    formats = leaf.weight_formats()
                    shapes = leaf._state_shapes(formats)
                    for name, stored in formats.items():
                        found[stored] += _bytes_of(shapes[name], stored)
        return dict(found.most_common())

    def astype(self, dtype: np.dtype[Any]) -> "Model":
        """Return the same model in another dtype."""
        head = None if self.head is None else self.head.astype(dtype)
        return Model(self.config, [stack.astype(dtype) for stack in self.stacks], head)

    def quantize(self, weight_dtype: Any) -> "Model":
        """Return the same model with the matrices of its layers and of its head in another format."""
        head = None if self.head is None else self.head.quantize(weight_dtype)
        return Model(self.config, [stack.quantize(weight_dtype) for stack in self.stacks], head)

    def speech_rows(self, features: NDArray[np.floating], num_threads: int | None) -> NDArray[Any]:
        """Return the rows [B, T / 2, E] of the encoder for B windows of frames, [B, M, T]: see `Frames`."""
        stack = self.stacks[0]
        batch, _, length = features.shape
        rows = length // 2
        x = stack.through(stack.front_end(features, num_threads), np.arange(batch + 1) * rows, num_threads)
        shaped: NDArray[Any] = x.reshape(batch, rows, -1)
        return shaped

    def image_rows(self, pixels: NDArray[np.floating], num_threads: int | None) -> NDArray[Any]:
        """Return the rows [N, T, E] of N images, `pixels` [N, C, height, width]: see `Patches`."""
        stack = self.stacks[0]
        rows: NDArray[Any] = stack.front_end(pixels, num_threads)
        count, length, width = rows.shape
        return stack.through(rows.reshape(-1, width), np.arange(count + 1) * length, num_threads).reshape(rows.shape)

    def hidden_states(
        self,
        tokens: NDArray[np.integer],
        cu_seqlens: NDArray[np.integer],
        num_threads: int | None,
        token_types: NDArray[np.integer] | None = None,
    ) -> NDArray[Any]:
        """Return the rows [N, E] of tokens: see `Tokens`. In a model of two stacks they are the memory."""
        return self.stacks[0](tokens, cu_seqlens, num_threads, token_types)

    def batches(
        self, what: str, sequences: Iterable[list[int]], num_threads: int | None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int64]]]:
        """Yield the tokens [n] of some sequences, their rows [n, E], and the offsets of the sequences."""
        for batch in batches(sequences):
            tokens, cu_seqlens = packed(batch)
            with in_the_name_of(what):
                rows = self.hidden_states(tokens, cu_seqlens, num_threads)
            yield tokens, rows, cu_seqlens

    def attention_weights(self, tokens: NDArray[np.integer], num_threads: int | None) -> NDArray[Any]:
        """Return the attention weights of one text in every layer and head: [layers, H, T, T]."""
        x = self.stacks[0].front_end(tokens, np.array([0, len(tokens)]), num_threads)
        return self.weights_of(x, num_threads)

    def weights_of(self, x: NDArray[Any], num_threads: int | None) -> NDArray[Any]:
        """Return the attention weights [layers, H, T, T] of the rows `x` [T, E] of the front end."""
        _, weights = self.stacks[0].run(x, num_threads=num_threads, need_weights=True)
        return np.stack([widened(of_layer) for of_layer in weights])

    def target_logits(self, memory: NDArray[Any], tokens: NDArray[np.int64], num_threads: int | None) -> NDArray[Any]:
        """Return the logits [T, V] after each of the tokens [T] of the decoder, with the memory [S, E] of a text."""
        decoder = self.stacks[1]
        x = decoder.front_end(tokens, np.array([0, len(tokens)]), num_threads)
        return self.logits(decoder.run(x[None], memory=memory[None], num_threads=num_threads)[0], num_threads)

    def memory_weights(
        self,
        memory: Sequence[Any],
        window: int,
        tokens: NDArray[np.int64],
        heads: Sequence[tuple[int, int]],
        num_threads: int | None,
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the weights [h, T, S] of some heads (layer, head) in the attention of tokens [T] to a memory.

        Also return the rows [T, E] of the last layer. `memory` are the caches of `project_memory`, of which the tokens
        read sequence `window`. Only the weights of these heads are computed.
        """
        stack = self.stacks[1]
        cu_seqlens = np.array([0, len(tokens)])
        x = stack.front_end(tokens, cu_seqlens, num_threads)
        weights: dict[tuple[int, int], NDArray[Any]] = {}
        reads: Any = {"cu_seqlens": cu_seqlens, "memory_sequences": np.array([window]), "num_threads": num_threads}
        for i, (layer, cache) in enumerate(zip(stack.layers.layers, memory, strict=True)):
            chosen = sorted({head for of_layer, head in heads if of_layer == i})
            if chosen:
                found = layer._memory_weights(x, cache, window, chosen, num_threads)
                weights |= {(i, head): of_head for head, of_head in zip(chosen, found, strict=True)}
            x = layer(x, memory_cache=cache, **reads)
        if stack.layers.norm is not None:
            x = stack.layers.norm(x, num_threads=num_threads)
        return np.stack([widened(weights[head]) for head in heads]), x

    def cached(
        self, num_threads: int | None, sequences: Sequence[list[int]] | None = None, copies: int = 1
    ) -> CachedModel:
        """Return the last stack, for the engine of generation.

        A decoder of two stacks reads the memory of texts, given as tokens in `sequences`, each for `copies` slots.
        """
        stack = self.stacks[-1]
        memory = None if sequences is None else self._memory_caches(sequences, copies, num_threads)

        def read(new: NewTokens, caches: list[Any]) -> Any:
            x = stack.front_end(new.tokens, new.cu_seqlens, num_threads, places=new.places)
            calls: Any = {"caches": caches, "num_threads": num_threads}
            if memory is None:
                return stack.run(x, cu_seqlens=new.cu_seqlens, sequences=new.slots, **calls)
            return read_padded(stack.run, x, new, caches[0].batch_size, memory_caches=memory, **calls)

        layers: Any = stack.layers.layers
        return CachedModel(layers, read, lambda rows: self.logits(rows, num_threads))

    def _memory_caches(self, sequences: Sequence[list[int]], copies: int, num_threads: int | None) -> list[KVCache]:
        """Return keys and values of the memory of each text in every layer of the decoder, `copies` of each."""
        tokens, cu_seqlens = packed(sequences)
        rows, lengths = self.hidden_states(tokens, cu_seqlens, num_threads), np.diff(cu_seqlens)
        memory = np.zeros((len(lengths), int(lengths.max()), rows.shape[1]), rows.dtype)
        for i, length in enumerate(lengths):
            memory[i, :length] = rows[cu_seqlens[i] : cu_seqlens[i + 1]]
        layers: Any = self.stacks[1].layers
        caches: list[KVCache] = layers.project_memory(memory, memory_lengths=lengths, num_threads=num_threads)
        if copies == 1:
            return caches
        for i, (layer, cache) in enumerate(zip(layers.layers, caches, strict=True)):
            caches[i] = layer.cross_attn.new_cache(len(lengths) * copies, cache.capacity)
            caches[i].append(*(np.repeat(x, copies, axis=0) for x in (cache.keys, cache.values, cache.lengths)))
        return caches

    def logits(self, rows: NDArray[Any], num_threads: int | None) -> NDArray[Any]:
        """Return the logits [N, V] of rows [N, E]: in float32, or float64 for a model in float64."""
        if self.head is None:
            raise ValueError("a model without a language head has no logits")
        return self.head(rows, num_threads)

    def log_likelihoods(
        self, rows: NDArray[Any], tokens: NDArray[np.int64], num_threads: int | None
    ) -> NDArray[np.float64]:
        """Return the logarithms [N] of the probabilities that rows [N, E] give to tokens [N]."""
        result = np.empty(len(rows))
        step = max(1, _MOST_LOGITS // self.config.vocab_size)
        for first in range(0, len(rows), step):
            some = slice(first, first + step)
            logits = self.logits(rows[some], num_threads).astype(np.float64)
            logits -= logits.max(-1, keepdims=True)
            chosen = logits[np.arange(len(logits)), tokens[some]]
            result[some] = chosen - np.log(np.exp(logits, out=logits).sum(-1))
        return result

    def __getstate__(self) -> dict[str, Any]:
        # Stacks may share a word table, which is saved once.
        tables = {id(table): table for stack in self.stacks for table in stack.front_end.tables.values()}
        places = {key: str(i) for i, key in enumerate(tables)}
        stacks = [
            (
                stack.config,
                {name: places[id(table)] for name, table in stack.front_end.tables.items()},
                stack.layers,
                stack._position_bias,
                stack._own,
            )
            for stack in self.stacks
        ]
        packed = packed_state({places[key]: table for key, table in tables.items()})
        return {"config": self.config, "tables": packed, "stacks": stacks, "head": self.head}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        tables = unpacked_state(saved["tables"])
        stacks = [
            Stack(config, config.front_end.built({name: tables[place] for name, place in own.items()}), *others)
            for config, own, *others in saved["stacks"]
        ]
        Model.__init__(self, saved["config"], stacks, saved["head"])


def _bytes_of(shape: tuple[int, ...], stored: str) -> int:
    """Return the bytes of a matrix in the format `stored`."""
    if stored in LAYER_DTYPES:
        return math.prod(shape) * checked_dtype("weight_bytes", stored).itemsize
    return math.prod(shape[:-1]) * _core.weight_bytes(stored, shape[-1])


def _converted(norm: Any, dtype: np.dtype[Any]) -> Any:
    return None if norm is None else norm.astype(dtype)
