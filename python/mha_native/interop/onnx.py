"""The operator `Attention` of ONNX, built from the public functions of this library."""

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..attention import attention_weights, scaled_dot_product_attention

__all__ = ["onnx_attention"]

Array: TypeAlias = NDArray[Any]

# The `stage` of attention_weights for each qk_matmul_output_mode. In the first two nothing is masked yet.
_STAGES: tuple[Literal["scaled", "capped", "masked", "weights"], ...] = ("scaled", "capped", "masked", "weights")
_FIRST_MASKED_MODE = 2

# Values of TensorProto.DataType that softmax_precision may have: float, float16, double, bfloat16.
_PRECISIONS = (None, 1, 10, 11, 16)
_DOUBLE = 11


def onnx_attention(
    Q: Array,
    K: Array,
    V: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    *,
    is_causal: int = 0,
    q_num_heads: int | None = None,
    kv_num_heads: int | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    qk_matmul_output_mode: int = 0,
    softmax_precision: int | None = None,
    left_window_size: int = -1,
    right_window_size: int = -1,
) -> tuple[Array, Array, Array, Array]:
    """``softmax(softcap(scale * Q @ K.T) + masks) @ V``: the operator `Attention` of ONNX, opsets 23 to 25.

    Arguments are NumPy arrays, and their names those of the operator. B is the batch size, H and Hk the heads of Q and
    of K and V, Tq the number of queries, D and Dv the widths of a head. Tk counts all keys: P past ones, if there are
    any, and those of K.

    Parameters
    ----------
    Q : [B, H, Tq, D] or [B, Tq, H * D]
    K : [B, Hk, Tk - P, D] or [B, Tk - P, Hk * D]
        Of the rank of Q, as is V.
    V : [B, Hk, Tk - P, Dv] or [B, Tk - P, Hk * Dv]
        Of the dtype of Q, or another one.
    attn_mask : broadcastable to [B, H, Tq, Tk], optional
        Boolean: True means that the key takes part. Or of the dtype of Q: added to the scores. With three axes the
        first one counts heads. A last axis shorter than Tk, be it of one element, does not broadcast: the keys behind
        it are masked.
    past_key : [B, Hk, P, D], optional
        Keys that come before K.
    past_value : [B, Hk, P, Dv], optional
        Given with `past_key`, and only with it.
    nonpad_kv_seqlen : int64 array [B], optional
        How many of the keys exist in each batch element, at most Tk; not with `past_key`.
    is_causal : {0, 1}, default 0
        1: query i sees key j only if ``j <= offset + i``, with an offset of P; or of ``nonpad_kv_seqlen - Tq``, which
        may be negative; or of 0.
    q_num_heads, kv_num_heads : int
        H and Hk, where Q, K and V have three axes, and only there.
    scale : float, optional
        Default: ``1 / sqrt(D)``.
    softcap : float, default 0
        Scores s become ``softcap * tanh(s / softcap)``, before anything is added to them; 0: they stay.
    qk_matmul_output_mode : {0, 1, 2, 3}, default 0
        What the last result holds: 0, the scaled product; 1, after the softcap; 2, after masks; 3, after the softmax.
    softmax_precision : {1, 10, 11, 16}, optional
        11 computes in float64. Every other one is met, or surpassed, by the precision that the library computes with.
    left_window_size, right_window_size : int, default -1
        Query i sees key j only if ``offset + i - left <= j <= offset + i + right``; -1 is unbounded.

    Returns
    -------
    Y : [B, H, Tq, Dv] or [B, Tq, H * Dv]
        As Q in rank and dtype.
    present_key : [B, Hk, Tk, D]
        Past keys and K; without past keys a view of K.
    present_value : [B, Hk, Tk, Dv]
    qk_matmul_output : [B, H, Tq, Tk]
        Of the dtype of Q. Modes 0 and 1 hold a number for every key, 2 minus infinity where a key is masked.

    Raises
    ------
    TypeError, ValueError
        If an argument breaks a rule.

    See Also
    --------
    mha_native.scaled_dot_product_attention : What Y comes from.
    mha_native.attention_weights : What `qk_matmul_output` comes from.

    Notes
    -----
    A query that sees no key gets zeros, as the operator says. Where the operator's definition lets NaN and infinities
    through, in keys and values that a mask hides, this function does not: what is masked never reaches a result. The
    product is scaled as a whole, not Q and K by ``sqrt(scale)`` each, so a negative `scale` has a meaning, too. And
    where ONNX's reference implementation departs from the text of the operator, this function keeps to the text: mode 0
    is not capped, and causal positions do not depend on the shape of `attn_mask`.

    All four results are always there, whether a model asks for them or not; `qk_matmul_output` is computed beside Y.

    Examples
    --------
    Two new tokens after three in the cache:

    >>> import numpy as np
    >>> from mha_native.compat import onnx_attention
    >>> rng = np.random.default_rng(0)
    >>> new, past = rng.standard_normal((3, 1, 4, 2, 8)), rng.standard_normal((2, 1, 4, 3, 8))
    >>> Y, present_key, present_value, qk = onnx_attention(*new, None, *past, is_causal=1, qk_matmul_output_mode=3)
    >>> Y.shape, present_key.shape, qk.shape
    ((1, 4, 2, 8), (1, 4, 5, 8), (1, 4, 2, 5))
    >>> (qk > 0)[0, 0]
    array([[ True,  True,  True,  True, False],
           [ True,  True,  True,  True,  True]])
    """
    if qk_matmul_output_mode not in range(len(_STAGES)):
        raise ValueError(f"onnx_attention: qk_matmul_output_mode must be 0, 1, 2 or 3; got {qk_matmul_output_mode}")
    if softmax_precision not in _PRECISIONS:
        raise ValueError(f"onnx_attention: softmax_precision must be 1, 10, 11 or 16; got {softmax_precision}")
    _check_dtypes(Q, K, V, attn_mask, past_key, past_value)

    is_flat = Q.ndim == 3
    query, key, value = _split_heads(Q, K, V, q_num_heads, kv_num_heads)
    batch, heads, query_length = query.shape[:3]
    offset: Any = 0
    if past_key is not None or past_value is not None:
        if past_key is None or past_value is None:
            raise ValueError("onnx_attention: past_key and past_value must be given together")
        if nonpad_kv_seqlen is not None:
            raise ValueError("onnx_attention: nonpad_kv_seqlen must not be given with past_key and past_value")
        key, value = _appended("past_key", past_key, key), _appended("past_value", past_value, value)
        offset = past_key.shape[2]
    elif nonpad_kv_seqlen is not None:
        offset = nonpad_kv_seqlen - query_length
    present = key, value

    dtype = Q.dtype
    if V.dtype != dtype or softmax_precision == _DOUBLE:
        wide = np.result_type(dtype, V.dtype, *([np.float64] if softmax_precision == _DOUBLE else []))
        query, key, value = (x.astype(wide, copy=False) for x in (query, key, value))
        if attn_mask is not None and attn_mask.dtype != bool:
            attn_mask = attn_mask.astype(wide, copy=False)

    scores: dict[str, Any] = {"scale": scale, "softcap": None if softcap == 0 else softcap}
    masks: dict[str, Any] = {
        "attn_mask": None if attn_mask is None else _padded(attn_mask, key.shape[2]),
        "is_causal": bool(is_causal),
        "query_offset": offset,
        "key_lengths": nonpad_kv_seqlen,
        "window": (left_window_size, right_window_size),
    }
    out = np.empty((batch, query_length, heads, value.shape[3]), query.dtype) if is_flat else None
    y = scaled_dot_product_attention(
        query, key, value, **scores, **masks, out=None if out is None else out.swapaxes(1, 2)
    )
    if qk_matmul_output_mode < _FIRST_MASKED_MODE:
        masks = {}  # in these modes padded keys have a score, too
    qk = attention_weights(query, key, stage=_STAGES[qk_matmul_output_mode], **scores, **masks)
    if out is not None:
        y = out.reshape(*out.shape[:2], out.shape[2] * out.shape[3])
    return y.astype(dtype, copy=False), *present, qk.astype(dtype, copy=False)


def _check_dtypes(
    Q: Array, K: Array, V: Array, attn_mask: Array | None, past_key: Array | None, past_value: Array | None
) -> None:
    """Check the dtypes here, because V and softmax_precision may change them before the library sees the arrays."""
    is_boolean = attn_mask is not None and attn_mask.dtype == bool
    for of, like, name, given in (
        ("Q", Q, "K", K),
        ("Q", Q, "past_key", past_key),
        ("V", V, "past_value", past_value),
        ("Q", Q, "attn_mask", None if is_boolean else attn_mask),
    ):
        if like.dtype.kind not in ("f", "V"):  # "V": of types that NumPy itself lacks, as bfloat16
            raise TypeError(f"onnx_attention: {of} must be a floating-point array; got {like.dtype}")
        if given is not None and given.dtype != like.dtype:
            rule = f"be Boolean or have the dtype of {of}" if name == "attn_mask" else f"have the dtype of {of}"
            raise TypeError(f"onnx_attention: {name} must {rule}; got {of} {like.dtype}, {name} {given.dtype}")


def _split_heads(
    Q: Array, K: Array, V: Array, q_num_heads: int | None, kv_num_heads: int | None
) -> tuple[Array, Array, Array]:
    """The inputs as views [B, heads, T, width]."""
    shapes = f"Q {list(Q.shape)}, K {list(K.shape)}, V {list(V.shape)}"
    if not Q.ndim == K.ndim == V.ndim or Q.ndim not in (3, 4):
        raise ValueError(f"onnx_attention: Q, K and V must all have three axes, or all four; got {shapes}")
    if Q.ndim == 4:
        if q_num_heads is not None or kv_num_heads is not None:
            raise ValueError(
                f"onnx_attention: q_num_heads and kv_num_heads must not be given where Q has four axes; got {shapes}"
            )
        return Q, K, V

    def split(name: str, x: Array, count_name: str, count: int | None) -> Array:
        if count is None or count < 1 or x.shape[2] % count != 0:
            rule = f"{count_name} must be given, at least 1, and divide the last axis of {name}"
            raise ValueError(f"onnx_attention: {rule}; got {count_name} {count}, {shapes}")
        return x.reshape(*x.shape[:2], count, x.shape[2] // count).swapaxes(1, 2)

    return (
        split("Q", Q, "q_num_heads", q_num_heads),
        split("K", K, "kv_num_heads", kv_num_heads),
        split("V", V, "kv_num_heads", kv_num_heads),
    )


def _appended(name: str, past: Array, new: Array) -> Array:
    """Past keys or values [B, Hk, P, width], and the new ones [B, Hk, T, width] behind them: [B, Hk, P + T, width]."""
    if past.ndim != 4 or (*past.shape[:2], past.shape[3]) != (*new.shape[:2], new.shape[3]):
        batch, heads, _, width = new.shape
        raise ValueError(f"onnx_attention: {name} must be [{batch}, {heads}, P, {width}]; got {list(past.shape)}")
    return np.concatenate((past, new), axis=2)


def _padded(attn_mask: Array, key_length: int) -> Array:
    """The mask with its last axis extended to all keys; the keys that it lacked are masked."""
    if attn_mask.ndim == 0 or attn_mask.shape[-1] >= key_length:
        return attn_mask
    missing = [(0, 0)] * (attn_mask.ndim - 1) + [(0, key_length - attn_mask.shape[-1])]
    return np.pad(attn_mask, missing, constant_values=False if attn_mask.dtype == bool else -np.inf)
