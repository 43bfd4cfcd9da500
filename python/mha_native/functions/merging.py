"""Merging of results over shards of keys: the public function, which documents and forwards to the core."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .. import _core
from .arrays import Tensor, like, to_numpy
from .messages import name_of_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[Any]"

_FUNCTION = "merge_attention"

_MOST_AXES = 4  # of an array in the core


def merge_attention(
    outs: Sequence[Tensor] | Tensor,
    lses: Sequence[Tensor] | Tensor,
    *,
    out: Tensor | None = None,
    num_threads: int | None = None,
) -> tuple[Tensor, Tensor]:
    """``out = sum_s exp(lse_s - lse) * out_s`` with ``lse = log(sum_s exp(lse_s))``, over shards s of the keys.

    This is the result of `scaled_dot_product_attention` over all keys, from its results over each shard, with
    ``return_lse=True``. The keys of a call can be spread over processes or machines, or arrive in parts.

    Parameters
    ----------
    outs : sequence of S arrays [..., Tq, Dv], or one array [S, ..., Tq, Dv]
        Result of each shard, with any leading axes and strides; S is at least 1. NumPy arrays, or CPU tensors of any
        library that speaks DLPack, with one dtype in a call. With more than four axes, the first ones are copied unless
        they are contiguous.
    lses : sequence of S arrays [..., Tq], or one array [S, ..., Tq]
        Log-sum-exp of each shard, with one dtype: float64, or float32 if `outs` are not float64. An `lse` of 10 in
        float32 has an error of 5e-7, and so has the weight of its shard. Use float64 for results that you merge many
        times.
    out : [..., Tq, Dv], optional
        Array to write the result to. It may be ``outs[0]`` itself, to merge further shards into a running result;
        otherwise it must not overlap an input.
    num_threads : int, optional
        Threads for this call; default: `mha_native.num_threads`. The number does not change one bit of the result.

    Returns
    -------
    out : [..., Tq, Dv]
        With the dtype and kind of ``outs[0]``.
    lse : [..., Tq]
        With the dtype of `lses` and the same kind. Both can be merged with further shards.

    Raises
    ------
    TypeError, ValueError
        Before any work, if an argument breaks a rule; the message shows the dtypes or shapes of all.

    See Also
    --------
    scaled_dot_product_attention : Compute `out` and `lse` of a shard.

    Notes
    -----
    Each key must be in exactly one shard; a shard may be empty. Positions count from the first key of the shard. For a
    shard that begins at key k, give ``query_offset - k``, ``key_lengths - k`` (0 where this is negative), and its part
    of `attn_mask`. Give `sinks` to one shard only, because they count in its `lse`.

    Each row is computed in float64 and rounded once. A shard in which a row sees no key has an `lse` of minus infinity,
    and adds nothing to the row; its `out` is ignored. If a row sees no key in any shard, it is zeros with an `lse` of
    minus infinity. NaN or plus infinity in an `lse` makes only its own row NaN.

    Examples
    --------
    A causal call, and the same call in two shards of the keys:

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
    shard_lses = _shards("lses", lses) if shards else []  # without a shard, the message is about outs
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
    """Merge arrays with more axes than the core takes: join the first ones, by a copy where strides need one."""
    shape = outs[0].shape
    named = [(f"outs[{s}]", x, shape) for s, x in enumerate(outs)]
    named += [(f"lses[{s}]", x, shape[:-1]) for s, x in enumerate(lses)]
    for name, x, expected in named if out is None else [*named, ("out", out, shape)]:
        if x.shape != expected:
            rule = f"must have the shape {list(expected)}, by the shape of outs[0]"
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
