"""A cache in shards is the cache in one piece: on any cut, with every option, and after faults."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from element_types import BFLOAT16
from sharded_contexts import HEAD_DIM, HEADS, KV_HEADS, VALUE_DIM, Context, options_of
from tolerance import assert_close, assert_same_bits

import mha_native
from mha_native import scaled_dot_product_attention
from mha_native.distributed import LocalWorkers, ShardedKVCache, Sizes, WorkerError, bytes_moved
from mha_native.distributed._shard import Shard, ShardHost

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES = [np.float32, np.float64, np.float16, BFLOAT16, np.int8]


@pytest.mark.parametrize("kind", DTYPES, ids=["f32", "f64", "f16", "bf16", "int8"])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_every_option(workers: int, kind: Any, rng: np.random.Generator) -> None:
    context = Context(rng, [1700, 3, 1100], kind, 5)
    cache = context.sharded(LocalWorkers(workers), [2, 600])
    for name, options in options_of(rng, context).items():
        context.assert_equal(cache, options, name)


@pytest.mark.parametrize("kind", [np.float32, np.int8], ids=["f32", "int8"])
def test_exact_does_not_depend_on_the_number_of_workers(kind: Any, rng: np.random.Generator) -> None:
    context = Context(rng, [2900, 513], kind, 3)
    caches = {count: context.sharded(LocalWorkers(count), [count, 100 * count]) for count in (1, 2, 3, 5, 9)}
    for name, options in options_of(rng, context).items():
        own = dict(options)
        mask = own.pop("attn_mask", None)
        expected = caches[1].attend(context.query, mask, exact=True, return_lse=True, **own)
        for count, cache in caches.items():
            for actual, same in zip(
                cache.attend(context.query, mask, exact=True, return_lse=True, **own), expected, strict=True
            ):
                assert_same_bits(actual, same, label=f"{name}, {count} workers")


@pytest.mark.parametrize("kind", DTYPES[:-1], ids=["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("offset", [None, -40, 0, 500, 1021, 1500, 2000])
def test_rows_without_distances_have_the_bits_of_one_call(
    offset: int | None, kind: Any, rng: np.random.Generator
) -> None:
    context = Context(rng, [1700, 3, 1100], kind, 90)
    alone, several = context.sharded(LocalWorkers(1), [600]), context.sharded(LocalWorkers(3))
    row = context.query[:, :, 70:71]
    first = context.lengths - 90 if offset is None else np.full(3, offset)
    for causal in (False, True):
        options: Any = {"is_causal": causal, "query_offset": first, "scale": 0.3, "softcap": 4.0, "return_lse": True}
        expected = scaled_dot_product_attention(context.query, context.whole, **options)
        for x, same in zip(alone.attend(context.query, **options), expected, strict=True):
            assert_same_bits(x, same)
        of_all = several.attend(context.query, **options)
        options["query_offset"] = first + 70
        for x, same in zip(several.attend(row, **options), of_all, strict=True):
            assert_same_bits(x, same[:, :, 70:71], label="a row does not depend on the other rows of the call")


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "bfloat16"])
def test_blocks_begin_at_lines_of_the_cache_of_a_processor(kind: str) -> None:
    # Many arrays of several sizes, for a few begin there by chance.
    for worker, (head_dim, value_dim) in enumerate([(16, 24), (5, 7), (64, 64), (1, 3)]):
        shard = Shard(Sizes(4, 3, 4000, head_dim, value_dim, kind, 4), worker)
        for cache in shard._sequences:
            for array in (cache.keys, cache.values):
                addresses = [array[block, head].ctypes.data for block, head in np.ndindex(array.shape[:2])]
                assert all(address % 64 == 0 for address in addresses), f"{array.shape}: {addresses}"


def test_a_block_mask(rng: np.random.Generator) -> None:
    context = Context(rng, [1500, 1290], np.float32, 130)
    mask = rng.random((HEADS, 3, 24)) < 0.5
    cache = context.sharded(LocalWorkers(3))
    expected = scaled_dot_product_attention(context.query, context.whole, block_mask=mask, is_causal=True)
    actual = cache.attend(context.query, block_mask=mask, is_causal=True)
    assert_close(actual, expected, np.full(actual.shape, 1e-6), label="block mask")


@pytest.mark.parametrize("kind", [np.float32, np.int8], ids=["f32", "int8"])
@pytest.mark.parametrize("keys", [1, 64, 65])
def test_a_block_mask_of_few_keys(keys: int, kind: Any, rng: np.random.Generator) -> None:
    context = Context(rng, [keys], kind, 130)
    mask = rng.random((HEADS, 3, -(-keys // 64))) < 0.5
    expected = scaled_dot_product_attention(context.query, context.whole, block_mask=mask)
    actual = context.sharded(LocalWorkers(2)).attend(context.query, block_mask=mask)
    assert_close(actual, expected, np.full(actual.shape, 1e-6), label="block mask")


def test_many_queries_are_cut_into_parts(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    context = Context(rng, [1300], np.float32, 200)
    mask = rng.random((1, 1, 200, 1300)) < 0.5
    cache = context.sharded(LocalWorkers(2))
    expected = [cache.attend(context.query, mask, is_causal=True, exact=exact) for exact in (False, True)]
    monkeypatch.setattr("mha_native.distributed.sharded_cache._MOST_RESULT_BYTES", 1)
    for exact, same in zip((False, True), expected, strict=True):
        assert_same_bits(cache.attend(context.query, mask, is_causal=True, exact=exact), same)


def _random_cut(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 2600, rng.integers(1, 4)).tolist()
    context = Context(rng, lengths, DTYPES[seed % len(DTYPES)], int(rng.integers(1, 40)))
    steps = sorted(rng.integers(0, max(lengths), rng.integers(0, 6)).tolist())
    workers = int(rng.integers(1, 7))
    cache = context.sharded(LocalWorkers(workers), steps)
    options = options_of(rng, context)
    name = list(options)[int(rng.integers(len(options)))]
    context.assert_equal(cache, options[name], f"seed {seed}: {workers} workers, {lengths}, {steps}, {name}")


@pytest.mark.parametrize("seed", range(8))
def test_random_cuts(seed: int) -> None:
    _random_cut(seed)


@pytest.mark.exhaustive
def test_two_hundred_random_cuts() -> None:
    for seed in range(200):
        _random_cut(seed)


def test_lengths_rollback_and_reset(rng: np.random.Generator) -> None:
    context = Context(rng, [1100, 700], np.float32, 1)
    cache = context.sharded(LocalWorkers(2))
    cache.append(context.key[:, :, :5], context.value[:, :, :5], np.array([5, 2]))
    cache.rollback(np.array([5, 2]))
    assert cache.lengths.tolist() == [1100, 700]
    context.assert_equal(cache, {}, "after a rollback")
    cache.rollback(600)
    context.whole.rollback(600)
    context.lengths = context.lengths - 600
    context.assert_equal(cache, {"is_causal": True}, "of more than a block")
    cache.reset()
    assert cache.lengths.tolist() == [0, 0]
    assert_same_bits(cache.attend(context.query), np.zeros((2, HEADS, 1, VALUE_DIM), np.float32))


class FaultyWorkers(LocalWorkers):
    """Workers of which one does not answer, or tells something else of itself."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.fails: tuple[int, str] | None = None
        self.told: dict[str, Any] = {}

    def ask(self, requests: Mapping[int, Any], time_limit: float) -> dict[int, Any]:
        from mha_native.distributed._workers import too_late

        silent = [w for w, request in requests.items() if self.fails in ((w, request[0]), (w, "all"))]
        answers = super().ask({w: request for w, request in requests.items() if w not in silent}, time_limit)
        for w, answer in answers.items():
            if isinstance(answer, dict) and w == 1:
                answers[w] = answer | self.told
        return answers | {w: too_late(requests[w], time_limit) for w in silent}

    def replace(self, worker: int) -> None:
        super().replace(worker)
        self.fails = None


@pytest.mark.parametrize("operation", ["append", "attend"])
@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "late"])
def test_a_worker_that_fails_is_named_and_replaced(operation: str, is_gone: bool, rng: np.random.Generator) -> None:
    context = Context(rng, [2600, 1800], np.float32, 2)
    workers = FaultyWorkers(3)
    cache = context.sharded(workers)
    silent = {"append": 2, "attend": 1}[operation]  # position 2600 is in the block of worker 2
    workers.fails = (silent, operation)
    more = np.ones((2, KV_HEADS, 7, HEAD_DIM), np.float32), np.ones((2, KV_HEADS, 7, VALUE_DIM), np.float32)
    words = (
        rf"^ShardedKVCache\.{operation}: worker {silent} \(in this process\) did not answer {operation} within 60 s$"
    )
    with pytest.raises(WorkerError, match=words) as error:
        cache.append(*more) if operation == "append" else cache.attend(context.query)
    assert error.value.workers == (silent,)
    assert cache.lost == (silent,)
    assert cache.lengths.tolist() == [2600, 1800], "an append that fails changes nothing"
    with pytest.raises(WorkerError, match=f"attend: the cache must be restored first: worker {silent} did not"):
        cache.attend(context.query)
    if is_gone:
        workers.fails = (silent, "all")
        with pytest.raises(ValueError, match=rf"restore: read must be given, since workers {silent} have lost tokens"):
            cache.restore()
        reads: list[tuple[int, int]] = []

        def read(first: int, last: int) -> tuple[Array, Array]:
            reads.append((first, last))
            return context.key[:, :, first:last], context.value[:, :, first:last]

        cache.restore(read)
        lost = {1: [(512, 1024), (2048, 2560)], 2: [(1024, 1536), (2560, 2600)]}
        assert reads == lost[silent], "only what was lost"
    else:
        workers.fails = None
        cache.restore()
    assert cache.lost == ()
    context.assert_equal(cache, {"is_causal": True}, "restored")
    cache.append(*more)
    assert cache.lengths.tolist() == [2607, 1807]


def test_a_restore_that_fails_can_be_repeated(rng: np.random.Generator) -> None:
    context = Context(rng, [1500], np.float32, 1)
    workers = FaultyWorkers(2)
    cache = context.sharded(workers)
    workers.fails = (1, "all")
    with pytest.raises(WorkerError):
        cache.attend(context.query)

    def wrong(first: int, last: int) -> tuple[Array, Array]:
        return context.key[:, :, first : last - 1], context.value[:, :, first : last - 1]

    with pytest.raises(ValueError, match="restore: read must give 512 positions from 512 on; got 511"):
        cache.restore(wrong)
    assert cache.lost == (1,)
    cache.restore(lambda first, last: (context.key[:, :, first:last], context.value[:, :, first:last]))
    context.assert_equal(cache, {}, "restored")


def test_an_append_that_was_cut_off_leaves_nothing(rng: np.random.Generator) -> None:
    context = Context(rng, [700], np.float32, 1)
    cache = context.sharded(LocalWorkers(2), [600])
    cache.rollback(100)

    class Interrupted(Exception):
        pass

    def interrupted(*arguments: Any) -> Any:
        raise Interrupted

    ask = cache._members._workers.ask
    cache._members._workers.ask = lambda requests, limit: (ask(requests, limit), interrupted())[0]  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        cache.append(context.key[:, :, 600:], context.value[:, :, 600:])
    cache._members._workers.ask = ask  # type: ignore[method-assign]
    cache.append(context.key[:, :, 600:], context.value[:, :, 600:])
    context.assert_equal(cache, {}, "appended again")


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"version": "0.0"}, f"must have version '{mha_native.__version__}'; got '0.0'"),
        ({"dtype": "bfloat16"}, "must have dtype 'float32'; got 'bfloat16'"),
        ({"workers": 7}, "must have workers 2; got 7"),
    ],
    ids=["version", "dtype", "workers"],
)
def test_a_worker_that_is_not_alike_is_refused(told: dict[str, Any], words: str) -> None:
    workers = FaultyWorkers(2)
    workers.told = told
    with pytest.raises(WorkerError, match=rf"^ShardedKVCache: worker 1 \(in this process\) {words}$") as error:
        ShardedKVCache(workers, 1, 2, 100, 16)
    assert error.value.workers == (1,)


def test_exact_takes_one_instruction_set() -> None:
    workers = FaultyWorkers(2)
    workers.told = {"isa": "another"}
    cache = ShardedKVCache(workers, 1, 2, 100, 16)
    query = np.ones((1, 2, 1, 16), np.float32)
    assert cache.attend(query).shape == (1, 2, 1, 16)
    with pytest.raises(
        ValueError, match=r"attend: exact takes workers that compute on one instruction set; got .*another"
    ):
        cache.attend(query, exact=True)


def test_caches_share_workers(rng: np.random.Generator) -> None:
    workers = LocalWorkers(2)
    layers = [Context(rng, [600 + 100 * i], np.float32, 1) for i in range(3)]
    caches = [layer.sharded(workers) for layer in layers]
    for layer, cache in zip(layers, caches, strict=True):
        layer.assert_equal(cache, {}, "a layer")
    caches[0].close()
    layers[1].assert_equal(caches[1], {}, "after another one is closed")
    with pytest.raises(WorkerError, match="closed"):
        caches[0].attend(layers[0].query)


def test_caches_that_share_a_lost_worker_are_restored_one_after_the_other(rng: np.random.Generator) -> None:
    workers = FaultyWorkers(3)
    layers = [Context(rng, [1300 + 100 * i], np.float32, 1) for i in range(3)]
    caches = [layer.sharded(workers) for layer in layers]
    workers.fails = (1, "all")
    words = ["did not answer", "failed in attend: RuntimeError: the process has no tokens of this cache"]
    for layer, cache, told in zip(layers, caches, [words[0], words[1], words[1]], strict=True):
        with pytest.raises(WorkerError, match=rf"worker 1 \(in this process\) {told}"):
            cache.attend(layer.query)
        cache.restore(lambda first, last, of=layer: (of.key[:, :, first:last], of.value[:, :, first:last]))
    for layer, cache in zip(layers, caches, strict=True):
        layer.assert_equal(cache, {}, "the others are restored, too")


WRONG = [
    (lambda c, q, k: c.attend(q[0]), ValueError, r"attend: query must have four axes"),
    (lambda c, q, k: c.attend(q.astype(np.float64)), TypeError, r"attend: .*float64"),
    (lambda c, q, k: c.attend(q[..., :5]), ValueError, r"attend: .*query"),
    (lambda c, q, k: c.attend(q, np.ones((1, 1, 2, 99), bool)), ValueError, r"attend: attn_mask must be broadcast"),
    (lambda c, q, k: c.attend(q, np.ones((1, 1, 2, 600))), TypeError, r"attend: attn_mask must be .*float64"),
    (lambda c, q, k: c.attend(q, key_mask=np.ones((1, 599), bool)), ValueError, r"attend: key_mask must be broad"),
    (lambda c, q, k: c.attend(q, key_mask=np.ones((1, 600))), TypeError, r"attend: key_mask must be of bool"),
    (lambda c, q, k: c.attend(q, window=(1, 2, 3)), Exception, r"attend: window"),
    (lambda c, q, k: c.attend(q, color=3), TypeError, r"attend: got an unexpected keyword argument 'color'"),
    (lambda c, q, k: c.attend(q, num_threads=0), ValueError, r"attend: num_threads"),
    (lambda c, q, k: c.attend(q, key_lengths=np.ones(1, int)), ValueError, r"attend: .*key_lengths"),
    (lambda c, q, k: c.append(k, k[:, :, :3]), ValueError, r"append: "),
    (lambda c, q, k: c.append(k, k), ValueError, r"append: no sequence may outgrow the capacity, 700 tokens"),
    (lambda c, q, k: c.append(k[:, :, :2], k[:, :, :2], np.array([3])), ValueError, r"append: new_lengths must be f"),
    (lambda c, q, k: c.append(k[:, :, :2], k[:, :, :2], [1.0]), TypeError, r"append: new_lengths must be integers"),
    (lambda c, q, k: c.rollback(601), ValueError, r"rollback: count must be from 0 to the lengths"),
    (lambda c, q, k: c.rollback(1.5), TypeError, r"rollback: count must be an integer"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "words"), WRONG, ids=range(len(WRONG)))
def test_what_is_refused(call: Any, kind: Any, words: str, rng: np.random.Generator) -> None:
    cache = ShardedKVCache(LocalWorkers(2), 1, 2, 700, 16)
    query, key = rng.standard_normal((1, 4, 2, 16), np.float32), rng.standard_normal((1, 2, 600, 16), np.float32)
    cache.append(key, key)
    before = cache.attend(query)
    with pytest.raises(kind, match=rf"^ShardedKVCache\.{words}"):
        call(cache, query, key)
    assert cache.lost == ()
    assert cache.lengths.tolist() == [600]
    assert_same_bits(cache.attend(query), before)


def test_bytes_moved_are_those_of_the_messages(rng: np.random.Generator) -> None:
    context = Context(rng, [2600, 2600], np.float32, 3)
    sizes = Sizes(2, KV_HEADS, context.capacity, HEAD_DIM, VALUE_DIM, "float32", 3)

    class Counting(LocalWorkers):
        moved = 0

        def ask(self, requests: Mapping[int, Any], time_limit: float) -> dict[int, Any]:
            answers = super().ask(requests, time_limit)
            for w in requests:
                if w > 0 and requests[w][0] == "attend":
                    self.moved += requests[w][3].nbytes + sum(array.nbytes for array in answers[w])
                elif w > 0 and requests[w][0] == "append":
                    self.moved += sum(key.nbytes + value.nbytes for _, key, value in requests[w][3])
            return answers

    workers = Counting(3)
    cache = context.sharded(workers)
    assert workers.moved == bytes_moved(sizes, 0, 2600, HEADS, itemsize=4)["keys"]
    for exact in (False, True):
        workers.moved = 0
        cache.attend(context.query, exact=exact)
        expected = bytes_moved(sizes, 3, 2600, HEADS, itemsize=4, is_exact=exact)
        assert workers.moved == expected["queries"]
    assert ShardHost().answer("leave", "none", 0) is None


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_refuses_copies_which_would_have_other_tokens(copied: Callable[[Any], Any]) -> None:
    cache = ShardedKVCache(LocalWorkers(2), 1, 1, 1024, 4)
    cache.append(*np.ones((2, 1, 1, 600, 4), np.float32))
    with pytest.raises(TypeError, match=r"^ShardedKVCache: it cannot be copied or pickled, .* in its workers"):
        copied(cache)
    assert cache.lengths.tolist() == [600]
