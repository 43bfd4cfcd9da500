"""Merging: the public function, which documents and forwards. Checks and work are in the core."""

from collections.abc import Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .arrays import Tensor, like, to_numpy
from .messages import name_of_type

Array: TypeAlias = NDArray[Any]

_FUNCTION = "merge_attention"

# Of an array of the core.
_MOST_AXES = 4


def merge_attention(
    outs: Sequence[Tensor] | Tensor,
    lses: Sequence[Tensor] | Tensor,
    *,
    out: Tensor | None = None,
    num_threads: int | None = None,
) -> tuple[Tensor, Tensor]:
    """``out = sum_s exp(lse_s - lse) * out_s`` with ``lse = log(sum_s exp(lse_s))``, over shards s of the keys.

    What `scaled_dot_product_attention` gives for all keys, from what it gives, with ``return_lse=True``, for each shard
    of them. So the keys of a call can be spread over processes or machines, or arrive in parts.

    Parameters
    ----------
    outs : sequence of S arrays [..., Tq, Dv], or one array [S, ..., Tq, Dv]
        Result of each shard; any leading axes, any strides, S at least 1. NumPy arrays, or CPU tensors of any library
        that speaks DLPack, of one dtype in a call. Beyond four axes the first ones must be one in memory, or they are
        copied.
    lses : sequence of S arrays [..., Tq], or one array [S, ..., Tq]
        Log-sum-exp of each shard, of one dtype: float64, or float32 where `outs` are not float64. An `lse` of 10 in
        float32 is off by 5e-7, and so is the share of what it stands for: results that will be merged again, with many
        others, are better off with float64.
    out : [..., Tq, Dv], optional
        Array to write the result to. It may be ``outs[0]`` itself, which merges further shards into a running result;
        otherwise it must not overlap an input.
    num_threads : int, optional
        Threads for this call; default: `mha_native.num_threads`. It does not change the result, not in one bit.

    Returns
    -------
    out : [..., Tq, Dv]
        Of the dtype and kind of ``outs[0]``.
    lse : [..., Tq]
        Of the dtype of `lses` and the same kind. Both can be merged with further shards.

    Raises
    ------
    TypeError, ValueError
        Before any work, if an argument breaks a rule; the message shows the dtypes or shapes of all.

    See Also
    --------
    scaled_dot_product_attention : Gives `out` and `lse` of a shard.

    Notes
    -----
    Every key is in exactly one shard; a shard may be empty. Positions are counted from the first key of the shard: one
    that begins at key k takes ``query_offset - k`` and ``key_lengths - k`` (0 where that is negative), and its part of
    `attn_mask`. `sinks` belong to one shard only, since they count in its `lse`.

    Each row is computed in float64 and rounded once. A shard in which a row sees no key, that is with an `lse` of minus
    infinity, adds nothing to the row, whatever its `out` holds; if no shard sees a key, the row is zeros with an `lse`
    of minus infinity. NaN or plus infinity in an `lse` makes its row NaN, and no other.

    Examples
    --------
    A causal call, and the same in two shards of the keys:

    >>> import numpy as np
    >>> import mha_native as mha
    >>> rng = np.random.default_rng(0)
    >>> query, key, value = rng.standard_normal((3, 2, 8, 6, 64), dtype=np.float32)
    >>> out, lse = mha.scaled_dot_product_attention(query, key, value, is_causal=True, return_lse=True)
    >>> options = {"is_causal": True, "return_lse": True}
    >>> first = mha.scaled_dot_product_attention(query, key[:, :, :4], value[:, :, :4], **options)
    >>> second = mha.scaled_dot_product_attention(query, key[:, :, 4:], value[:, :, 4:], query_offset=-4, **options)
    >>> merged, merged_lse = mha.merge_attention([first[0], second[0]], [first[1], second[1]])
    >>> np.allclose(merged, out, atol=1e-6), np.allclose(merged_lse, lse, atol=1e-6)
    (True, True)
    """
    shards = _shards("outs", outs)
    shard_lses = _shards("lses", lses) if shards else []  # without a shard there is nothing to say of lses
    target = None if out is None else _array("out", out)
    arrays = [*shards, *shard_lses, *([] if target is None else [target])]
    has_many_axes = bool(shards) and max(x.ndim for x in arrays) > _MOST_AXES
    merge = _merge_joined if has_many_axes else _core.merge_attention
    merged, lse = merge(shards, shard_lses, target, num_threads)
    like_this = outs[0] if isinstance(outs, list | tuple) else outs
    return like(like_this, merged) if out is None else out, like(like_this, lse)


def _merge_joined(
    outs: list[Array], lses: list[Array], out: Array | None, num_threads: int | None
) -> tuple[Array, Array]:
    """Of arrays with more axes than the core has: the first ones become one, by a copy where strides demand it."""
    shape = outs[0].shape
    named = [(f"outs[{s}]", x, shape) for s, x in enumerate(outs)]
    named += [(f"lses[{s}]", x, shape[:-1]) for s, x in enumerate(lses)]
    for name, x, expected in named if out is None else [*named, ("out", out, shape)]:
        if x.shape != expected:
            rule = f"must have the shape {list(expected)}, by that of outs[0]"
            raise ValueError(f"{_FUNCTION}: {name} {rule}; got {name} {list(x.shape)}")
    if out is not None and not out.flags.writeable:
        raise ValueError(f"{_FUNCTION}: out must be writable; got out {list(shape)}")

    def joined(x: Array) -> Array:
        return x.reshape(prod(shape[: 1 - _MOST_AXES]), *x.shape[len(shape) + 1 - _MOST_AXES :])

    target = None if out is None else joined(out)
    merged, lse = _core.merge_attention([joined(x) for x in outs], [joined(x) for x in lses], target, num_threads)
    merged = merged.reshape(shape)
    if out is not None and not np.may_share_memory(target, out):
        out[...] = merged
    return merged, lse.reshape(shape[:-1])


def _array(name: str, tensor: Tensor) -> Array:
    array = to_numpy(_FUNCTION, name, tensor)
    if not isinstance(array, np.ndarray):
        rule = "must be a NumPy array, or a CPU tensor that speaks DLPack"
        raise TypeError(f"{_FUNCTION}: {name} {rule}; got {name_of_type(array)}")
    return array


def _shards(name: str, tensors: Sequence[Tensor] | Tensor) -> list[Array]:
    if isinstance(tensors, list | tuple):
        return [_array(f"{name}[{s}]", tensor) for s, tensor in enumerate(tensors)]
    if not isinstance(tensors, np.ndarray) and not hasattr(tensors, "__dlpack__"):
        rule = "must be a list or tuple of arrays, or one array with the shards along its first axis"
        raise TypeError(f"{_FUNCTION}: {name} {rule}; got {name_of_type(tensors)}")
    stacked = _array(name, tensors)
    if stacked.ndim == 0:
        raise ValueError(f"{_FUNCTION}: {name} must have the shards along its first axis; got {name} []")
    return [stacked[s, ...] for s in range(len(stacked))]
