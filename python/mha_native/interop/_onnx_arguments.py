"""Checks of the inputs of the operator `Attention` of ONNX. Messages use its names and shapes."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..functions.dtypes import LAYER_DTYPES, dtype_name
from ..functions.messages import name_of_type
from ..functions.scalars import checked_integer

Array: TypeAlias = NDArray[Any]

FUNCTION = "onnx_attention"

# Dtypes of Q and V in NumPy itself; bfloat16 is found by its name.
_NUMPY_FLOATS = frozenset(np.dtype(kind) for kind in (np.float32, np.float64, np.float16))


def check_dtypes(Q: Array, K: Array, V: Array, attn_mask: Any, past_key: Any, past_value: Any) -> None:
    """Check that the inputs are arrays, and their dtypes: one of Q and K, and one of V."""
    _check_float("Q", Q)
    _check_float("V", V)
    _check_same("K", K, "Q", Q)
    if past_key is not None:
        _check_same("past_key", past_key, "Q", Q)
    if past_value is not None:
        _check_same("past_value", past_value, "V", V)
    if attn_mask is not None:
        _check_array("attn_mask", attn_mask)
        if attn_mask.dtype != bool:
            _check_same("attn_mask", attn_mask, "Q", Q)


def split_heads(
    Q: Array, K: Array, V: Array, q_num_heads: int | None, kv_num_heads: int | None
) -> tuple[Array, Array, Array]:
    """Return the inputs as views [B, heads, T, width], and check that their sizes are consistent."""
    rule: str | None
    query, key, value = Q, K, V
    if not Q.ndim == K.ndim == V.ndim or Q.ndim not in (3, 4):
        rule = "Q, K and V must all have three axes, or all four"
    elif Q.ndim == 4 and not (q_num_heads is None and kv_num_heads is None):
        rule = "q_num_heads and kv_num_heads must not be given where Q has four axes"
    else:
        if Q.ndim == 3:
            query = _split("Q", Q, "q_num_heads", q_num_heads)
            key, value = _split("K", K, "kv_num_heads", kv_num_heads), _split("V", V, "kv_num_heads", kv_num_heads)
        rule = _misfit(query, key, value)
    if rule:
        heads = f"q_num_heads {q_num_heads}, kv_num_heads {kv_num_heads}, " if Q.ndim == 3 else ""
        shapes = f"Q {list(Q.shape)}, K {list(K.shape)}, V {list(V.shape)}"
        raise ValueError(f"{FUNCTION}: {rule}; got {heads}{shapes}")
    return query, key, value


def check_past(past_key: Array, past_value: Array, key: Array, value: Array) -> None:
    """Check the shapes of past keys and values against the new ones, [B, Hk, T, width]."""
    for name, past, new in (("past_key", past_key, key), ("past_value", past_value, value)):
        if past.ndim != 4 or (*past.shape[:2], past.shape[3]) != (*new.shape[:2], new.shape[3]):
            batch, heads, _, width = new.shape
            raise ValueError(f"{FUNCTION}: {name} must be [{batch}, {heads}, P, {width}]; got {list(past.shape)}")
    if past_value.shape[2] != past_key.shape[2]:
        shapes = f"past_key {list(past_key.shape)}, past_value {list(past_value.shape)}"
        raise ValueError(f"{FUNCTION}: past_value must have the length of past_key; got {shapes}")


def check_mask(attn_mask: Array, shape: tuple[int, int, int, int]) -> None:
    """Check that a mask broadcasts to `shape`, [B, H, Tq, Tk]. Its last axis may be shorter."""
    fits = all(given in (1, size) for given, size in zip(attn_mask.shape[-2::-1], shape[-2::-1], strict=False))
    if attn_mask.ndim > len(shape) or not fits or any(keys > max(shape[-1], 1) for keys in attn_mask.shape[-1:]):
        rule = f"attn_mask must broadcast to {list(shape)}, with a last axis of at most {shape[-1]}"
        raise ValueError(f"{FUNCTION}: {rule}; got {list(attn_mask.shape)}")


def checked_lengths(nonpad_kv_seqlen: Array, batch: int, key_length: int) -> NDArray[np.int64]:
    """Check the lengths of a batch, from 0 to `key_length`."""
    name = "nonpad_kv_seqlen"
    _check_array(name, nonpad_kv_seqlen)
    dtype = nonpad_kv_seqlen.dtype
    if dtype.kind not in "iu" or not dtype.isnative:
        raise TypeError(f"{FUNCTION}: {name} must be integers, in native byte order; got {dtype}")
    if nonpad_kv_seqlen.shape != (batch,):
        raise ValueError(f"{FUNCTION}: {name} must be [B], here [{batch}]; got {list(nonpad_kv_seqlen.shape)}")
    for length in nonpad_kv_seqlen.tolist():
        if not 0 <= length <= key_length:
            raise ValueError(f"{FUNCTION}: {name} must be from 0 to {key_length}; got {length}")
    return nonpad_kv_seqlen.astype(np.int64, copy=False)


def _check_array(name: str, x: Any) -> None:
    if not isinstance(x, np.ndarray) or isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{FUNCTION}: {name} must be a NumPy array; got {name_of_type(x)}")


def _check_float(name: str, x: Any) -> None:
    _check_array(name, x)
    if x.dtype not in _NUMPY_FLOATS and dtype_name(x.dtype) not in LAYER_DTYPES:
        rule = f"{', '.join(LAYER_DTYPES[:-1])} or {LAYER_DTYPES[-1]}, in native byte order"
        raise TypeError(f"{FUNCTION}: {name} must be {rule}; got {dtype_name(x.dtype)}")


def _check_same(name: str, x: Any, like: str, other: Array) -> None:
    """Check that `x` is an array of the dtype of `other`, which is the input `like`."""
    _check_array(name, x)
    if x.dtype != other.dtype and (given := dtype_name(x.dtype)) != (wanted := dtype_name(other.dtype)):
        rule = f"{'be Boolean or ' if name == 'attn_mask' else ''}have the dtype of {like}"
        raise TypeError(f"{FUNCTION}: {name} must {rule}; got {like} {wanted}, {name} {given}")


def _split(name: str, x: Array, count_name: str, count: int | None) -> Array:
    """``[B, T, heads * width]`` as a view [B, heads, T, width]."""
    heads = 0 if count is None else checked_integer(FUNCTION, count_name, count, -(2**63))
    if heads < 1 or x.shape[2] % heads != 0:
        rule = f"{count_name} must be given, at least 1, and divide the last axis of {name}"
        raise ValueError(f"{FUNCTION}: {rule}; got {count_name} {count}, {name} {list(x.shape)}")
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).swapaxes(1, 2)


def _misfit(query: Array, key: Array, value: Array) -> str | None:
    """The rule that three shapes [B, heads, T, width] break together, if they do."""
    (batch, heads, _, width), (key_batch, kv_heads, length, key_width) = query.shape, key.shape
    if key_batch != batch:
        return f"K must have the batch size of Q, {batch}"
    if value.shape[0] != batch:
        return f"V must have the batch size of Q, {batch}"
    if value.shape[1] != kv_heads:
        return f"V must have the heads of K, {kv_heads}"
    if heads % kv_heads if kv_heads else heads:
        return "the heads of Q must be a multiple of the heads of K"
    if key_width != width:
        return f"the heads of K must be as wide as those of Q, {width}"
    if value.shape[2] != length:
        return f"V must have the length of K, {length}"
    return None
