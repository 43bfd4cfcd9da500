"""The blocks of keys and values of one worker, and attention over them, independent of the transport."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..functions.attention import scaled_dot_product_attention
from ..functions.dtypes import checked_dtype
from ..functions.kv_cache import KVCache
from ..functions.runtime import active_isa
from ._partition import BLOCK_KEYS, MASK_WIDTHS, Piece, Sizes, offsets_from, options_of_sequence, rows_by_block
from ._ring_pass import Blocks, PassingKeys

# Bytes of a cache line, and of the longest vectors.
_LINE = 64

# Options that do not depend on the distance between a query and a key.
_WITHOUT_DISTANCES = frozenset({"is_causal", "scale", "softcap"})


class Shard:
    """The blocks of worker `worker`: numbers `worker` modulo the number of workers.

    Each sequence has a `KVCache` with a block of up to 512 tokens in place of each sequence. So one call attends to all
    blocks, with their positions, and gives a result for each. Since blocks of a head are contiguous, a call without
    distances between positions can also attend to all of them as to one sequence, and gives one result.
    """

    def __init__(self, sizes: Sizes, worker: int) -> None:
        self._sizes, self._worker = sizes, worker
        blocks = max(1, sizes.blocks_of(worker))
        self._sequences = [_empty_blocks(sizes, blocks) for _ in range(sizes.batch_size)]
        self._starts = BLOCK_KEYS * (worker + sizes.workers * np.arange(blocks))
        self._rows: PassingKeys | None = None

    def describe(self) -> dict[str, Any]:
        """Return values that must be equal in all workers, and the instruction set, which `exact` results need."""
        return {"version": _core.__version__} | asdict(self._sizes) | {"isa": active_isa()}

    def append(self, pieces: Sequence[tuple[Piece, NDArray[Any], NDArray[Any]]]) -> None:
        """Append pieces, each with keys [Hk, T, D] and values [Hk, T, Dv], to the tokens of their blocks."""
        for piece, key, value in pieces:
            cache, block = self._sequences[piece.sequence], piece.block // self._sizes.workers
            held = piece.block * BLOCK_KEYS + int(cache.lengths[block])
            if held != piece.first:
                rule = f"position {piece.first} of sequence {piece.sequence} must come next"
                raise RuntimeError(f"{rule}; got it after {held} positions")
            counts = np.zeros(cache.batch_size, np.int64)
            counts[block] = piece.last - piece.first
            every = (cache.batch_size, *key.shape)
            cache.append(np.broadcast_to(key, every), np.broadcast_to(value, (*every[:-1], value.shape[-1])), counts)

    def truncate(self, lengths: NDArray[np.int64]) -> bool:
        """Remove positions from ``lengths[b]`` on, and return whether all earlier positions exist."""
        self._rows, is_whole = None, True  # rows of an unfinished call
        for cache, length in zip(self._sequences, lengths, strict=True):
            kept = np.clip(length - self._starts, 0, BLOCK_KEYS)
            cache.rollback(np.maximum(cache.lengths - kept, 0))
            is_whole = is_whole and np.array_equal(cache.lengths, kept)
        return is_whole

    def attend(
        self,
        query: NDArray[Any],
        offsets: NDArray[np.int64],
        options: dict[str, Any],
        masks: dict[str, NDArray[Any]],
        is_exact: bool,
        num_threads: int | None,
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Attend to the blocks of this worker, with `query` [B, H, Tq, D] from positions `offsets` [B] on.

        Returns
        -------
        outs, lses
            For each block, [blocks, B, H, Tq, Dv] and [blocks, B, H, Tq], if `is_exact`; else merged,
            [B, H, Tq, Dv] and, in float64 for every dtype, [B, H, Tq].
        """
        is_joined = not (is_exact or masks or self._sizes.dtype == "int8") and options.keys() <= _WITHOUT_DISTANCES
        parts = [
            self._all_of_sequence(b, query[b], int(offsets[b]), options, num_threads)
            if is_joined
            else self._blocks_of_sequence(b, query[b], int(offsets[b]), options, masks, num_threads)
            for b in range(len(query))
        ]
        blocks = max(len(out) for out, _ in parts)
        if len(parts) == 1:
            outs, lses = parts[0][0][:, None], parts[0][1][:, None]
        else:
            outs = np.zeros((blocks, len(parts), *parts[0][0].shape[1:]), parts[0][0].dtype)
            lses = np.full(outs.shape[:-1], -np.inf, parts[0][1].dtype)
            for b, (out, lse) in enumerate(parts):
                outs[: len(out), b], lses[: len(lse), b] = out, lse
        if is_exact:
            return outs, lses
        wide = lses.astype(np.float64)  # rounding to float32 would change the weights of workers by some units
        if blocks == 1:
            return outs[0], wide[0]
        return _core.merge_attention(list(outs), list(wide), None, num_threads)

    def read(self, first: int, last: int) -> dict[int, tuple[NDArray[Any], NDArray[Any]]]:
        """Return keys [B, Hk, T, D] and values [B, Hk, T, Dv] of each block within positions [first, last)."""
        found = {}
        for local, start in enumerate(self._starts.tolist()):
            if first <= start < last:
                part = slice(0, min(BLOCK_KEYS, last - start))
                found[start // BLOCK_KEYS] = (
                    np.stack([cache.keys[local, :, part] for cache in self._sequences]),
                    np.stack([cache.values[local, :, part] for cache in self._sequences]),
                )
        return found

    def hold_rows(
        self, query: NDArray[Any], offsets: NDArray[np.int64], options: dict[str, Any], num_threads: int | None
    ) -> None:
        """Keep `query` [B, stripes, H, 64, D], to attend to all keys as they arrive."""
        self._rows = PassingKeys(self._sizes, self._worker, self.read, query, offsets, options, num_threads)

    def take_keys(self, first: int, last: int, lengths: NDArray[np.int64], blocks: Blocks) -> None:
        """Attend to positions [first, last), of other workers and of this worker."""
        assert self._rows is not None
        self._rows.take(first, last, lengths, blocks)

    def rows_done(self) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return the result of the rows, and drop them."""
        assert self._rows is not None
        rows, self._rows = self._rows, None
        return rows.result()

    def _all_of_sequence(
        self, b: int, query: NDArray[Any], offset: int, options: dict[str, Any], num_threads: int | None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return out [1, H, Tq, Dv] and lse [1, H, Tq] of `query` [H, Tq, D] over all tokens of sequence b."""
        cache = self._sequences[b]
        arrays = [blocks.swapaxes(0, 1).reshape(1, blocks.shape[1], -1, blocks.shape[3])
                  for blocks in (cache.keys, cache.values)]  # fmt: skip
        tokens, given = int(cache.lengths.sum()), dict(options)
        queries = query.shape[1]
        if given.pop("is_causal", False):
            sizes = self._sizes
            groups = rows_by_block(offset, queries, self._worker, sizes.workers, -(-sizes.capacity // BLOCK_KEYS))
        else:
            groups = iter([(slice(queries), tokens, False)])
        results: list[tuple[NDArray[Any], NDArray[Any]]] = [
            scaled_dot_product_attention(
                query[None, :, rows],
                *arrays,
                is_causal=is_own,
                query_offset=seen - 1 if is_own else 0,
                key_lengths=np.array([tokens if is_own else min(seen, tokens)]),
                return_lse=True,
                num_threads=num_threads,
                **given,
            )
            for rows, seen, is_own in groups
        ]
        if len(results) == 1:
            return results[0]
        return np.concatenate([out for out, _ in results], 2), np.concatenate([lse for _, lse in results], 2)

    def _blocks_of_sequence(
        self,
        b: int,
        query: NDArray[Any],
        offset: int,
        options: dict[str, Any],
        masks: dict[str, NDArray[Any]],
        num_threads: int | None,
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return out and lse of `query` [H, Tq, D] for each block of sequence b with tokens, at least for one block."""
        cache = self._sequences[b]
        lengths = cache.lengths
        filled = max(1, int(np.count_nonzero(lengths)))
        given = options_of_sequence(options, b)
        if cache.dtype == np.int8:  # arrays cannot hold its scales: the call covers all blocks, also empty blocks
            blocks, keys = cache.batch_size, cache.longest
            arrays: tuple[Any, ...] = (cache,)
            query = np.broadcast_to(query, (blocks, *query.shape))
        else:
            blocks, keys = filled, BLOCK_KEYS
            arrays = (cache.keys[:blocks], cache.values[:blocks])
            query = query[None]
            given["key_lengths"] = lengths[:blocks]
        for name, mask in masks.items():
            given[name] = _mask_of_blocks(mask[min(b, len(mask) - 1)], blocks, MASK_WIDTHS[name], keys)
        out, lse = scaled_dot_product_attention(
            query,
            *arrays,
            query_offset=offsets_from(self._starts[:blocks], offset),
            return_lse=True,
            num_threads=num_threads,
            **given,
        )
        return out[:filled], lse[:filled]


def _empty_blocks(sizes: Sizes, blocks: int) -> KVCache:
    """Make a cache with `blocks` blocks in place of sequences.

    Blocks of a head are contiguous, like the tokens of one long sequence. So memory is filled in order and can be in
    huge pages, which arrays of NumPy request from 4 MiB on.
    """
    widths = sizes.head_dim, sizes.value_head_dim
    if sizes.dtype == "int8":  # arrays cannot hold its scales
        return KVCache(blocks, sizes.num_kv_heads, BLOCK_KEYS, *widths, dtype=sizes.dtype)
    keys, values = (_aligned((sizes.num_kv_heads, blocks, BLOCK_KEYS, width), sizes.dtype) for width in widths)
    return KVCache.over(keys.swapaxes(0, 1), values.swapaxes(0, 1))


def _aligned(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Make an array that begins at a cache line.

    Large arrays of NumPy begin 16 bytes after a cache line, so that each vector crosses two: a query takes 1.2 times as
    long.
    """
    kind = checked_dtype("ShardedKVCache", dtype)
    memory = np.empty(prod(shape) * kind.itemsize + _LINE, np.uint8)
    begin = -memory.ctypes.data % _LINE
    return memory[begin : begin + memory.size - _LINE].view(kind).reshape(shape)


def _mask_of_blocks(part: NDArray[Any], blocks: int, width: int, keys: int) -> NDArray[Any]:
    """Convert a mask [.., blocks with tokens, width] to [blocks, .., columns], for `blocks` blocks of `keys` keys.

    Blocks without tokens are added. One column [.., 1, 1] serves all blocks.
    """
    of_blocks = np.moveaxis(part, -2, 0)
    if part.shape[-1] == 1:
        return of_blocks
    columns = -(-keys * width // BLOCK_KEYS)
    whole = np.zeros((blocks, *part.shape[:-2], columns), part.dtype)
    there = min(blocks, len(of_blocks))
    whole[:there] = of_blocks[:there, ..., :columns]
    return whole


class ShardHost:
    """The shards of one process, for any number of caches, by name of the cache and number of the worker."""

    def __init__(self) -> None:
        self._shards: dict[tuple[str, int], Shard] = {}

    def answer(self, operation: str, cache: str, worker: int, *arguments: Any) -> Any:
        """Carry out a request: the complete interface of a worker.

        A replacement process has no shards, and reports this to a cache that asks for its tokens.
        """
        if operation == "join":
            shard = Shard(arguments[0], worker)
            self._shards[cache, worker] = shard
            return shard.describe()
        if operation == "leave":
            self._shards.pop((cache, worker), None)
            return None
        held = self._shards.get((cache, worker))
        if held is not None:
            return getattr(held, operation)(*arguments)
        if operation == "truncate":
            return False
        raise RuntimeError("the process has no tokens of this cache: it replaced a lost one")
