"""Random valid calls against the reference: every function and layer, dtype and instruction set, in any memory.

    PYTHONPATH=tests/python/support python tests/python/fuzz/valid_calls.py [--seed N] [--count N] [--verbose]

Inputs are dense, strided, backwards, broadcast or read-only; results are written over NaN, and what is masked holds
NaN, too. The bounds are those of `tolerance.py` and its neighbours, element by element. Exits with 1 if one result is
beyond them. Call i of a seed is the same on every machine, but for its instruction set.
"""

from __future__ import annotations

import collections
import faulthandler
import itertools
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of the reference: it is read when NumPy is loaded

import equivalent_calls
import merging_tolerance
import numpy as np
import program
import ragged
import random_layers
import statistics_tolerance
import tolerance
import transformer_tolerance
from element_types import BFLOAT16, accumulator_of
from tolerance import assert_close

import mha_native as mha

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
Kind = Callable[[Generator, Any, int], None]  # random numbers, dtype, threads

DTYPES = (np.float32, np.float32, np.float64, np.float16, BFLOAT16)
LONGEST_SECONDS = 300.0


def in_some_memory(rng: Generator, x: Array) -> Array:
    """The same numbers in memory of another layout, read-only; or as they are."""
    return [x, *random_layers.views(x)][rng.integers(4)] if x.ndim and x.size else x


def some_output(rng: Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """NaN, dense or not."""
    wide = np.full((*shape[:-1], 2 * shape[-1]), np.nan, dtype)
    return [wide[..., : shape[-1]], wide[..., ::2], wide[..., shape[-1] :][..., ::-1]][rng.integers(3)]


def broadcast(rng: Generator, x: Array) -> Array:
    """Now and then one sequence for all."""
    return np.broadcast_to(x[:1], x.shape) if rng.random() < 0.1 else x


def dense_call(rng: Generator, dtype: Any) -> equivalent_calls.Call:
    seed = int(rng.integers(2**31))
    call = equivalent_calls.random_call(seed if rng.random() < 0.3 else seed | 1, dtype)  # multiples of 4 are long
    # A weight that is too small for its type makes NaN of an infinite value, which in float64 stays infinite.
    value = np.where(np.isinf(call.value), call.value.dtype.type(np.nan), call.value)
    call = call.changed(query=broadcast(rng, call.query), key=broadcast(rng, call.key), value=value)
    return equivalent_calls.nan_in_unseen_keys(call, rng) if rng.random() < 0.5 else call


def attention(rng: Generator, dtype: Any, threads: int) -> None:
    call = dense_call(rng, dtype)
    expected = tolerance.attention(*(call.query, call.key, call.value), call.options)
    query, key, value = (in_some_memory(rng, x) for x in (call.query, call.key, call.value))
    out = some_output(rng, expected.out.shape, dtype)
    given, lse = mha.scaled_dot_product_attention(
        query, key, value, return_lse=True, out=out, num_threads=threads, **call.options
    )
    assert given is out
    assert_close(out, expected.out, expected.out_bound, label="out")
    assert_close(lse, expected.lse, expected.lse_bound, label="lse")


def weights(rng: Generator, dtype: Any, threads: int) -> None:
    call = dense_call(rng, dtype)
    query, key = in_some_memory(rng, call.query), in_some_memory(rng, call.key)
    expected = tolerance.attention(call.query, call.key, call.value, call.options)
    out = some_output(rng, expected.weights.shape, dtype)
    mha.attention_weights(query, key, out=out, num_threads=threads, **call.options)
    assert_close(out, expected.weights, expected.weights_bound, label="weights")


def scores(rng: Generator, dtype: Any, threads: int) -> None:
    call = dense_call(rng, dtype)
    query, key = in_some_memory(rng, call.query), in_some_memory(rng, call.key)
    stage = str(rng.choice(["scaled", "capped", "masked"]))
    exact, bound = tolerance.scores(call.query, call.key, call.options, stage)
    actual = mha.attention_weights(query, key, stage=stage, num_threads=threads, **call.options)
    assert_close(actual, exact, bound, label=f"scores, {stage}")


def statistics(rng: Generator, dtype: Any, threads: int) -> None:
    call = dense_call(rng, dtype)
    query, key = in_some_memory(rng, call.query), in_some_memory(rng, call.key)
    expected = statistics_tolerance.statistics(call.query, call.key, call.options)
    actual = mha.attention_statistics(query, key, num_threads=threads, **call.options)
    for name, bound in expected.bounds.items():
        assert_close(getattr(actual, name), getattr(expected, name), bound, label=name)


def varlen(rng: Generator, dtype: Any, threads: int) -> None:
    batch = ragged.random_batch(int(rng.integers(2**31)), dtype)
    hidden = batch.hidden_keys()
    batch.key[hidden] = batch.value[hidden] = np.nan
    query, key, value = (in_some_memory(rng, x) for x in (batch.query, batch.key, batch.value))
    out = some_output(rng, (*query.shape[:2], value.shape[2]), dtype)
    _, lse = mha.scaled_dot_product_attention_varlen(
        query, key, value, *batch.arguments[3:], return_lse=True, out=out, num_threads=threads, **batch.options
    )
    for rows, arrays, options in batch.sequences():
        expected = tolerance.attention(*arrays, options)
        assert_close(out[rows].swapaxes(0, 1), expected.out, expected.out_bound, label="out")
        assert_close(lse[rows].T, expected.lse, expected.lse_bound, label="lse")


def merging(rng: Generator, dtype: Any, threads: int) -> None:
    call = equivalent_calls.random_call(4 * int(rng.integers(2**29)) + 1, dtype).with_options(
        key_lengths=None, attn_mask=None, alibi_slopes=None, position_bias=None, window=None, sinks=None
    )
    # Infinity is NaN behind a weight that is 0 in float64; the oracle has wider numbers.
    call = call.changed(value=np.where(np.isfinite(call.value), call.value, call.value.dtype.type(1)))
    offset, keys = call.options.pop("query_offset"), call.key.shape[2]
    ends = [0, *sorted(rng.integers(keys + 1, size=rng.integers(4))), keys]
    parts = [slice(start, stop) for start, stop in itertools.pairwise(ends)]
    shards, expected = [], []
    for part in parts:
        arrays = call.query, call.key[:, :, part], call.value[:, :, part]
        options = call.options | {"query_offset": offset - part.start}
        expected.append(tolerance.attention(*arrays, options))
        shards.append(mha.scaled_dot_product_attention(*arrays, return_lse=True, num_threads=threads, **options))
    outs, lses = ([in_some_memory(rng, x) for x in results] for results in zip(*shards, strict=True))
    out, lse = mha.merge_attention(outs, lses, num_threads=threads)
    of_all = merging_tolerance.merged(expected, dtype)
    assert_close(out, of_all.out, of_all.out_bound, label="out")
    assert_close(lse, of_all.lse, of_all.lse_bound, label="lse")


def cache(rng: Generator, dtype: Any, threads: int) -> None:
    call = dense_call(rng, dtype)
    expected = tolerance.attention(call.query, call.key, call.value, call.options)
    call = equivalent_calls.over_a_cache(call, rng)
    query = in_some_memory(rng, call.query)
    out, lse = mha.scaled_dot_product_attention(
        query, call.key, call.value, return_lse=True, num_threads=threads, **call.options
    )
    assert_close(out, expected.out, expected.out_bound, label="out")
    assert_close(lse, expected.lse, expected.lse_bound, label="lse")


# Layers.


def options_of_layer(rng: Generator, dtype: Any, heads: int, sizes: tuple[int, int, int]) -> dict[str, Any]:
    """Any of what layers take, for `sizes` [B, Tq, Tk]."""
    batch, queries, keys = sizes
    bias = rng.standard_normal((heads, queries, keys)).astype(dtype)
    bias[rng.random(bias.shape) < 0.2] = -np.inf
    every: dict[str, Any] = {
        "is_causal": bool(rng.random() < 0.5),
        "query_offset": rng.integers(-3, keys + 3, batch),
        "key_lengths": rng.integers(keys + 1, size=batch),
        "block_mask": rng.random((1, heads, -(-queries // 64), -(-keys // 64))) < 0.7,
        "window": (int(rng.integers(-1, keys + 1)), int(rng.integers(-1, keys + 1))),
        "scale": float(rng.choice([0.2, 0.7])),
        "softcap": 2.5,
        "alibi_slopes": rng.random(heads).astype(accumulator_of(dtype)),
        "position_bias": rng.standard_normal((heads, 2 * int(rng.integers(90)) + 1)).astype(accumulator_of(dtype)),
        "sinks": rng.standard_normal(heads).astype(accumulator_of(dtype)),
        "attn_mask": bias if rng.random() < 0.5 else rng.random((batch, 1, queries, keys)) < 0.7,
        "key_mask": rng.random((batch, keys)) < 0.7,
    }
    return {name: value for name, value in every.items() if rng.random() < 0.25}


def rows_of(rng: Generator, module: Any, *lengths: int) -> Array:
    return rng.standard_normal((*lengths, module.embed_dim)).astype(module.dtype)


def attention_layer(rng: Generator, dtype: Any, threads: int) -> None:
    layer = random_layers.attention_layer(str(rng.choice(list(random_layers.LAYERS))), dtype)
    batch, queries, keys = (int(rng.integers(1, most)) for most in (4, 70, 100))
    arrays = random_layers.attention_inputs(layer, batch, queries, keys, int(rng.integers(2**31)))
    options = options_of_layer(rng, dtype, layer.num_heads, (batch, queries, keys))
    expected = tolerance.layer(layer, *arrays, options)
    out = some_output(rng, expected.out.shape, dtype)
    views = [in_some_memory(rng, x) for x in arrays]
    _, of_heads = layer(*views, out=out, need_weights=True, num_threads=threads, **options)
    assert_close(out, expected.out, expected.out_bound, label="out")
    assert_close(of_heads, expected.weights, expected.weights_bound, label="weights")


def encoder(rng: Generator, dtype: Any, threads: int) -> None:
    """All at once, or token by token over caches, or sequences of different length side by side."""
    name = str(rng.choice(list(random_layers.STACKS)))
    batch, length = int(rng.integers(1, 4)), int(rng.integers(1, 70))
    match rng.integers(3):
        case 0:
            model: Any = random_layers.encoder(name, dtype)
            x = rows_of(rng, model, batch, length)
            options = options_of_layer(rng, dtype, model.layers[0].self_attn.num_heads, (batch, length, length))
            expected, _ = transformer_tolerance.encoder(model, x, options)
            actual = some_output(rng, x.shape, dtype)
            model(in_some_memory(rng, x), out=actual, num_threads=threads, **options)
        case 1:
            model = random_layers.causal_decoder(name, dtype)
            x, caches = rows_of(rng, model, batch, length), model.new_caches(batch, length)
            expected, _ = transformer_tolerance.encoder(model, x, {"is_causal": True})
            ends = [0, *sorted(rng.integers(length + 1, size=rng.integers(5))), length]
            views = [in_some_memory(rng, x[:, start:stop]) for start, stop in itertools.pairwise(ends)]
            actual = np.concatenate([model(view, caches=caches, num_threads=threads) for view in views], 1)
        case _:
            model = random_layers.encoder(name, dtype)
            cu_seqlens = np.array([0, *sorted(rng.integers(length + 1, size=batch)), length])
            x = rows_of(rng, model, length)
            actual = model(in_some_memory(rng, x), cu_seqlens=cu_seqlens, num_threads=threads)
            for start, stop in itertools.pairwise(cu_seqlens):
                if start < stop:
                    near, _ = transformer_tolerance.encoder(model, x[start:stop], {})
                    assert_close(actual[start:stop], near.out, near.bound, label="rows of a sequence")
            return
    assert_close(actual, expected.out, expected.bound, label=name)


def decoder(rng: Generator, dtype: Any, threads: int) -> None:
    model = random_layers.decoder(str(rng.choice(list(random_layers.STACKS))), dtype)
    batch, length, memory_length = (int(rng.integers(1, most)) for most in (4, 40, 50))
    x = rows_of(rng, model, batch, length)
    memory = rng.standard_normal((batch, memory_length, model.memory_dim)).astype(dtype)
    heads, lengths = model.layers[0].self_attn.num_heads, rng.integers(memory_length + 1, size=batch)
    options = {"is_causal": True} | options_of_layer(rng, dtype, heads, (batch, length, length))
    expected = transformer_tolerance.decoder(model, x, memory, options, {"key_lengths": lengths})
    memory[np.arange(memory_length) >= lengths[:, None]] = np.nan
    if rng.random() < 0.5:
        of_memory: dict[str, Any] = {"memory": in_some_memory(rng, memory), "memory_lengths": lengths}
    else:
        of_memory = {"memory_caches": model.project_memory(memory, memory_lengths=lengths, num_threads=threads)}
    out = some_output(rng, x.shape, dtype)
    model(in_some_memory(rng, x), out=out, num_threads=threads, **of_memory, **options)
    assert_close(out, expected.out, expected.bound, label="decoder")


def rows(rng: Generator, dtype: Any, threads: int) -> None:
    layer = random_layers.encoder(str(rng.choice(list(random_layers.STACKS))), dtype).layers[0]
    shape = tuple(int(n) for n in rng.integers(1, 12, rng.integers(1, 4)))
    x = rows_of(rng, layer, *shape)
    near = transformer_tolerance.Near.exactly(x)
    norms = [norm for norm in (layer.norm1, layer.norm2, layer.output_norm1) if norm is not None]
    for module, exact in (
        *((norm, transformer_tolerance.layer_norm(norm, near)) for norm in norms),
        (layer.feed_forward, transformer_tolerance.feed_forward(layer.feed_forward, near)),
    ):
        out = some_output(rng, x.shape, dtype)
        module(in_some_memory(rng, x), out=out, num_threads=threads)
        assert_close(out, exact.out, exact.bound, label=type(module).__name__)


KINDS: tuple[Kind, ...] = (
    attention, weights, scores, statistics, varlen, merging, cache, attention_layer, encoder, decoder, rows,
)  # fmt: skip


def check(seed: int, index: int, verbose: bool = False) -> tuple[str, str | None]:
    """The call with that index: what it was, and what was wrong with it."""
    rng = np.random.default_rng((seed, index))
    kind, dtype = KINDS[rng.integers(len(KINDS))], DTYPES[rng.integers(len(DTYPES))]
    threads, isas = int(rng.integers(1, 4)), mha.available_isas()
    isa = isas[rng.integers(len(isas))]
    call = f"{index}: {kind.__name__}, {np.dtype(dtype).name}, {isa}, {threads} threads"
    if verbose:
        print(call, file=sys.stderr, flush=True)
    try:
        with mha.use_isa(isa):
            kind(rng, dtype, threads)
    except Exception as error:
        return call, f"{type(error).__name__}: {error}"
    return call, None


def main() -> int:
    options = program.options("Compare random calls with the reference.", count=500)
    faulthandler.enable()
    made, bad = collections.Counter[str](), 0
    for index in range(options.first, options.first + options.count):
        faulthandler.dump_traceback_later(LONGEST_SECONDS, exit=True)  # a call in the core cannot be interrupted
        call, complaint = check(options.seed, index, options.verbose)
        made[call.split(" ")[1].rstrip(",")] += 1
        if complaint is not None:
            bad += 1
            print(f"BAD {call}: {complaint}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    print(
        f"{sum(made.values())} calls, {bad} bad: {', '.join(f'{count} {kind}' for kind, count in made.most_common())}"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
