"""A cache of keys and values over several processes, and attention over all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import _core
from ..functions.arrays import Tensor, to_numpy
from ..functions.attention import scaled_dot_product_attention
from ..functions.kv_cache import KVCache
from ..functions.messages import in_the_name_of, listed, shown
from ..functions.options import KEYWORD_OPTIONS, KeywordOptions, core_options
from ..functions.scalars import checked_integer, checked_real
from ._arguments import checked_mask, new_counts, require_four_axes, rows_of
from ._long_prompts import attend_to_passing
from ._membership import Members
from ._merge import merged_blocks, merged_workers
from ._partition import BLOCK_KEYS, BLOCK_MASK_KEYS, STRIPE_ROWS, Piece, Sizes, bytes_moved, columns_of, pieces_of
from ._workers import Request, WorkerError, Workers

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

__all__ = ["ShardedKVCache", "WorkerError"]

# Blocks in one message of `append` to a worker: 64 MiB of float32 with 8 heads of 128 features.
_BLOCKS_OF_MESSAGE = 16

# Bytes of results that a worker, or the process that merges, holds at a time. Calls that need more are divided into
# parts with fewer queries.
_MOST_RESULT_BYTES = 32 << 20

# Keys [.., T, D] and values [.., T, Dv].
_Tokens: TypeAlias = tuple[Any, Any]
_Read: TypeAlias = Callable[[int, int], _Tokens]


class ShardedKVCache:
    """A `KVCache` over several processes. Each holds a part of the positions and attends to it.

    Parameters
    ----------
    workers : MPIWorkers, RayWorkers or LocalWorkers
        The processes. Several caches, such as the caches of the layers of a model, can share them.
    batch_size, num_kv_heads, capacity, head_dim, value_head_dim, dtype
        As for `KVCache`; `capacity` is the total over all workers. Memory is allocated when it is first written.
    time_limit : float, default 60
        Seconds to wait for the answer of a worker.

    Raises
    ------
    WorkerError
        If a worker has another version of the library, another dtype or other sizes, or does not answer.

    See Also
    --------
    mha_native.distributed.mpi_ranks.MPIWorkers : Ranks of MPI.
    mha_native.distributed.ray_workers.RayWorkers : Actors of Ray.

    Notes
    -----
    Block i of 512 positions belongs to worker ``i % workers``. So at any length workers hold equal parts of the cache,
    and of the keys that a query sees under a causal mask or a window.

    A worker attends to all of its tokens as to one sequence, or, with options that depend on distances and with masks,
    to each of its blocks, and merges the results. The calling process merges the results of workers like
    `merge_attention`. The query moves to each worker, and one result with its log-sum-exp moves back. With
    ``exact=True`` workers return the results of all blocks, which are merged in the order of positions: the bits do not
    depend on the number of workers, but more bytes move (`mha_native.distributed.bytes_moved`). For a long prompt,
    workers keep queries and move keys instead, if this moves fewer bytes.

    After a `WorkerError` the cache has the tokens from before the failed call, and refuses calls until `restore`. Only
    one thread at a time may use a cache, and all caches of the same workers.

    Examples
    --------
    Workers in this process show the arithmetic:

    >>> import numpy as np
    >>> import mha_native as mha
    >>> from mha_native.distributed import LocalWorkers, ShardedKVCache
    >>> rng = np.random.default_rng(0)
    >>> query = rng.standard_normal((1, 8, 4, 64), dtype=np.float32)
    >>> key, value = rng.standard_normal((2, 1, 2, 3000, 64), dtype=np.float32)
    >>> cache = ShardedKVCache(LocalWorkers(3), batch_size=1, num_kv_heads=2, capacity=4096, head_dim=64)
    >>> cache.append(key, value)
    >>> out = cache.attend(query, is_causal=True)
    >>> whole = mha.scaled_dot_product_attention(query, key, value, is_causal=True, query_offset=3000 - 4)
    >>> np.allclose(out, whole, atol=1e-6)
    True
    """

    def __init__(
        self,
        workers: Workers,
        batch_size: int,
        num_kv_heads: int,
        capacity: int,
        head_dim: int,
        value_head_dim: int | None = None,
        dtype: DTypeLike = "float32",
        *,
        time_limit: float = 60,
    ) -> None:
        name = "ShardedKVCache"
        checked_integer(name, "capacity", capacity, 1)
        with in_the_name_of(name):  # a small cache checks the arguments of calls, at no cost
            self._like = KVCache(batch_size, num_kv_heads, 1, head_dim, value_head_dim, dtype)
        sizes = self._like._sizes() | {"capacity": int(capacity)}
        self._sizes = Sizes(**sizes, dtype=_core.dtype_name(self._like.dtype), workers=workers.count)
        self._lengths = np.zeros(self._sizes.batch_size, np.int64)
        self._may_be_ahead = False
        self._members = Members(workers, self._sizes, checked_real(name, "time_limit", time_limit))
        self._members.join(name, self._members.everyone)

    def append(self, key: Tensor, value: Tensor, new_lengths: Tensor | None = None) -> None:
        """Append tokens to each sequence, on the workers of their blocks.

        Parameters
        ----------
        key : [B, Hk, T, D]
            Has the dtype of the cache (float32 for int8), and any strides.
        value : [B, Hk, T, Dv]
        new_lengths : integer array [B], optional
            Append the first ``new_lengths[b]`` tokens to sequence b. Default: all T.

        Raises
        ------
        ValueError
            If an argument is not valid, or a sequence exceeds the capacity. The cache is unchanged.
        WorkerError
            The cache has the tokens from before the call, but needs `restore`.
        """
        name = "ShardedKVCache.append"
        keys, values = self._checked(name, key, value)
        counts = new_counts(name, self._lengths, keys.shape[2], new_lengths)
        lengths = self._lengths + counts
        if (lengths > self._sizes.capacity).any():
            rule = f"{name}: no sequence may outgrow the capacity, {self._sizes.capacity} tokens"
            raise ValueError(f"{rule}; got {shown(self._lengths.tolist())} and {shown(counts.tolist())} more")
        # A call that fails while it writes leaves some workers with more tokens, until all are told the lengths again.
        self._even_out(name)
        self._may_be_ahead = True

        def tokens_of(piece: Piece) -> _Tokens:
            b, begin = piece.sequence, int(self._lengths[piece.sequence])
            part = slice(piece.first - begin, piece.last - begin)
            return keys[b, :, part], values[b, :, part]

        self._write(name, self._members.everyone, self._lengths, lengths, tokens_of)
        self._may_be_ahead, self._lengths = False, lengths

    def attend(
        self,
        query: Tensor,
        attn_mask: Tensor | None = None,
        *,
        exact: bool = False,
        return_lse: bool = False,
        num_threads: int | None = None,
        **options: Unpack[KeywordOptions],
    ) -> Any:
        """Attend to all tokens of the cache, like `scaled_dot_product_attention` over a `KVCache` with the same tokens.

        Parameters
        ----------
        query : [B, H, Tq, D]
            Has the dtype of the cache (float32 for int8).
        attn_mask, **options
            As for `scaled_dot_product_attention` over a `KVCache`. Default: the queries are the last tokens.
        exact : bool, default False
            Merge the results of all blocks in order, so that the bits do not depend on the number of workers. All
            workers must use one instruction set.
        return_lse : bool, default False
            Return the log-sum-exp, too.
        num_threads : int, optional
            Threads of each worker for this call.

        Returns
        -------
        out : [B, H, Tq, Dv]
        lse : [B, H, Tq]
            With `return_lse`: float64 for a cache in float64, otherwise float32.
        """
        name = "ShardedKVCache.attend"
        rows = to_numpy(name, "query", query)
        require_four_axes(name, "query", rows)
        given: dict[str, Any] = {
            option: value for option, value in core_options(name, options, KEYWORD_OPTIONS).items() if value is not None
        }
        block_mask, key_mask = given.pop("block_mask", None), given.pop("key_mask", None)
        masks = {"attn_mask": attn_mask, "block_mask": block_mask, "key_mask": key_mask}
        with in_the_name_of(name):
            out, lse = scaled_dot_product_attention(rows, self._like, return_lse=True, num_threads=num_threads, **given)
        queries = rows.shape[2]
        offsets = np.asarray(given.pop("query_offset", self._lengths - queries), np.int64)
        if offsets.ndim == 0:
            offsets = np.full_like(self._lengths, offsets)
        whole = {
            mask: checked_mask(name, mask, x, rows, int(self._lengths.max()))
            for mask, x in masks.items()
            if x is not None
        }
        sinks = given.pop("sinks", None)
        if exact and len(isas := set(self._members.isas.values())) > 1:
            rule = f"{name}: exact takes workers that compute on one instruction set"
            raise ValueError(f"{rule}; got {listed(sorted(isas))}")
        self._even_out(name)
        if not exact and self._lets_keys_pass(rows) and whole.keys() <= {"key_mask"}:
            part_of_all = attend_to_passing(
                self._members, name, self._sizes, self._lengths, rows, offsets, given | whole, num_threads
            )
            out, lse = merged_workers([part_of_all], sinks)
            return (out, lse) if return_lse else out
        step = self._most_queries(rows, exact)
        for first in range(0, queries, step):
            part = slice(first, min(first + step, queries))
            requests: dict[int, Request] = {}
            for w in self._members.everyone:
                of_worker = {
                    mask: columns_of(mask, rows_of(mask, x, part), w, self._sizes.workers) for mask, x in whole.items()
                }
                requests[w] = ("attend", rows[:, :, part], offsets + first, given, of_worker, exact, num_threads)
            answers = self._members.ask(name, requests)
            merge = merged_blocks if exact else merged_workers
            merged = merge([answers[w] for w in self._members.everyone], sinks)
            if step >= queries:
                out, lse = merged
            else:
                out[:, :, part], lse[:, :, part] = merged
        return (out, lse) if return_lse else out

    def rollback(self, count: int | Tensor) -> None:
        """Remove the newest tokens: `count` of every sequence, or ``count[b]`` of sequence b."""
        name = "ShardedKVCache.rollback"
        counts = np.asarray(to_numpy(name, "count", count))
        if counts.dtype.kind not in "iu" or counts.shape not in ((), self._lengths.shape):
            raise TypeError(f"{name}: count must be an integer, or integers [{len(self._lengths)}]; got {shown(count)}")
        if (counts < 0).any() or (counts > self._lengths).any():
            raise ValueError(f"{name}: count must be from 0 to the lengths; got {shown(counts.tolist())}")
        self._members.require_none_lost(name)
        self._lengths, self._may_be_ahead = self._lengths - counts, True
        self._even_out(name)

    def reset(self) -> None:
        """Remove all tokens."""
        self.rollback(self._lengths)

    def restore(self, read: _Read | None = None) -> None:
        """Make the cache usable again after a `WorkerError`, with the tokens from before the failed call.

        Asks every worker, also late ones, whether it still has its tokens. Workers without an answer are replaced, and
        their tokens are read again. Call `restore` of other caches with the same workers, too.

        Parameters
        ----------
        read : callable, optional
            ``read(first, last)`` returns keys [B, Hk, last - first, D] and values [B, Hk, last - first, Dv] of these
            positions, as given to `append`, and any values beyond the end of a sequence. It is called once for each
            lost block of up to 512 positions.

        Raises
        ------
        ValueError
            If tokens are lost and `read` is None; nothing changes.
        WorkerError
            If a replacement worker fails, too.
        """
        name = "ShardedKVCache.restore"
        lost = self._members.without(("truncate", self._lengths))
        nothing = np.zeros_like(self._lengths)
        if read is None and any(self._pieces_of(w, nothing, self._lengths) for w in lost):
            raise ValueError(f"{name}: read must be given, since workers {listed(map(str, lost))} have lost tokens")
        with self._members.replaced(name):
            if read is not None:
                self._write(name, lost, nothing, self._lengths, self._tokens_read(name, read))
        self._may_be_ahead = False

    def close(self) -> None:
        """Free the memory of all workers that answer."""
        self._members.leave()

    @property
    def lengths(self) -> NDArray[np.int64]:
        """A copy of the number of tokens of each sequence, [B]."""
        return self._lengths.copy()

    @property
    def lost(self) -> tuple[int, ...]:
        """The failed workers; the cache needs `restore` if there are any."""
        return tuple(self._members.lost)

    @property
    def batch_size(self) -> int:
        """B, the number of sequences."""
        return self._sizes.batch_size

    @property
    def capacity(self) -> int:
        """The largest number of tokens of a sequence, over all workers."""
        return self._sizes.capacity

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={value!r}" for name, value in asdict(self._sizes).items())
        return f"ShardedKVCache({sizes}, lengths={shown(self._lengths.tolist())})"

    def __reduce_ex__(self, protocol: object) -> Any:
        rule = "ShardedKVCache: it cannot be copied or pickled, since its tokens are in its workers"
        raise TypeError(f"{rule}; make a new cache and append the tokens to it")

    def _even_out(self, name: str) -> None:
        """Let all workers remove tokens of an unfinished append or of a rollback."""
        if self._may_be_ahead:
            self._members.ask(name, dict.fromkeys(self._members.everyone, ("truncate", self._lengths)))
            self._may_be_ahead = False

    def _checked(self, name: str, key: Tensor, value: Tensor) -> _Tokens:
        """Convert tokens to arrays that fit a cache of these sizes."""
        keys, values = to_numpy(name, "key", key), to_numpy(name, "value", value)
        require_four_axes(name, "key", keys)
        with in_the_name_of(name):
            self._like.append(keys, values, np.zeros(self._sizes.batch_size, np.int64))
        return keys, values

    def _pieces_of(self, worker: int, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> list[Piece]:
        """Yield the pieces of positions ``[starts[b], ends[b])`` on a worker, one for each block."""
        pieces = [
            piece
            for b, (first, last) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True))
            for piece in pieces_of(b, first, last)
            if piece.block % self._sizes.workers == worker
        ]
        return sorted(pieces, key=lambda piece: piece.block)

    def _write(
        self,
        name: str,
        workers: Iterable[int],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        tokens_of: Callable[[Piece], _Tokens],
    ) -> None:
        """Send positions ``[starts[b], ends[b])`` to their workers among `workers`."""
        pieces = {w: self._pieces_of(w, starts, ends) for w in workers}
        while any(pieces.values()):
            messages = {
                w: [(piece, *tokens_of(piece)) for piece in of_worker[:_BLOCKS_OF_MESSAGE]]
                for w, of_worker in pieces.items()
                if of_worker
            }
            self._members.ask(name, {w: ("append", message) for w, message in messages.items()})
            pieces = {w: of_worker[_BLOCKS_OF_MESSAGE:] for w, of_worker in pieces.items()}

    def _tokens_read(self, name: str, read: _Read) -> Callable[[Piece], _Tokens]:
        """Adapt `read` for `_write`: call it once for each block, and check its arrays."""
        longest = int(self._lengths.max())
        last_read: tuple[int, Any, Any] = (-1, None, None)

        def tokens_of(piece: Piece) -> _Tokens:
            nonlocal last_read
            if last_read[0] != piece.block:
                first = piece.block * BLOCK_KEYS
                key, value = read(first, min(first + BLOCK_KEYS, longest))
                keys, values = self._checked(name, key, value)
                if keys.shape[2] < min(BLOCK_KEYS, longest - first):
                    rule = f"{name}: read must give {min(BLOCK_KEYS, longest - first)} positions from {first} on"
                    raise ValueError(f"{rule}; got {keys.shape[2]}")
                last_read = (piece.block, keys, values)
            _, keys, values = last_read
            count = piece.last - piece.first
            return keys[piece.sequence, :, :count], values[piece.sequence, :, :count]

        return tokens_of

    def _lets_keys_pass(self, query: NDArray[Any]) -> bool:
        """Return whether a call moves fewer bytes if workers keep queries and keys move."""
        if self._sizes.dtype == "int8" or query.shape[2] < STRIPE_ROWS * self._sizes.workers:
            return False
        _, heads, queries, _ = query.shape
        keys = max(self._lengths.tolist())
        moved = bytes_moved(self._sizes, queries, keys, heads, itemsize=query.itemsize)
        return moved["passing"] < moved["queries"]

    def _most_queries(self, query: NDArray[Any], exact: bool) -> int:
        """Return the largest number of queries of a request, a multiple of the rows of a block mask entry."""
        blocks = -(-max(self._lengths.tolist()) // BLOCK_KEYS)
        at_once = blocks if exact else -(-blocks // self._sizes.workers)
        batch, heads = query.shape[:2]
        row_bytes = self._sizes.value_head_dim * query.itemsize + 8
        queries: int = _MOST_RESULT_BYTES // max(1, at_once * batch * heads * row_bytes)
        return BLOCK_MASK_KEYS * max(1, queries // BLOCK_MASK_KEYS)
