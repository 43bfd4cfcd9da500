"""The operator `Attention` of ONNX, built from the public functions of this library."""

from typing import Any, Literal

import numpy as np

from ..functions.attention import attention_weights, scaled_dot_product_attention
from ..functions.messages import in_the_name_of
from ..functions.scalars import checked_choice, checked_integer, checked_real
from ._onnx_arguments import FUNCTION, Array, check_dtypes, check_mask, check_past, checked_lengths, split_heads

__all__ = ["onnx_attention"]

# The `stage` of attention_weights for each qk_matmul_output_mode. In the first two nothing is masked yet.
_STAGES: tuple[Literal["scaled", "capped", "masked", "weights"], ...] = ("scaled", "capped", "masked", "weights")
_MODES, _FIRST_MASKED_MODE = tuple(range(len(_STAGES))), 2

# Values of TensorProto.DataType that softmax_precision may have: float, float16, double, bfloat16.
_PRECISIONS = (1, 10, 11, 16)
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

    Arguments are NumPy arrays, with the names of the operator. B is the batch size, H and Hk the heads of Q and of K
    and V, Tq the number of queries, D and Dv the widths of a head. Tk counts all keys: P past keys and the keys of K.

    Parameters
    ----------
    Q : [B, H, Tq, D] or [B, Tq, H * D]
    K : [B, Hk, Tk - P, D] or [B, Tk - P, Hk * D]
        K and V have the rank of Q.
    V : [B, Hk, Tk - P, Dv] or [B, Tk - P, Hk * Dv]
        float32, float64, float16 or bfloat16. Q has one of these dtypes, too, perhaps another one.
    attn_mask : broadcastable to [B, H, Tq, Tk], optional
        Boolean: True means that the key takes part. Or of the dtype of Q: added to the scores. With three axes the
        first axis counts heads. A last axis shorter than Tk, even of one element, does not broadcast: the remaining
        keys are masked.
    past_key : [B, Hk, P, D], optional
        Keys that come before K.
    past_value : [B, Hk, P, Dv], optional
        Required with `past_key`, and not allowed without it.
    nonpad_kv_seqlen : integer array [B], optional
        The number of keys in each batch element, at most Tk; not allowed with `past_key`.
    is_causal : {0, 1}, default 0
        1: query i sees key j only if ``j <= offset + i``, with an offset of P; or of ``nonpad_kv_seqlen - Tq``, which
        may be negative; or of 0.
    q_num_heads, kv_num_heads : int
        H and Hk. Required for inputs with three axes, and not allowed for four.
    scale : float, optional
        Default: ``1 / sqrt(D)``.
    softcap : float, default 0
        Scores s become ``softcap * tanh(s / softcap)``, before masks are added; 0 disables this.
    qk_matmul_output_mode : {0, 1, 2, 3}, default 0
        The stage of the last result: 0, the scaled product; 1, after the softcap; 2, after masks; 3, after the softmax.
    softmax_precision : {1, 10, 11, 16}, optional
        11 computes in float64. The precision of the library is at least as high as every other value.
    left_window_size, right_window_size : int, default -1
        Query i sees key j only if ``offset + i - left <= j <= offset + i + right``; -1 is unbounded.

    Returns
    -------
    Y : [B, H, Tq, Dv] or [B, Tq, H * Dv]
        Has the rank and dtype of Q.
    present_key : [B, Hk, Tk, D]
        Past keys and K; without past keys, a view of K.
    present_value : [B, Hk, Tk, Dv]
    qk_matmul_output : [B, H, Tq, Tk]
        Has the dtype of Q. Modes 0 and 1 have a number for every key, mode 2 has minus infinity for masked keys.

    Raises
    ------
    TypeError, ValueError
        If an argument breaks a rule.

    See Also
    --------
    mha_native.scaled_dot_product_attention : Computes Y.
    mha_native.attention_weights : Computes `qk_matmul_output`.

    Notes
    -----
    A query that sees no key gives zeros, as the operator says. By the definition of the operator, NaN and
    infinity in masked keys and values reach results; in this function they do not. The product is scaled as a whole,
    and not Q and K by ``sqrt(scale)`` each, so a negative `scale` is valid. Where ONNX's reference implementation
    differs from the text of the operator, this function follows the text: mode 0 is not capped, and causal positions do
    not depend on the shape of `attn_mask`.

    The function always returns all four results, and computes `qk_matmul_output` in addition to Y.

    Examples
    --------
    Two new tokens after three in the cache:

    >>> import numpy as np
    >>> from mha_native.interop.onnx import onnx_attention
    >>> rng = np.random.default_rng(0)
    >>> new, past = rng.standard_normal((3, 1, 4, 2, 8)), rng.standard_normal((2, 1, 4, 3, 8))
    >>> Y, present_key, present_value, qk = onnx_attention(*new, None, *past, is_causal=1, qk_matmul_output_mode=3)
    >>> Y.shape, present_key.shape, qk.shape
    ((1, 4, 2, 8), (1, 4, 5, 8), (1, 4, 2, 5))
    >>> (qk > 0)[0, 0]
    array([[ True,  True,  True,  True, False],
           [ True,  True,  True,  True,  True]])
    """
    mode = checked_choice(FUNCTION, "qk_matmul_output_mode", qk_matmul_output_mode, _MODES)
    if softmax_precision is not None:
        checked_choice(FUNCTION, "softmax_precision", softmax_precision, _PRECISIONS)
    scores: dict[str, Any] = {"scale": None if scale is None else checked_real(FUNCTION, "scale", scale)}
    if (cap := checked_real(FUNCTION, "softcap", softcap)) < 0:
        raise ValueError(f"{FUNCTION}: softcap must be 0 or above; got {cap}")
    scores["softcap"] = None if cap == 0 else cap
    causal = int(is_causal) if type(is_causal) in (bool, np.bool_) else is_causal
    masks: dict[str, Any] = {
        "is_causal": checked_choice(FUNCTION, "is_causal", causal, (0, 1)) == 1,
        "window": (
            checked_integer(FUNCTION, "left_window_size", left_window_size, -1),
            checked_integer(FUNCTION, "right_window_size", right_window_size, -1),
        ),
    }
    check_dtypes(Q, K, V, attn_mask, past_key, past_value)
    query, key, value = split_heads(Q, K, V, q_num_heads, kv_num_heads)
    batch, heads, query_length = query.shape[:3]
    if past_key is not None or past_value is not None:
        if past_key is None or past_value is None:
            raise ValueError(f"{FUNCTION}: past_key and past_value must be given together")
        if nonpad_kv_seqlen is not None:
            raise ValueError(f"{FUNCTION}: nonpad_kv_seqlen must not be given with past_key and past_value")
        check_past(past_key, past_value, key, value)
        key, value = np.concatenate((past_key, key), axis=2), np.concatenate((past_value, value), axis=2)
        masks["query_offset"] = past_key.shape[2]
    elif nonpad_kv_seqlen is not None:
        lengths = checked_lengths(nonpad_kv_seqlen, batch, key.shape[2])
        masks |= {"key_lengths": lengths, "query_offset": lengths - query_length}
    if attn_mask is not None:
        check_mask(attn_mask, (batch, heads, query_length, key.shape[2]))
        masks["attn_mask"] = _padded(attn_mask, key.shape[2])
    present = key, value

    dtype = Q.dtype
    if V.dtype != dtype or softmax_precision == _DOUBLE:
        wide = np.float64 if softmax_precision == _DOUBLE or np.float64 in (dtype, V.dtype) else np.float32
        query, key, value = (x.astype(wide, copy=False) for x in (query, key, value))
        if attn_mask is not None and attn_mask.dtype != bool:
            masks["attn_mask"] = masks["attn_mask"].astype(wide, copy=False)

    out = np.empty((batch, query_length, heads, value.shape[3]), query.dtype) if Q.ndim == 3 else None
    try:
        y = scaled_dot_product_attention(
            query, key, value, **scores, **masks, out=None if out is None else out.swapaxes(1, 2)
        )
        if mode < _FIRST_MASKED_MODE:
            masks = {}  # in these modes padded keys have a score, too
        qk = attention_weights(query, key, stage=_STAGES[mode], **scores, **masks)
    except Exception:  # only then: the statement below takes a tenth of the time of a small call
        with in_the_name_of(FUNCTION, query="Q", key="K", value="V"):
            raise
    if out is not None:
        y = out.reshape(*out.shape[:2], out.shape[2] * out.shape[3])
    return y.astype(dtype, copy=False), *present, qk.astype(dtype, copy=False)


def _padded(attn_mask: Array, key_length: int) -> Array:
    """Extend the last axis of a mask to all keys; the added keys are masked."""
    if attn_mask.ndim == 0 or attn_mask.shape[-1] >= key_length:
        return attn_mask
    missing = [(0, 0)] * (attn_mask.ndim - 1) + [(0, key_length - attn_mask.shape[-1])]
    return np.pad(attn_mask, missing, constant_values=False if attn_mask.dtype == bool else -np.inf)
