"""Attention in programs of JAX: eager, compiled, mapped and differentiated, on the memory that XLA has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import fresh_process
import numpy as np
import pytest
from element_types import BFLOAT16
from tolerance import assert_same_bits

import mha_native

jax = pytest.importorskip("jax", minversion="0.6.2")
import jax.numpy as jnp  # noqa: E402

from mha_native.functions.options import SCORE_OPTIONS  # noqa: E402
from mha_native.interop.jax import dot_product_attention, scaled_dot_product_attention  # noqa: E402

# Largest difference of outputs of size 1, of which float32 rounds each product differently.
CLOSE = 3e-6

B, H, HK, TQ, TK, D = 2, 4, 2, 33, 70, 16


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def inputs(dtype: Any = np.float32, *leading: int, batch: int = B) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (
        normal(*leading, batch, H, TQ, D, dtype=dtype),
        normal(*leading, batch, HK, TK, D, dtype=dtype, seed=1),
        normal(*leading, batch, HK, TK, D, dtype=dtype, seed=2),
    )


LENGTHS = np.array([TK, 20], np.int32)
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True, "query_offset": 5},
    "offsets": {"is_causal": True, "query_offset": np.array([37, -3], np.int32)},
    "window": {"window": (9, 4), "scale": 0.3},
    "one-sided window": {"window": (-1, 0), "softcap": 2.0},
    "boolean mask": {"attn_mask": normal(H, TQ, TK) < 0.5},
    "additive mask": {"attn_mask": normal(B, 1, TQ, TK)},
    "key mask and lengths": {"key_mask": normal(B, TK) < 0.7, "key_lengths": LENGTHS},
    "block mask": {"block_mask": np.array([[True, False]]), "sinks": normal(H)},
    "slopes": {"alibi_slopes": abs(normal(H)), "query_offset": 20, "is_causal": True},
    "slopes of each": {"alibi_slopes": abs(normal(B, H)), "query_offset": 20},
    "position bias": {"position_bias": normal(H, 17), "key_lengths": np.array([0, TK], np.int32)},
}


@pytest.fixture
def x64() -> Iterator[None]:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_gives_the_bits_of_the_function_of_numpy_arrays(name: str) -> None:
    arrays, options = inputs(), OPTIONS[name]
    out, lse = scaled_dot_product_attention(*arrays, **options, return_lse=True)
    expected = mha_native.scaled_dot_product_attention(*arrays, **options, return_lse=True)
    assert isinstance(out, jax.Array)
    assert_same_bits(np.asarray(out), expected[0])
    assert_same_bits(np.asarray(lse), expected[1])


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float64], ids=["f16", "bf16", "f64"])
def test_every_dtype(dtype: Any, x64: None) -> None:
    arrays = inputs(dtype)
    options = {"attn_mask": normal(TQ, TK, dtype=dtype), "key_lengths": LENGTHS.astype(np.int64)}
    out = jax.jit(scaled_dot_product_attention)(*arrays, **options)
    assert out.dtype == dtype
    assert_same_bits(np.asarray(out), mha_native.scaled_dot_product_attention(*arrays, **options))


@pytest.mark.parametrize("rank", [2, 3])
def test_missing_axes_count_as_one(rank: int) -> None:
    arrays = [x[(0,) * (4 - rank)] for x in inputs()]
    out, lse = scaled_dot_product_attention(*arrays, return_lse=True)
    assert out.shape == arrays[0].shape
    assert lse.shape == arrays[0].shape[:-1]
    assert_same_bits(np.asarray(out), mha_native.scaled_dot_product_attention(*arrays))


@pytest.mark.parametrize("one", ["query", "keys"])
def test_a_batch_of_one_serves_the_other(one: str) -> None:
    query, key, value = inputs()
    query, key, value = (query[:1], key, value) if one == "query" else (query, key[:1], value[:1])
    out = scaled_dot_product_attention(query, key, value)
    assert_same_bits(np.asarray(out), mha_native.scaled_dot_product_attention(query, key, value))


# Which of query, key, value and the option has the mapped axis.
@pytest.mark.parametrize(
    ("mapped", "name"),
    [
        ((0, 0, 0), "none"),
        ((0, None, None), "key mask and lengths"),
        ((None, 0, None), "offsets"),
        ((None, None, None), "boolean mask"),
        ((0, 0, 0), "additive mask"),
        ((0, None, 0), "slopes"),
        ((None, 0, 0), "slopes of each"),
        ((None, None, None), "block mask"),
    ],
)
@pytest.mark.parametrize("batch", [1, B])
def test_a_mapped_call_is_that_of_each_element(mapped: tuple[Any, ...], name: str, batch: int) -> None:
    size = 3
    alone, several = inputs(batch=batch), inputs(np.float32, size, batch=batch)
    arrays = [x if axis is None else y for x, y, axis in zip(alone, several, mapped, strict=True)]
    options = {n: x[:1] if batch < B and getattr(x, "shape", (0,))[0] == B else x for n, x in OPTIONS[name].items()}
    moving = {
        n: np.stack([np.roll(x, i) for i in range(size)]) for n, x in options.items() if isinstance(x, np.ndarray)
    }

    def call(query: Any, key: Any, value: Any, given: Any) -> Any:
        return scaled_dot_product_attention(query, key, value, **(options | given))

    out = jax.vmap(call, in_axes=(*mapped, 0))(*arrays, moving)
    for i in range(size):
        given = [x if axis is None else x[i] for x, axis in zip(arrays, mapped, strict=True)]
        expected = mha_native.scaled_dot_product_attention(*given, **(options | {n: x[i] for n, x in moving.items()}))
        assert_same_bits(np.asarray(out[i]), expected)


def test_maps_nest() -> None:
    arrays = inputs(np.float32, 3, 2)
    out = jax.jit(jax.vmap(jax.vmap(scaled_dot_product_attention)))(*arrays)
    expected = mha_native.scaled_dot_product_attention(*(x.reshape(-1, *x.shape[3:]) for x in arrays))
    assert_same_bits(np.asarray(out).reshape(expected.shape), expected)


def real(options: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in options.items() if isinstance(x, np.ndarray) and x.dtype.kind == "f"}


def gradients(arrays: Any, options: dict[str, Any], cotangents: Any) -> Any:
    """Gradients by query, key, value and all options of real numbers, through JAX."""

    def attend(query: Any, key: Any, value: Any, given: Any) -> Any:
        return scaled_dot_product_attention(query, key, value, **(options | given), return_lse=True)

    *found, of_options = jax.vjp(attend, *arrays, real(options))[1](cotangents)
    return {**dict(zip(("query", "key", "value"), found, strict=True)), **of_options}


def test_every_option_is_among_them() -> None:
    assert {name for options in OPTIONS.values() for name in options} == SCORE_OPTIONS


@pytest.mark.parametrize("one", [None, "query", "keys"])
@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_have_the_bits_of_the_function(name: str, one: str | None) -> None:
    query, key, value = inputs()
    query, key, value = (
        query[:1] if one == "query" else query,
        *((x[:1] if one == "keys" else x) for x in (key, value)),
    )
    options = OPTIONS[name]
    out, lse = mha_native.scaled_dot_product_attention(query, key, value, **options, return_lse=True)
    dout, dlse = normal(*out.shape, seed=3), normal(*lse.shape, seed=4)
    found = jax.jit(lambda *arrays: gradients(arrays, options, (dout, dlse)))(query, key, value)
    expected: Any = mha_native.attention_gradient(
        query, key, value, out, lse, dout, dlse=dlse, wrt=tuple(found), **options
    )
    for name, ours in found.items():
        assert_same_bits(np.asarray(ours), getattr(expected, name))


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float64], ids=["f16", "bf16", "f64"])
def test_gradients_of_every_dtype(dtype: Any, x64: None) -> None:
    arrays, options = inputs(dtype), {"attn_mask": normal(TQ, TK, dtype=dtype), "softcap": 2.0}
    out, lse = mha_native.scaled_dot_product_attention(*arrays, **options, return_lse=True)
    dout, dlse = normal(*out.shape, dtype=dtype, seed=3), np.zeros_like(lse)
    found = gradients(arrays, options, (dout, dlse))
    expected: Any = mha_native.attention_gradient(*arrays, out, lse, dout, dlse=dlse, wrt=tuple(found), **options)
    for name, ours in found.items():
        assert ours.dtype == dtype
        assert_same_bits(np.asarray(ours), getattr(expected, name).astype(dtype))


@pytest.mark.parametrize(
    ("mapped", "name"),
    [
        ((0, 0, 0), "additive mask"),
        ((0, None, None), "key mask and lengths"),
        ((None, 0, None), "offsets"),
        ((None, None, None), "slopes of each"),
        ((0, 0, 0), "slopes"),
        ((None, 0, 0), "position bias"),
    ],
)
@pytest.mark.parametrize("moves", [True, False])
def test_gradients_of_a_mapped_call_are_those_of_each_element(mapped: tuple[Any, ...], name: str, moves: bool) -> None:
    size, options = 3, OPTIONS[name]
    alone, several = inputs(), inputs(np.float32, size)
    arrays = [x if axis is None else y for x, y, axis in zip(alone, several, mapped, strict=True)]
    moving = {n: np.stack([np.roll(x, i * moves) for i in range(size)]) for n, x in real(options).items()}
    cotangents = normal(size, B, H, TQ, D, seed=3), normal(size, B, H, TQ, seed=4)

    def call(query: Any, key: Any, value: Any, given: Any, cotangents: Any) -> Any:
        _, pullback = jax.vjp(
            lambda q, k, v, g: scaled_dot_product_attention(q, k, v, **(options | g), return_lse=True),
            *(query, key, value, given),
        )
        return pullback(cotangents)

    of_options = 0 if moves else None
    given = moving if moves else real(options)
    found = jax.vmap(call, in_axes=(*mapped, of_options, 0))(*arrays, given, cotangents)
    for i in range(size):
        here = [x if axis is None else x[i] for x, axis in zip(arrays, mapped, strict=True)]
        expected = call(*here, {n: x[i] for n, x in moving.items()}, tuple(x[i] for x in cotangents))
        for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(ours[i], theirs, rtol=0, atol=1e-5)  # another order of sums over the batch


def tokens_first(*arrays: np.ndarray) -> list[Any]:
    return [jnp.asarray(x.swapaxes(1, 2)) for x in arrays]


# Both, in the words of JAX.
CALLS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True, "scale": 0.2},
    "window": {"local_window_size": (40, 2)},
    "symmetric window": {"local_window_size": 45},
    "bias": {"bias": normal(1, H, TQ, TK)},
    "mask": {"mask": (normal(B, 1, TQ, TK) < 0.5) | (np.arange(TK) == 0)},
    "bias and mask": {"bias": normal(B, 1, TQ, TK), "mask": np.arange(TK).reshape(1, 1, 1, TK) < 50},
    "lengths": {"query_seq_lengths": np.array([10, TQ], np.int32), "key_value_seq_lengths": LENGTHS},
}


@pytest.mark.parametrize("name", CALLS)
def test_dot_product_attention_is_that_of_jax(name: str) -> None:
    arrays, options = tokens_first(*inputs()), CALLS[name]
    ours = dot_product_attention(*arrays, **options)
    theirs = jax.jit(lambda *arrays: jax.nn.dot_product_attention(*arrays, **options))(*arrays)
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=CLOSE)


def test_residuals_and_three_axes() -> None:
    arrays = [x[0] for x in tokens_first(*inputs())]
    ours, residual = dot_product_attention(*arrays, return_residual=True)
    theirs, their_residual = jax.jit(lambda *x: jax.nn.dot_product_attention(*x, return_residual=True))(*arrays)
    assert ours.shape == theirs.shape
    assert residual.shape == arrays[0].shape[:-1]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=CLOSE)
    np.testing.assert_allclose(residual, their_residual.reshape(residual.shape), rtol=0, atol=4 * CLOSE)


def test_a_wider_bias_is_not_rounded() -> None:
    arrays = [x.astype(jnp.bfloat16) for x in tokens_first(*inputs())]
    bias = normal(1, H, TQ, TK) + 40
    ours = dot_product_attention(*arrays, bias)
    wide = dot_product_attention(*(x.astype(np.float32) for x in arrays), bias)
    assert ours.dtype == jnp.bfloat16
    assert_same_bits(np.asarray(ours), np.asarray(wide.astype(jnp.bfloat16)))


@pytest.mark.parametrize("name", ["bias and mask", "lengths"])
def test_gradients_are_those_of_jax(name: str) -> None:
    options = dict(CALLS[name])
    weights = jnp.asarray(normal(B, TQ, H, D, seed=3))
    bias = options.pop("bias", None)

    def loss(attention: Any) -> Any:
        return lambda arrays, bias: (attention(*arrays, bias, **options) * weights).sum()

    arguments = (tokens_first(*inputs()), bias)
    ours = jax.jit(jax.grad(loss(dot_product_attention), argnums=(0, 1)))(*arguments)
    theirs = jax.jit(jax.grad(loss(jax.nn.dot_product_attention), argnums=(0, 1)))(*arguments)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)  # sums of TQ or more products


def test_gradients_of_mapped_calls_and_of_rows_that_see_nothing() -> None:
    lengths = np.array([[0, TK], [3, 4]], np.int32)

    def loss(query: Any, key: Any, value: Any, lengths: Any, sinks: Any) -> Any:
        out, lse = scaled_dot_product_attention(query, key, value, key_lengths=lengths, sinks=sinks, return_lse=True)
        return (out**2).sum() + (lse * (lse > -1e9)).sum()

    gradients = jax.grad(lambda *x: jax.vmap(loss, in_axes=(0, 0, 0, 0, None))(*x).sum(), argnums=(0, 1, 2, 4))(
        *inputs(np.float32, 2), lengths, normal(H)
    )
    assert all(np.isfinite(x).all() for x in gradients)
    assert not np.asarray(gradients[1])[0, 0].any()  # of keys that do not exist
    assert np.asarray(gradients[3]).any()


def test_derivatives_that_are_not_computed_are_refused() -> None:
    query, key, value = inputs()
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(lambda x: scaled_dot_product_attention(x, key, value), (query,), (query,))
    of_query = jax.grad(lambda x: scaled_dot_product_attention(x, key, value).sum())
    words = r"^scaled_dot_product_attention: second derivatives are not computed"
    with pytest.raises(NotImplementedError, match=words):
        jax.grad(lambda x: of_query(x).sum())(query)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"key": normal(B, 3, TK, D)}, ValueError, "heads of query must be a multiple of the heads of key"),
        (
            {"value": normal(B, HK, TK - 1, D)},
            ValueError,
            r"scaled_dot_product_attention.*got .*value \[2, 2, 69, 16\]",
        ),
        (
            {"key": normal(B, HK, TK, D, dtype=np.float16)},
            TypeError,
            r"key must be of the dtype of query.* got query float32, key float16, value float32\n",
        ),
        ({"attn_mask": normal(5, TK)}, ValueError, "attn_mask"),
        ({"attn_mask": np.ones((TQ, TK), np.int32)}, TypeError, "attn_mask"),
        ({"key_lengths": np.array([1, 2, 3])}, ValueError, "key_lengths"),
        ({"query_offset": np.array([1, 2, 3])}, ValueError, "query_offset"),
        ({"sinks": normal(H + 1)}, ValueError, "sinks"),
        ({"softcap": -1.0}, ValueError, "softcap"),
        ({"window": (-2, 0)}, ValueError, "window"),
        ({"is_causal": "yes"}, TypeError, "scaled_dot_product_attention: is_causal must be a bool"),
        (
            {"is_casual": True},
            TypeError,
            "scaled_dot_product_attention: got an unexpected keyword argument 'is_casual'",
        ),
    ],
)
def test_what_is_wrong_is_said_while_tracing(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = dict(zip(("query", "key", "value"), inputs(), strict=True)) | change
    with pytest.raises(error, match=message):
        jax.eval_shape(lambda: scaled_dot_product_attention(**arguments))


def test_what_is_known_only_when_it_runs_is_an_error_of_jax() -> None:
    call = jax.jit(scaled_dot_product_attention)
    with pytest.raises(RuntimeError, match=r"scaled_dot_product_attention: key_lengths must lie in .* got 71 for"):
        call(*inputs(), key_lengths=np.array([1, TK + 1])).block_until_ready()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"implementation": "cudnn"}, ValueError, "dot_product_attention implementation: must be None"),
        ({"query": normal(TQ, D)}, ValueError, "dot_product_attention: query, key and value must all have shapes"),
        ({"mask": normal(1, 1, TQ, TK)}, TypeError, "dot_product_attention mask: must be boolean, got float32"),
        ({"bias": np.ones((1, 1, TQ, TK), bool)}, TypeError, "dot_product_attention bias: must be of a floating"),
        ({"bias": normal(1, 1, TQ, 3)}, ValueError, "dot_product_attention.*bias"),
        ({"local_window_size": (-1, 0)}, ValueError, "dot_product_attention local_window_size: must be 0 or more"),
        ({"query_seq_lengths": np.ones(2)}, ValueError, "dot_product_attention query_seq_lengths: must be integers"),
        ({"key_value_seq_lengths": np.array([1, 2, 3])}, ValueError, "dot_product_attention.*key_value_seq_lengths"),
    ],
)
def test_dot_product_attention_says_what_it_does_not_take(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments = dict(zip(("query", "key", "value"), tokens_first(*inputs()), strict=True)) | change
    with pytest.raises(error, match=message):
        dot_product_attention(**arguments)


@pytest.mark.parametrize("mapped", [False, True], ids=["plain", "mapped"])
def test_nothing_is_copied(mapped: bool) -> None:
    """By XLA's own account: beside arguments and result there is the lse, and no axes change places."""
    attention = jax.vmap(dot_product_attention) if mapped else dot_product_attention
    leading = (3,) if mapped else ()
    arrays = [jnp.asarray(x.swapaxes(-3, -2)) for x in inputs(np.float32, *leading)]
    program = jax.jit(attention).lower(*arrays).compile()
    lse = arrays[0].nbytes // D
    assert program.memory_analysis().temp_size_in_bytes <= lse + 1024  # and what XLA rounds addresses up by
    text = program.as_text()
    assert "mha_native_attention" in text
    assert not [line for line in text.splitlines() if " copy(" in line or " transpose(" in line or " fusion(" in line]


def test_the_threads_are_those_of_xla() -> None:
    """Calls begin no threads of this library beside those that XLA has."""
    code = """
        import os
        import jax, jax.numpy as jnp
        from mha_native.interop.jax import scaled_dot_product_attention

        mha.set_num_threads(4)
        x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 8, 256, 64), dtype=np.float32))
        jax.jit(lambda x: x @ x.swapaxes(2, 3))(x).block_until_ready()
        call = jax.jit(scaled_dot_product_attention).lower(x, x, x).compile()
        before = len(os.listdir("/proc/self/task"))
        out = call(x, x, x).block_until_ready()
        print(len(os.listdir("/proc/self/task")) - before)
        assert np.array_equal(out, mha.scaled_dot_product_attention(*[np.asarray(x)] * 3, num_threads=1))
    """
    assert fresh_process.output(code, JAX_PLATFORMS="cpu") == "0"


def test_calls_at_once_come_to_their_end() -> None:
    """More calls than XLA has threads, from as many threads, each with calls that XLA may run side by side."""
    arrays = [normal(1, 8, 256, 64, seed=i) for i in range(6)]
    expected = [mha_native.scaled_dot_product_attention(x, x, x) for x in arrays]
    program = jax.jit(lambda *arrays: [scaled_dot_product_attention(x, x, x) for x in arrays])
    program(*arrays)
    failures: list[str] = []

    def work() -> None:
        for _ in range(10):
            results = [np.asarray(x) for x in program(*arrays)]
            if not all(map(np.array_equal, results, expected)):
                failures.append("a result differs")

    threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive(), "a call does not return"
    assert failures == []
