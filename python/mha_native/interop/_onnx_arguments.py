"""Checks of what the operator `Attention` of ONNX is given. Messages have the names of the operator, and its shapes."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._dtypes import LAYER_DTYPES, dtype_name
from .._scalars import checked_integer

Array: TypeAlias = NDArray[Any]

FUNCTION = "onnx_attention"


def check_dtypes(Q: Array, K: Array, V: Array, attn_mask: Any, past_key: Any, past_value: Any) -> None:
    """Check that the inputs are arrays, and their dtypes: one of Q and K, and one of V."""
    arrays = {"Q": Q, "K": K, "V": V, "attn_mask": attn_mask, "past_key": past_key, "past_value": past_value}
    dtypes = {name: _dtype_of(name, x) for name, x in arrays.items() if x is not None or len(name) == 1}
    for name in ("Q", "V"):
        if dtypes[name] not in LAYER_DTYPES:
            rule = f"{', '.join(LAYER_DTYPES[:-1])} or {LAYER_DTYPES[-1]}, in native byte order"
            raise TypeError(f"{FUNCTION}: {name} must be {rule}; got {dtypes[name]}")
    for name, like in (("K", "Q"), ("past_key", "Q"), ("past_value", "V"), ("attn_mask", "Q")):
        may_be_boolean = name == "attn_mask"
        if name not in dtypes or dtypes[name] == dtypes[like] or (may_be_boolean and dtypes[name] == "bool"):
            continue
        rule = f"{'be Boolean or ' if may_be_boolean else ''}have the dtype of {like}"
        raise TypeError(f"{FUNCTION}: {name} must {rule}; got {like} {dtypes[like]}, {name} {dtypes[name]}")


def split_heads(
    Q: Array, K: Array, V: Array, q_num_heads: int | None, kv_num_heads: int | None
) -> tuple[Array, Array, Array]:
    """The inputs as views [B, heads, T, width], whose sizes fit one another."""
    shapes = f"Q {list(Q.shape)}, K {list(K.shape)}, V {list(V.shape)}"
    if not Q.ndim == K.ndim == V.ndim or Q.ndim not in (3, 4):
        raise ValueError(f"{FUNCTION}: Q, K and V must all have three axes, or all four; got {shapes}")
    if Q.ndim == 3:
        Q = _split("Q", Q, "q_num_heads", q_num_heads, shapes)
        K, V = (_split(name, x, "kv_num_heads", kv_num_heads, shapes) for name, x in (("K", K), ("V", V)))
        shapes = f"q_num_heads {q_num_heads}, kv_num_heads {kv_num_heads}, {shapes}"
    elif q_num_heads is not None or kv_num_heads is not None:
        raise ValueError(
            f"{FUNCTION}: q_num_heads and kv_num_heads must not be given where Q has four axes; got {shapes}"
        )
    heads, kv_heads = Q.shape[1], K.shape[1]
    for holds, rule in (
        (K.shape[0] == Q.shape[0], f"K must have the batch size of Q, {Q.shape[0]}"),
        (V.shape[0] == Q.shape[0], f"V must have the batch size of Q, {Q.shape[0]}"),
        (V.shape[1] == kv_heads, f"V must have the heads of K, {kv_heads}"),
        (heads % kv_heads == 0 if kv_heads else heads == 0, "the heads of Q must be a multiple of the heads of K"),
        (K.shape[3] == Q.shape[3], f"the heads of K must be as wide as those of Q, {Q.shape[3]}"),
        (V.shape[2] == K.shape[2], f"V must have the length of K, {K.shape[2]}"),
    ):
        if not holds:
            raise ValueError(f"{FUNCTION}: {rule}; got {shapes}")
    return Q, K, V


def check_past(past_key: Array, past_value: Array, key: Array, value: Array) -> None:
    """Check the shapes of past keys and values beside the new ones, [B, Hk, T, width]."""
    for name, past, new in (("past_key", past_key, key), ("past_value", past_value, value)):
        if past.ndim != 4 or (*past.shape[:2], past.shape[3]) != (*new.shape[:2], new.shape[3]):
            batch, heads, _, width = new.shape
            raise ValueError(f"{FUNCTION}: {name} must be [{batch}, {heads}, P, {width}]; got {list(past.shape)}")
    if past_value.shape[2] != past_key.shape[2]:
        shapes = f"past_key {list(past_key.shape)}, past_value {list(past_value.shape)}"
        raise ValueError(f"{FUNCTION}: past_value must have the length of past_key; got {shapes}")


def check_mask(attn_mask: Array, shape: tuple[int, int, int, int]) -> None:
    """Check that a mask broadcasts to `shape`, [B, H, Tq, Tk], but for its last axis, which may be shorter."""
    fits = all(given in (1, size) for given, size in zip(attn_mask.shape[-2::-1], shape[-2::-1], strict=False))
    if attn_mask.ndim > len(shape) or not fits or any(keys > max(shape[-1], 1) for keys in attn_mask.shape[-1:]):
        rule = f"attn_mask must broadcast to {list(shape)}, with a last axis of at most {shape[-1]}"
        raise ValueError(f"{FUNCTION}: {rule}; got {list(attn_mask.shape)}")


def checked_lengths(nonpad_kv_seqlen: Array, batch: int, key_length: int) -> NDArray[np.int64]:
    """The lengths of a batch, from 0 to `key_length`."""
    name = "nonpad_kv_seqlen"
    dtype = _dtype_of(name, nonpad_kv_seqlen)
    if nonpad_kv_seqlen.dtype.kind not in "iu" or not nonpad_kv_seqlen.dtype.isnative:
        raise TypeError(f"{FUNCTION}: {name} must be integers, in native byte order; got {dtype}")
    if nonpad_kv_seqlen.shape != (batch,):
        raise ValueError(f"{FUNCTION}: {name} must be [B], here [{batch}]; got {list(nonpad_kv_seqlen.shape)}")
    for length in (nonpad_kv_seqlen.min(initial=key_length), nonpad_kv_seqlen.max(initial=0)):
        checked_integer(FUNCTION, f"each entry of {name}", length, 0, key_length)
    return nonpad_kv_seqlen.astype(np.int64)


def _dtype_of(name: str, x: Any) -> str:
    if not isinstance(x, np.ndarray) or isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{FUNCTION}: {name} must be a NumPy array; got {type(x).__name__}")
    return dtype_name(x.dtype)


def _split(name: str, x: Array, count_name: str, count: int | None, shapes: str) -> Array:
    """``[B, T, heads * width]`` as a view [B, heads, T, width]."""
    heads = 0 if count is None else checked_integer(FUNCTION, count_name, count, -(2**63))
    if heads < 1 or x.shape[2] % heads != 0:
        rule = f"{count_name} must be given, at least 1, and divide the last axis of {name}"
        raise ValueError(f"{FUNCTION}: {rule}; got {count_name} {count}, {shapes}")
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).swapaxes(1, 2)
