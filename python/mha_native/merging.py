"""Merging: attention over disjoint shards of the keys becomes attention over all of them.

It is elementwise and bound by memory, so NumPy does it; nothing here knows how a shard was computed.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ._arrays import Tensor, like, to_numpy

Array: TypeAlias = NDArray[Any]

_FUNCTION = "merge_attention"

# Elements of the float64 temporaries of one block of rows: 1 MiB, so that they stay in the second-level cache.
_BLOCK_ELEMENTS = 2**17

# How long NumPy may look for a common element of two arrays before they count as overlapping. Regular views, such as
# interleaved heads, take a few steps. Any, because the stubs of NumPy admit no bound but none.
_OVERLAP_WORK: Any = 10_000


def merge_attention(
    outs: Sequence[Tensor] | Tensor, lses: Sequence[Tensor] | Tensor, *, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """``out = sum_s exp(lse_s - lse) * out_s`` with ``lse = log(sum_s exp(lse_s))``, over shards s of the keys.

    What `scaled_dot_product_attention` gives for all keys, from what it gives, with ``return_lse=True``, for each shard
    of them. So the keys of a call can be spread over processes or machines, or arrive in parts.

    Parameters
    ----------
    outs : sequence of S arrays [..., Tq, Dv], or one array [S, ..., Tq, Dv]
        Result of each shard; any leading axes, any strides, S at least 1. NumPy arrays, or CPU tensors of any library
        that speaks DLPack, of float32 or float64 and one dtype in a call.
    lses : sequence of S arrays [..., Tq], or one array [S, ..., Tq]
        Log-sum-exp of each shard.
    out : [..., Tq, Dv], optional
        Array to write the result to. It may be ``outs[0]`` itself, which merges further shards into a running result;
        otherwise it must not overlap an input.

    Returns
    -------
    out : [..., Tq, Dv]
        Of the dtype and kind of ``outs[0]``.
    lse : [..., Tq]
        Of the same dtype and kind. Both can be merged with further shards.

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
    shards, shard_lses = _shards("outs", outs), _shards("lses", lses)
    merged = None if out is None else _array("out", out)
    _check(shards, shard_lses, merged)
    if merged is None:
        merged = np.empty(shards[0].shape, shards[0].dtype)
    lse = np.empty(shard_lses[0].shape, shards[0].dtype)
    # Of one row: partial sums; of each shard a score, its weight, and a step between them.
    row_elements = (len(shards).bit_length() + 2) * merged.shape[-1] + 3 * len(shards) + 3
    with np.errstate(all="ignore"):  # infinities and NaN are values like any other here
        for block in _blocks(lse.shape, max(_BLOCK_ELEMENTS // row_elements, 1)):
            merged[block], lse[block] = _merge([x[block] for x in shards], [x[block] for x in shard_lses])
    like_this = outs[0] if isinstance(outs, list | tuple) else outs
    return like(like_this, merged) if out is None else out, like(like_this, lse)


def _merge(outs: list[Array], lses: list[Array]) -> tuple[Array, Array]:
    """Out [..., T, Dv] and lse [..., T] in float64, from those of each shard."""
    scores = np.array(lses, np.float64)  # [S, ..., T]
    largest = scores.max(0)
    largest[largest == -np.inf] = 0  # no shard sees a key: every weight below is exp(-inf), and not NaN
    weights = np.exp(scores - largest)
    # In pairs, and not by NumPy's sum over an axis, whose order depends on the number of rows.
    total = _sum(weights.__getitem__, 0, len(weights))
    weights = weights / total
    unseen = scores == -np.inf

    def term(s: int) -> Array:
        weighted: Array = outs[s] * weights[s][..., None]
        weighted[unseen[s]] = 0  # the `out` of a row that sees nothing may hold NaN
        return weighted

    return _sum(term, 0, len(outs)), largest + np.log(total)


def _sum(term: Callable[[int], Array], first: int, last: int) -> Array:
    """``term(first) + ... + term(last - 1)`` in pairs: each goes through ``log2(last - first)`` roundings."""
    if last - first == 1:
        return term(first)
    middle = (first + last) // 2
    return _sum(term, first, middle) + _sum(term, middle, last)


def _blocks(shape: tuple[int, ...], size: int) -> Iterator[tuple[int | slice, ...]]:
    """Indices that cut an array of `shape` into blocks of at most `size` elements, without copies for any strides."""
    axis = next(axis for axis in range(len(shape)) if prod(shape[axis + 1 :]) <= size)
    step = size // max(prod(shape[axis + 1 :]), 1)
    for outer in product(*map(range, shape[:axis])):
        for start in range(0, shape[axis], step):
            yield (*outer, slice(start, start + step))


def _array(name: str, tensor: Tensor) -> Array:
    array = to_numpy(_FUNCTION, name, tensor)
    if not isinstance(array, np.ndarray):
        rule = "must be a NumPy array, or a CPU tensor that speaks DLPack"
        raise TypeError(f"{_FUNCTION}: {name} {rule}; got {type(array).__name__}")
    return array


def _shards(name: str, tensors: Sequence[Tensor] | Tensor) -> list[Array]:
    if isinstance(tensors, list | tuple):
        return [_array(f"{name}[{s}]", tensor) for s, tensor in enumerate(tensors)]
    if not isinstance(tensors, np.ndarray) and not hasattr(tensors, "__dlpack__"):
        rule = "must be a list or tuple of arrays, or one array with the shards along its first axis"
        raise TypeError(f"{_FUNCTION}: {name} {rule}; got {type(tensors).__name__}")
    stacked = _array(name, tensors)
    if stacked.ndim == 0:
        raise ValueError(f"{_FUNCTION}: {name} must have the shards along its first axis; got {name} []")
    return [stacked[s, ...] for s in range(len(stacked))]


def _check(outs: list[Array], lses: list[Array], out: Array | None) -> None:
    """Every rule about dtypes, shapes and memory."""

    def given(attribute: str) -> str:
        listed = []
        for name, arrays in (("outs", outs), ("lses", lses), ("out", [] if out is None else [out])):
            words = [str(x.dtype) if attribute == "dtype" else str(list(x.shape)) for x in arrays]
            if name == "out":
                listed += [f"out {word}" for word in words]
            elif len(set(words)) == 1:  # a stacked array may have very many
                listed.append(f"{name} {len(words)} x {words[0]}")
            else:
                listed.append(f"{name} ({', '.join(words)})")
        return ", ".join(listed)

    def refuse(rule: str) -> ValueError:
        return ValueError(f"{_FUNCTION}: {rule}; got {given('shape')}")

    if not outs:
        raise refuse("outs must have at least one shard")
    if len(lses) != len(outs):
        raise refuse(f"lses must have as many shards as outs, {len(outs)}")

    named = [(f"outs[{s}]", x) for s, x in enumerate(outs)] + [(f"lses[{s}]", x) for s, x in enumerate(lses)]
    dtype = outs[0].dtype
    for name, x in named if out is None else [*named, ("out", out)]:
        if x.dtype not in (np.float32, np.float64):
            rule = "must be float32 or float64, in native byte order"
            raise TypeError(f"{_FUNCTION}: {name} {rule}; got {given('dtype')}")
        if x.dtype != dtype:
            raise TypeError(f"{_FUNCTION}: {name} must be of the dtype of outs[0], {dtype}; got {given('dtype')}")

    shape = outs[0].shape
    if len(shape) < 2:
        raise refuse("outs[0] must have two axes at least, [..., Tq, Dv]")
    for s, (shard, lse) in enumerate(zip(outs, lses, strict=True)):
        if shard.shape != shape:
            raise refuse(f"outs[{s}] must have the shape of outs[0], {list(shape)}")
        if lse.shape != shape[:-1]:
            raise refuse(f"lses[{s}] must have the shape of outs[0] without its last axis, {list(shape[:-1])}")

    if out is None:
        return
    if out.shape != shape:
        raise refuse(f"out must have the shape of outs[0], {list(shape)}")
    if not out.flags.writeable:
        raise refuse("out must be writable")
    if _overlaps_itself(out):
        raise refuse("out must not have two indices for one element (a stride of 0)")
    for name, x in named:
        if np.may_share_memory(out, x, max_work=_OVERLAP_WORK) and not (name == "outs[0]" and _is_same(out, x)):
            raise refuse(f"out must not overlap {name} in memory, unless it is outs[0] itself")


def _steps(array: Array) -> list[tuple[int, int]]:
    """Stride and extent of each axis that has more than one element."""
    return [(stride, n) for stride, n in zip(array.strides, array.shape, strict=True) if n > 1]


def _is_same(a: Array, b: Array) -> bool:
    """Whether two arrays of one shape and dtype have each element at the same place."""
    return bool(a.__array_interface__["data"][0] == b.__array_interface__["data"][0] and _steps(a) == _steps(b))


def _overlaps_itself(array: Array) -> bool:
    reach = array.itemsize
    for stride, n in sorted((abs(stride), n) for stride, n in _steps(array)):
        if stride < reach and array.size:  # an axis must step over all that those of smaller strides reach
            return True
        reach += (n - 1) * stride
    return False
