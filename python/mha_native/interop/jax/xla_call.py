"""A call of attention in JAX: tracing, the call by XLA, and the rules for ``vmap`` and gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from ..._core import xla_attention, xla_attention_gradient
from ...functions.attention import scaled_dot_product_attention
from ...functions.gradient import AttentionGradients
from ...functions.scalars import checked_boolean

Array = Any  # of JAX, or of NumPy
Arrays = dict[str, Array]  # given options that are arrays
Options = tuple[tuple[str, Any], ...]  # the others, sorted by their names

_TARGET, _TARGET_OF_GRADIENT = "mha_native_attention", "mha_native_attention_gradient"
_TOKENS_FIRST = "tokens_first"  # [B, T, H, D] in place of [B, H, T, D], and an lse of [B, T, H]

# Options with an entry for each batch element; other options have no batch axis.
_BROADCAST = {"attn_mask": 4, "block_mask": 4, "key_mask": 2, "alibi_slopes": 2}  # by rank; the first axis may be 1
_PER_BATCH = frozenset({"query_offset", "key_lengths"})
_WITH_BATCH = _BROADCAST.keys() | _PER_BATCH

# A position before all keys, in every integer type of offsets.
_NO_KEYS = -(2**31)

# Options with a gradient: of a mask, if it is added.
_DIFFERENTIABLE = AttentionGradients._fields[3:]

jax.ffi.register_ffi_target(_TARGET, xla_attention(), platform="cpu")
jax.ffi.register_ffi_target(_TARGET_OF_GRADIENT, xla_attention_gradient(), platform="cpu")


def attend(query: Array, key: Array, value: Array, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Compute the result and its lse, of inputs [B, H, T, D], [H, T, D] or [T, D].

    The option ``tokens_first`` swaps the axes of heads and tokens everywhere except in masks. None stands for the
    default of an option.
    """
    given = {name: array for name, array in arrays.items() if array is not None}
    static = tuple(sorted((name, _constant(value)) for name, value in options.items() if value is not None))
    return _compiled(query, key, value, given, options=static)


def _constant(value: Any) -> Any:
    """Convert a scalar or a pair to a hashable value. JAX raises an error for a tracer, which has no value."""
    if isinstance(value, tuple | list):
        return tuple(_constant(part) for part in value)
    return value.item() if hasattr(value, "item") else value


@functools.partial(jax.jit, static_argnames=("options",))
def _compiled(query: Array, key: Array, value: Array, arrays: Arrays, options: Options) -> Any:
    shape = _shape_of_result(query, key, value, arrays, options)
    rank = len(shape)
    query, key, value = _with_rank(query, 4), _with_rank(key, 4), _with_rank(value, 4)
    arrays = {name: _with_rank(array, _BROADCAST.get(name, 1)) for name, array in arrays.items()}
    out, lse = _differentiable(options)(query, key, value, arrays)
    return out.reshape(shape), lse.reshape(lse.shape[4 - rank :])


def _with_rank(array: Array, rank: int) -> Array:
    return array.reshape((1,) * (rank - array.ndim) + array.shape)


def _shape_of_result(query: Array, key: Array, value: Array, arrays: Arrays, options: Options) -> tuple[int, ...]:
    """Return the shape of `out`, or raise the error of the core.

    Calls the core with arrays of these shapes and dtypes, and with queries far before all keys: it checks all rules and
    computes little. Rules about values of integers are checked when XLA calls.
    """

    def stand_in(array: Array, value: int = 0) -> np.ndarray[Any, Any]:
        return np.broadcast_to(np.full((), value, array.dtype), array.shape)

    given = dict(options)
    tokens_first = given.pop(_TOKENS_FIRST, False)
    given.update({name: stand_in(array) for name, array in arrays.items()})
    offsets = arrays.get("query_offset")
    checked_boolean("scaled_dot_product_attention", "is_causal", given.get("is_causal", False))
    given["is_causal"], given["query_offset"] = True, _NO_KEYS
    if offsets is not None:
        given["query_offset"] = stand_in(offsets, _NO_KEYS if np.issubdtype(offsets.dtype, np.signedinteger) else 0)
    inputs = [stand_in(x) for x in (query, key, value)]
    if tokens_first:
        inputs = [x.swapaxes(-3, -2) for x in inputs]
    out = scaled_dot_product_attention(*inputs, **given)
    return tuple((out.swapaxes(-3, -2) if tokens_first else out).shape)


@functools.cache
def _differentiable(options: Options) -> Callable[..., Any]:
    """Return the function of query, key, value [B or 1, ...] and arrays that XLA calls, with its gradient."""

    @jax.custom_vjp
    def call(query: Array, key: Array, value: Array, arrays: Arrays) -> Any:
        return _mapped(options)(query, key, value, arrays)

    def forward(*inputs: Any) -> Any:
        results = call(*inputs)
        return results, (*inputs, *results)

    def backward(kept: Any, cotangents: Any) -> Any:
        *tensors, arrays, out, lse = kept
        found, of_arrays = _gradient(options)(*tensors, out, lse, *cotangents, arrays)
        of_tensors = [_summed(gradient, x) for gradient, x in zip(found, tensors, strict=True)]
        # Only real numbers have gradients; for the others None stands for zeros.
        return (
            *of_tensors,
            {name: of_arrays[name].astype(x.dtype) if name in of_arrays else None for name, x in arrays.items()},
        )

    call.defvjp(forward, backward)
    return call


def _summed(gradient: Array, x: Array) -> Array:
    """Return the gradient by `x`, of which a batch of one serves all."""
    if gradient.shape == x.shape:
        return gradient
    wide = gradient.astype(jnp.promote_types(gradient.dtype, np.float32))
    return wide.sum(0, keepdims=True).astype(x.dtype)


@functools.cache
def _gradient(options: Options) -> Callable[..., Any]:
    """Return the function that computes gradients, with a rule for ``vmap`` and without a derivative.

    Its arguments are query, key, value, out, lse, the gradients by these two, and arrays; its results are the gradients
    by query, key and value, [B, ...], and by the arrays of real numbers, with their shapes.
    """

    @custom_vmap
    def mapped(*inputs: Any) -> Any:
        return _lowered_gradient(*inputs, options)

    @mapped.def_vmap
    def rule(size: int, is_mapped: Any, *inputs: Any) -> Any:
        *tensors, arrays = inputs
        *mapped_tensors, mapped_arrays = is_mapped
        # An option without a batch axis has one gradient for the whole call.
        if arrays.keys() - _WITH_BATCH:
            results = _one_by_one(mapped, is_mapped, inputs)
        else:
            batch = tensors[3].shape[1 if mapped_tensors[3] else 0]
            whole = [_merge(x, flag, size, batch) for x, flag in zip(tensors, mapped_tensors, strict=True)]
            found, of_arrays = mapped(*whole, {n: _merge(x, mapped_arrays[n], size, batch) for n, x in arrays.items()})
            apart, of_each = jax.tree.map(lambda x: x.reshape(size, batch, *x.shape[1:]), (found, of_arrays))
            shared = {n: arrays[n].shape[1 if mapped_arrays[n] else 0] < batch for n in of_each}
            results = apart, {n: x.sum(1, keepdims=True) if shared[n] else x for n, x in of_each.items()}
        return results, jax.tree.map(lambda _: True, results)

    @jax.custom_jvp
    def call(*inputs: Any) -> Any:
        return mapped(*inputs)

    @call.defjvp
    def refuse(primals: Any, tangents: Any) -> NoReturn:
        raise NotImplementedError(
            "scaled_dot_product_attention: second derivatives are not computed, as of jax.hessian or of jax.grad of a "
            "gradient; first derivatives are"
        )

    return call


@functools.cache
def _mapped(options: Options) -> Callable[..., Any]:
    """Return that function without a gradient, with a rule for ``vmap``."""

    @custom_vmap
    def call(query: Array, key: Array, value: Array, arrays: Arrays) -> Any:
        return _lowered(query, key, value, arrays, options)

    @call.def_vmap
    def rule(size: int, is_mapped: Any, query: Array, key: Array, value: Array, arrays: Arrays) -> Any:
        *_, mapped_arrays = is_mapped
        inputs = (query, key, value, arrays)
        if any(mapped_arrays[name] for name in arrays.keys() - _WITH_BATCH):
            results = _one_by_one(call, is_mapped, inputs)
        else:
            results = tuple(x.reshape(size, -1, *x.shape[1:]) for x in call(*_merged(size, is_mapped, inputs)))
        return results, (True, True)

    return call


def _one_by_one(call: Callable[..., Any], is_mapped: Any, inputs: Any) -> Any:
    leaves, structure = jax.tree.flatten(inputs)
    flags = jax.tree.leaves(is_mapped)

    def one(mapped: list[Array]) -> Any:
        following = iter(mapped)
        return call(*structure.unflatten([next(following) if f else x for x, f in zip(leaves, flags, strict=True)]))

    return jax.lax.map(one, [x for x, flag in zip(leaves, flags, strict=True) if flag])


def _merged(size: int, is_mapped: Any, inputs: Any) -> Any:
    """Merge each mapped axis into the batch axis, for one call with `size` times the batch."""
    query, key, value, arrays = inputs
    query_is_mapped, key_is_mapped, value_is_mapped, mapped_arrays = is_mapped
    batch = max(x.shape[1 if f else 0] for x, f in zip((query, key), is_mapped, strict=False))

    def merge(array: Array, mapped: bool, repeat: bool) -> Array:
        if not mapped and array.shape[0] == 1 and not repeat:
            return array
        return _merge(array, mapped, size, batch)

    keys_are_mapped = key_is_mapped or value_is_mapped or key.shape[0] > 1
    with_batch = {name: array for name, array in arrays.items() if name in _WITH_BATCH}
    return (
        merge(query, query_is_mapped, not keys_are_mapped),
        merge(key, key_is_mapped, keys_are_mapped),
        merge(value, value_is_mapped, keys_are_mapped),
        arrays | {name: merge(x, mapped_arrays[name], name in _PER_BATCH) for name, x in with_batch.items()},
    )


def _merge(array: Array, mapped: bool, size: int, batch: int) -> Array:
    """Merge the mapped axis of an array into its batch axis, repeating what it lacks: [size * batch, ...]."""
    if not mapped:
        array = array[None]
    if array.shape[:2] != (size, batch):
        array = jnp.broadcast_to(array, (size, batch, *array.shape[2:]))
    return array.reshape(size * batch, *array.shape[2:])


def _lowered(query: Array, key: Array, value: Array, arrays: Arrays, options: Options) -> Any:
    """Return the call of XLA."""
    shape = (max(query.shape[0], key.shape[0]), *query.shape[1:3])
    out = jax.ShapeDtypeStruct((*shape, value.shape[3]), query.dtype)
    lse = jax.ShapeDtypeStruct(shape, jnp.promote_types(query.dtype, np.float32))
    attributes = _attributes(arrays, options, 3)
    return jax.ffi.ffi_call(_TARGET, (out, lse))(query, key, value, *arrays.values(), **attributes)


def _lowered_gradient(*inputs: Any) -> Any:
    """Return the call of XLA for the gradients, of the arguments of `_gradient` and its options."""
    *tensors, arrays, options = inputs
    query, key, value, out = tensors[:4]
    found = [jax.ShapeDtypeStruct((out.shape[0], *x.shape[1:]), query.dtype) for x in (query, key, value)]
    names = [n for n in _DIFFERENTIABLE if n in arrays and jnp.issubdtype(arrays[n].dtype, jnp.floating)]
    sums = jnp.promote_types(query.dtype, np.float32)
    attributes = _attributes(arrays, options, len(tensors))
    for place, name in enumerate(names, start=len(found)):
        attributes[f"d{name}"] = np.int64(place)
    results = [*found, *(jax.ShapeDtypeStruct(arrays[name].shape, sums) for name in names)]
    gradients = jax.ffi.ffi_call(_TARGET_OF_GRADIENT, results)(*tensors, *arrays.values(), **attributes)
    return tuple(gradients[:3]), dict(zip(names, gradients[3:], strict=True))


def _attributes(arrays: Arrays, options: Options, first: int) -> dict[str, Any]:
    """Return the attributes of a call: options, and for each array the index of its argument, from `first` on."""
    attributes: dict[str, Any] = {}
    for name, option in options:
        if name == "window":
            attributes["window_left"], attributes["window_right"] = np.int64(option[0]), np.int64(option[1])
        elif name in ("scale", "softcap"):
            attributes[name] = np.float64(option)
        else:
            attributes[name] = option if isinstance(option, bool) else np.int64(option)
    for place, name in enumerate(arrays, start=first):
        # An offset may also be a number, which is another attribute.
        attributes["query_offsets" if name == "query_offset" else name] = np.int64(place)
    return attributes
