"""Attention as functions of JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...functions.messages import in_the_name_of, shown
from ...functions.needed_packages import needed_package
from ...functions.options import KEYWORD_OPTIONS, KeywordOptions

with needed_package("mha_native.interop.jax", "jax", "jax"):
    import jax
    import jax.numpy as jnp

    from .xla_call import Array, attend

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

__all__ = ["dot_product_attention", "scaled_dot_product_attention"]

# Options that are constants of a compiled program.
_CONSTANTS = frozenset({"is_causal", "window", "scale", "softcap"})


def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    *,
    return_lse: bool = False,
    **options: Unpack[KeywordOptions],
) -> Any:
    """Compute `mha_native.scaled_dot_product_attention` of JAX arrays, also traced.

    Parameters
    ----------
    query : [B, H, Tq, D], [H, Tq, D] or [Tq, D]
    key : [B, Hk, Tk, D]
        `key` and `value` have the rank of `query`.
    value : [B, Hk, Tk, Dv]
    attn_mask : broadcastable to [B, H, Tq, Tk], optional
    return_lse : bool, default False
    **options
        As for that function, with arrays of JAX in place of arrays. `is_causal`, `window`, `scale`, `softcap`, and an
        int as `query_offset`, are constants of the compiled program and cannot be tracers.

    Returns
    -------
    out : [B, H, Tq, Dv]
        Has the rank and dtype of `query`.
    lse : [B, H, Tq]
        Only with `return_lse`: float64 for float64, else float32.

    Raises
    ------
    TypeError, ValueError
        While the call is traced, if shapes or dtypes break a rule.
    jax.errors.JaxRuntimeError
        While the program runs, if values of `key_lengths` break a rule.

    Notes
    -----
    XLA calls the compiled core, which reads and writes the buffers of XLA on at most
    `mha_native.num_threads` threads of XLA. The CPU is the only platform. ``vmap`` makes one call with a larger batch,
    or one call for each element if position biases or sinks are mapped. Arguments that are not mapped are repeated in
    memory, unless their batch size is 1.

    XLA calls `mha_native.attention_gradient` in the same way for gradients, without stored weights. Only first
    derivatives in reverse mode are supported: JAX refuses ``jax.jvp``, and second derivatives raise
    NotImplementedError.

    Examples
    --------
    >>> import jax  # doctest: +SKIP
    >>> from mha_native.interop.jax import scaled_dot_product_attention  # doctest: +SKIP
    >>> query = jax.random.normal(jax.random.key(0), (2, 8, 5, 64))  # doctest: +SKIP
    >>> jax.jit(scaled_dot_product_attention)(query, query, query).shape  # doctest: +SKIP
    (2, 8, 5, 64)
    """
    name = "scaled_dot_product_attention"
    for option in options:
        if option not in KEYWORD_OPTIONS:
            raise TypeError(f"{name}: got an unexpected keyword argument {shown(option)}")
    constants = {n: x for n, x in options.items() if n in _CONSTANTS or isinstance(x, int)}
    arrays = {"attn_mask": attn_mask} | {n: x for n, x in options.items() if n not in constants}
    out, lse = attend(query, key, value, arrays, constants)
    return (out, lse) if return_lse else out


def dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Array | None = None,
    key_value_seq_lengths: Array | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: None = None,
    return_residual: bool = False,
) -> Any:
    """Compute ``jax.nn.dot_product_attention`` by this library.

    Parameters
    ----------
    query : [B, T, N, H] or [T, N, H]
        In the letters of JAX: B batch, T queries, S keys, N heads, K heads of keys and values, H width of a head.
    key : [B, S, K, H] or [S, K, H]
    value : [B, S, K, H] or [S, K, H]
    bias : broadcastable to [B, N, T, S], optional
        Added to the scores. If it is of a wider dtype than `query`, all is computed in that.
    mask : boolean, broadcastable to [B, N, T, S], optional
        True means that the key takes part.
    scale : float, optional
        Default: ``1 / sqrt(H)``.
    is_causal : bool, default False
    query_seq_lengths : integer array [B], optional
        Queries beyond give zeros, and a residual of minus infinity.
    key_value_seq_lengths : integer array [B], optional
        Keys beyond do not take part.
    local_window_size : int or (left, right), optional
        A query sees this many keys before and after its position.
    implementation : None
        This is one by itself.
    return_residual : bool, default False
        Return the logarithm of the sum of the exponentials of the scores, too.

    Returns
    -------
    out : [B, T, N, H] or [T, N, H]
    residual : [B, T, N] or [T, N]
        Only with `return_residual`, of the dtype of `key`, and without a gradient.

    Raises
    ------
    TypeError, ValueError
        While the call is traced, if shapes or dtypes break a rule, or an argument has a value that is not computed.

    Notes
    -----
    Two results differ from JAX: a query that sees no key gives zeros, where JAX gives the average of all values; and
    the softmax of float64 is one of float64. `scaled_dot_product_attention` has notes about ``vmap`` and gradients.

    Examples
    --------
    >>> import jax  # doctest: +SKIP
    >>> from mha_native.interop.jax import dot_product_attention  # doctest: +SKIP
    >>> query = jax.random.normal(jax.random.key(0), (2, 5, 8, 64))  # doctest: +SKIP
    >>> dot_product_attention(query, query, query, is_causal=True).shape  # doctest: +SKIP
    (2, 5, 8, 64)
    """
    name = "dot_product_attention"
    if implementation is not None:
        raise ValueError(f"{name} implementation: must be None, as this is one by itself; got {shown(implementation)}")
    query, key, value = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
    if query.ndim not in (3, 4) or key.ndim != query.ndim or value.ndim != query.ndim:
        raise ValueError(
            f"{name}: query, key and value must all have shapes [B, T, N, H], or all [T, N, H]; got query "
            f"{list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
        )
    queries, keys = query.shape[-3], key.shape[-3]
    dtype, residual_dtype = query.dtype, key.dtype
    arrays: dict[str, Any] = {"attn_mask": mask}
    if mask is not None and jnp.asarray(mask).dtype != bool:
        raise TypeError(f"{name} mask: must be boolean, got {jnp.asarray(mask).dtype}; pass an additive mask as bias")
    if bias is not None:
        bias = jnp.asarray(bias)
        if not jnp.issubdtype(bias.dtype, jnp.floating):
            raise TypeError(f"{name} bias: must be of a floating dtype, got {bias.dtype}; a boolean one goes to mask")
        if query.dtype == key.dtype == value.dtype:  # other mixtures are refused below, as they are
            wide = jnp.promote_types(dtype, bias.dtype)
            query, key, value, bias = (x.astype(wide) for x in (query, key, value, bias))
        arrays["attn_mask"] = bias if mask is None else jnp.where(mask, bias, -jnp.inf)
    if key_value_seq_lengths is not None:
        arrays["key_lengths"] = jnp.clip(_lengths(name, "key_value_seq_lengths", key_value_seq_lengths), 0, keys)
    options = {"is_causal": is_causal, "scale": scale, "window": _window(name, local_window_size), "tokens_first": True}
    names = {"attn_mask": "mask" if bias is None else "bias", "key_lengths": "key_value_seq_lengths"}
    with in_the_name_of(name, window="local_window_size", **names):
        out, residual = attend(query, key, value, arrays, options)
    out, residual = out.astype(dtype), jax.lax.stop_gradient(residual).astype(residual_dtype)
    if query_seq_lengths is not None:
        lengths = _lengths(name, "query_seq_lengths", query_seq_lengths).reshape(-1, 1, 1)
        exists = jnp.arange(queries)[:, None] < lengths
        exists = exists if query.ndim == 4 else exists[0]
        out, residual = jnp.where(exists[..., None], out, 0), jnp.where(exists, residual, -jnp.inf)
    return (out, residual) if return_residual else out


def _lengths(function: str, name: str, lengths: Array) -> Any:
    lengths = jnp.asarray(lengths)
    if lengths.ndim != 1 or not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise ValueError(f"{function} {name}: must be integers [B], got {lengths.dtype} {list(lengths.shape)}")
    return lengths


def _window(function: str, size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    left, right = (size, size) if isinstance(size, int) else size
    if left < 0 or right < 0:
        raise ValueError(f"{function} local_window_size: must be 0 or more to both sides, got {shown(size)}")
    return int(left), int(right)
