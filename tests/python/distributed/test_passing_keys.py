"""A long prompt whose queries stay where they are, while keys and values pass: the same results, and bytes by rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from element_types import BFLOAT16
from sharded_contexts import HEAD_DIM, HEADS, KV_HEADS, VALUE_DIM, Context, options_of

from mha_native import scaled_dot_product_attention
from mha_native.distributed import LocalWorkers, ShardedKVCache, Sizes, WorkerError, bytes_moved
from mha_native.distributed._long_prompts import put_back, striped
from mha_native.distributed._partition import STRIPE_ROWS
from mha_native.distributed._workers import Failure

Array = np.ndarray[Any, np.dtype[Any]]


class Counting(LocalWorkers):
    """Counts the bytes of arrays that pass between the first worker and the others, and what they are asked for."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.moved, self.asked, self.fails = 0, set[str](), ""

    def ask(self, requests: Mapping[int, Any], time_limit: float) -> dict[int, Any]:
        answers = super().ask(requests, time_limit)
        for w, (operation, _, _, *arguments) in requests.items():
            self.asked.add(operation)
            if operation == self.fails:
                answers[w] = Failure("is on fire")
            elif w > 0 and operation in ("hold_rows", "read", "take_keys", "rows_done"):
                given = {"hold_rows": arguments[:1], "take_keys": arguments[3:]}.get(operation, [])
                self.moved += _nbytes(given) + _nbytes(answers[w])
        return answers


def _nbytes(content: Any) -> int:
    if isinstance(content, np.ndarray):
        return content.nbytes
    items = content.values() if isinstance(content, dict) else content if isinstance(content, list | tuple) else ()
    return sum(_nbytes(item) for item in items)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys pass in every call that they can pass in, in spans of one block."""
    monkeypatch.setattr(ShardedKVCache, "_lets_keys_pass", lambda self, query: True)
    monkeypatch.setattr("mha_native.distributed._long_prompts._SPAN_BYTES", 1)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, BFLOAT16], ids=["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_every_option(workers: int, kind: Any, always: None, rng: np.random.Generator) -> None:
    context = Context(rng, [1700, 3, 1100], kind, 150)
    counting = Counting(workers)
    cache = context.sharded(counting, [2, 600])
    for name, options in options_of(rng, context).items():
        counting.asked = set()
        context.assert_equal(cache, options, name)
        assert ("attend" in counting.asked) == ("attn_mask" in options), "a mask of scores is cut for shards alone"


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("queries", [64, 200, 2600])
def test_bytes_are_those_of_the_rule(workers: int, queries: int, always: None, rng: np.random.Generator) -> None:
    context = Context(rng, [2600, 2600], np.float32, queries)
    counting = Counting(workers)
    cache = context.sharded(counting)
    cache.attend(context.query, is_causal=True)
    sizes = Sizes(2, KV_HEADS, context.capacity, HEAD_DIM, VALUE_DIM, "float32", workers)
    assert counting.moved == bytes_moved(sizes, queries, 2600, HEADS, itemsize=4)["passing"]


@pytest.mark.parametrize(
    ("heads", "queries", "workers", "passes"),
    [
        (8, 1500, 3, True),  # each key serves eight heads
        (1, 1500, 3, False),  # as many heads of keys as of queries
        (8, 1, 3, False),  # a step
        (8, 150, 3, False),  # few rows for many keys
        (8, 1500, 1, False),
    ],
)
def test_whichever_moves_fewer_bytes(
    heads: int, queries: int, workers: int, passes: bool, rng: np.random.Generator
) -> None:
    key, value = rng.standard_normal((2, 1, 1, 1500, 16), np.float32)
    query = rng.standard_normal((1, heads, queries, 16), np.float32)
    counting = Counting(workers)
    cache = ShardedKVCache(counting, 1, 1, 1500, 16)
    cache.append(key, value)
    out = cache.attend(query, is_causal=True)
    assert ("take_keys" in counting.asked) is passes
    moved = bytes_moved(Sizes(1, 1, 1500, 16, 16, "float32", workers), queries, 1500, heads, itemsize=4)
    assert (moved["passing"] < moved["queries"]) is passes
    expected = scaled_dot_product_attention(query, key, value, is_causal=True, query_offset=1500 - queries)
    np.testing.assert_allclose(out, expected, atol=2e-6)
    counting.asked = set()
    cache.attend(query, is_causal=True, exact=True)
    assert "take_keys" not in counting.asked, "exact is the order of blocks"


@pytest.mark.parametrize(("queries", "workers"), [(64, 1), (1, 2), (200, 3), (64 * 8, 4), (1000, 7)])
def test_stripes_are_all_rows(queries: int, workers: int, rng: np.random.Generator) -> None:
    rows = rng.standard_normal((2, 3, queries, 5))
    again = np.full_like(rows, np.nan)
    for w in range(workers):
        put_back(striped(rows, w, workers), w, workers, again)
    assert np.array_equal(again, rows)


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_stripes_balance_a_causal_mask(workers: int) -> None:
    rounds = 6
    rows = np.arange(1.0, 1 + STRIPE_ROWS * workers * rounds).reshape(1, 1, -1, 1)  # the keys that each row sees
    work = [float(striped(rows, w, workers).sum()) for w in range(workers)]
    assert np.diff(work) == pytest.approx(STRIPE_ROWS**2 * rounds), "the next worker has rows that are 64 further on"
    contiguous = rows.reshape(workers, -1).sum(1)
    assert max(work) / min(work) < 1 + 2.5 / rounds < contiguous.max() / contiguous.min()


@pytest.mark.parametrize("operation", ["hold_rows", "read", "take_keys", "rows_done"])
def test_a_worker_that_fails_is_named(operation: str, always: None, rng: np.random.Generator) -> None:
    context = Context(rng, [1300], np.float32, 70)
    counting = Counting(3)
    cache = context.sharded(counting)
    counting.fails = operation
    with pytest.raises(WorkerError, match=r"ShardedKVCache\.attend: worker 0 \(in this process\) is on fire"):
        cache.attend(context.query)
    counting.fails = ""
    cache.restore()
    shards = [shard for host in counting._hosts for shard in host._shards.values()]
    assert [shard._rows for shard in shards] == [None] * 3, "rows of the call that failed are forgotten"
    context.assert_equal(cache, {"is_causal": True}, "restored")
