"""Attention as in the textbook, in NumPy and float64.

Arguments are the arguments of the functions and the layer of the same names, but they may be anything array-like.
Axes: B batch, H / Hk query / key-value heads, Tq / Tk lengths, D / Dv widths.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._errors import named
from .dropout import dropout_factors, taken_out
from .norms import normalize

Array = NDArray[np.float64]
Rotary: TypeAlias = tuple[ArrayLike, ArrayLike, bool]


@named
def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    attn_mask: ArrayLike | None = None,
    *,
    return_lse: bool = False,
    **options: Any,
) -> Any:
    """``softmax(scale * query @ key.T + masks) @ value``: [B, H, Tq, Dv], and [B, H, Tq] with `return_lse`.

    `options` are options of `attention_weights` and of `dropout_factors`.
    """
    dropout = taken_out(options)
    weights, lse, visible = _softmax_of_scores(query, key, attn_mask, **options)
    weights = weights * dropout_factors(weights.shape, query_offset=options.get("query_offset", 0), **dropout)
    value = _for_each_query_head(value, weights.shape[1])

    # A masked value is skipped, not multiplied by 0, which would keep NaN and infinity. So the sum over the keys is a
    # product of matrices for finite values, and other values are added where they are visible.
    finite = np.isfinite(value)
    out = weights @ np.where(finite, value, 0)
    for j in np.flatnonzero(~finite.all(axis=(0, 1, 3))):
        other = np.where(finite[:, :, j], 0, value[:, :, j])  # [B, H, Dv]
        with np.errstate(invalid="ignore"):
            term = weights[..., j, None] * other[:, :, None]
        out += np.where(visible[..., j, None] & ~finite[:, :, None, j], term, 0)

    rank = _rank_of_result(query, out)
    out = _with_rank(out, rank)
    return (out, _with_rank(lse, rank - 1)) if return_lse else out


@named
def scaled_dot_product_attention_varlen(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    *,
    attn_mask: ArrayLike | None = None,
    key_mask: ArrayLike | None = None,
    block_mask: ArrayLike | None = None,
    query_offset: ArrayLike = 0,
    key_lengths: ArrayLike | None = None,
    return_lse: bool = False,
    **options: Any,
) -> Any:
    """`scaled_dot_product_attention` of one sequence after another: [Nq, H, Dv], and [Nq, H] with `return_lse`."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))  # [N, heads, width]
    offsets_q, offsets_k = np.asarray(cu_seqlens_q), np.asarray(cu_seqlens_k)
    sequences = len(offsets_q) - 1
    mask = None if attn_mask is None else _with_rank(np.asarray(attn_mask), 3)  # [H | 1, Nq | 1, max Tk | 1]
    blocks = None if block_mask is None else _with_rank(np.asarray(block_mask), 4)
    starts = np.broadcast_to(query_offset, sequences)
    out = np.zeros((*query.shape[:2], value.shape[2]))
    lse = np.zeros(query.shape[:2])
    for b in range(sequences):
        q, k = slice(offsets_q[b], offsets_q[b + 1]), slice(offsets_k[b], offsets_k[b + 1])
        one = {**options, "query_offset": starts[b], "first_head": b * query.shape[1]}
        if mask is not None:
            columns = slice(None) if mask.shape[2] == 1 else slice(k.stop - k.start)
            one["attn_mask"] = mask[:, slice(None) if mask.shape[1] == 1 else q, columns]
        if key_mask is not None:
            one["key_mask"] = np.asarray(key_mask)[None, k]
        if blocks is not None:
            rows, columns = (-(-(s.stop - s.start) // 64) for s in (q, k))
            one["block_mask"] = blocks[b if len(blocks) > 1 else 0, :, :rows, :columns]
        if key_lengths is not None:
            one["key_lengths"] = np.asarray(key_lengths)[b]
        if options.get("alibi_slopes") is not None:
            slopes = _with_rank(np.asarray(options["alibi_slopes"]), 2)
            one["alibi_slopes"] = slopes[b if len(slopes) > 1 else 0]
        heads_first = (x.swapaxes(0, 1) for x in (query[q], key[k], value[k]))
        of_sequence = scaled_dot_product_attention(*heads_first, return_lse=True, **one)
        out[q], lse[q] = (x.swapaxes(0, 1) for x in of_sequence)
    return (out, lse) if return_lse else out


@named
def attention_weights(
    query: ArrayLike,
    key: ArrayLike,
    attn_mask: ArrayLike | None = None,
    *,
    stage: str = "weights",
    sinks: ArrayLike | None = None,
    **options: Any,
) -> Array:
    """``softmax(scale * query @ key.T + masks)``, or scores at an earlier `stage`: [B, H, Tq, Tk].

    `options` are `scale`, `softcap`, `alibi_slopes`, `position_bias` and the arguments of `visible_keys`.
    """
    if stage == "weights":
        result = _softmax_of_scores(query, key, attn_mask, sinks=sinks, **options)[0]
    else:
        result = _scores(query, key, attn_mask, stage=stage, **options)[0]
    return _with_rank(result, _rank_of_result(query, result))


@named
def attention_statistics(
    query: ArrayLike, key: ArrayLike, attn_mask: ArrayLike | None = None, **options: Any
) -> tuple[NDArray[Any], ...]:
    """Entropy, largest weight, first key with it, mean distance: [B, H, Tq]; and received weight: [B, H, Tk].

    `options` are options of `attention_weights`.
    """
    weights, _, _ = _softmax_of_scores(query, key, attn_mask, **options)
    position, j = _positions(weights.shape, options.get("query_offset", 0))
    entropy = -(weights * np.log(np.where(weights == 0, 1, weights))).sum(-1)  # 0 log 0 is 0
    max_weight = weights.max(-1, initial=0)
    with_one_more = np.pad(weights, [(0, 0), (0, 0), (0, 0), (0, 1)])  # there may be no keys
    max_key = np.where(max_weight > 0, with_one_more.argmax(-1), -1)
    mean_distance = (weights * np.abs(position - j)).sum(-1)
    statistics = entropy, max_weight, max_key, mean_distance, weights.sum(-2)
    return tuple(_with_rank(array, _rank_of_result(query, weights) - 1) for array in statistics)


@named
def attention_gradient(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    dout: ArrayLike,
    attn_mask: ArrayLike | None = None,
    *,
    dlse: ArrayLike = 0,
    **options: Any,
) -> dict[str, Array]:
    """Gradients by all arguments that have one, by name: the closed form, with the shapes of the arguments.

    `dout` and `dlse` are the gradients by the results of `scaled_dot_product_attention`; `options` are its options.
    """
    out = _with_rank(scaled_dot_product_attention(query, key, value, attn_mask, **options), 4)
    dropout = taken_out(options)
    weights, lse, _ = _softmax_of_scores(query, key, attn_mask, **options)
    kept = dropout_factors(weights.shape, query_offset=options.get("query_offset", 0), **dropout)
    arguments = {"query": query, "key": key, "value": value, "attn_mask": attn_mask}
    arguments |= {name: options[name] for name in ("alibi_slopes", "position_bias", "sinks") if name in options}
    q, k, v = (np.nan_to_num(_with_rank(np.asarray(x, np.float64), 4)) for x in (query, key, value))
    do = _with_rank(np.asarray(dout, np.float64), 4)
    group = q.shape[1] // max(k.shape[1], 1)
    delta = (do * out).sum(-1) - _with_rank(np.asarray(dlse, np.float64), 3)
    each = {"k": np.repeat(k, group, axis=1), "v": np.repeat(v, group, axis=1)}

    scores = weights * (kept * (do @ np.swapaxes(each["v"], -2, -1)) - delta[..., None])  # the gradients of the scores
    position, j = _positions(weights.shape, options.get("query_offset", 0))
    found = {"attn_mask": scores, "alibi_slopes": -(scores * np.abs(position - j)).sum((-2, -1))}
    if (table := options.get("position_bias")) is not None:
        farthest = np.shape(table)[1] // 2
        columns = np.broadcast_to(np.clip(j - position, -farthest, farthest) + farthest, scores.shape)
        found["position_bias"] = np.zeros(np.shape(table))
        for h in range(scores.shape[1]):
            np.add.at(found["position_bias"][h], columns[:, h], scores[:, h])
    if (sinks := options.get("sinks")) is not None:
        found["sinks"] = -(np.exp(np.asarray(sinks, np.float64)[:, None] - lse) * delta).sum((0, 2))

    products = scores * _slope_of_scores(q, each["k"], **options)
    of_keys = np.swapaxes(products, -2, -1) @ q, np.swapaxes(kept * weights, -2, -1) @ do  # for each query head
    found["query"] = products @ each["k"]
    found["key"], found["value"] = (x.reshape(len(x), k.shape[1], group, *x.shape[2:]).sum(2) for x in of_keys)
    return {name: _summed(found[name], np.shape(x)) for name, x in arguments.items() if x is not None}


def _slope_of_scores(q: Array, k: Array, scale: float | None = None, softcap: float | None = None, **_: Any) -> Any:
    """Return the derivatives of scores by the products of queries and keys."""
    scale = 1 / np.sqrt(max(q.shape[3], 1)) if scale is None else scale
    return scale if softcap is None else scale * (1 - np.tanh(scale * (q @ np.swapaxes(k, -2, -1)) / softcap) ** 2)


def _summed(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Return the sum over all axes that broadcasting has repeated."""
    repeated = (1,) * (gradient.ndim - len(shape)) + shape
    axes = tuple(i for i, (n, m) in enumerate(zip(gradient.shape, repeated, strict=True)) if n != m)
    total: Array = gradient.sum(axes, keepdims=True).reshape(shape)
    return total


@named
def multi_head_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    state: Mapping[str, ArrayLike],
    num_heads: int,
    *,
    num_kv_heads: int | None = None,
    add_zero_attn: bool = False,
    attn_mask: ArrayLike | None = None,
    need_weights: bool = False,
    qk_norm: str | None = None,
    qk_norm_eps: float | None = None,
    rotary: Rotary | None = None,
    positions: ArrayLike | None = None,
    **options: Any,
) -> Any:
    """``concat(head_1 ... head_H) W_O``, ``head_i = attention(query W_Q_i, key W_K_i, value W_V_i)``: [B, Tq, out_dim].

    `state` is a state dict of `MultiHeadAttention` or of ``torch.nn.MultiheadAttention``. `need_weights` adds the
    weights, [B, H, Tq, Tk], to the result; keys that the layer adds have further columns.

    `qk_norm` is the kind of norm of each head of queries and keys, "layer", "rms" or "rms_unit_offset", or None; with
    "rms_joint" one norm covers all heads of a row.
    `rotary` is (cos, sin, interleaved), as for `rotate`. Row i of the query has the position ``query_offset + i``, row
    j of the key the position j, or both have `positions`, [T] or [B, T].
    """
    weight = {name: np.asarray(array, np.float64) for name, array in state.items()}
    num_kv_heads = num_kv_heads or num_heads
    out_weight = weight["out_proj.weight"]
    kv_columns = out_weight.shape[1] // num_heads * num_kv_heads  # of the values: Hk * Dv

    if "in_proj_weight" in weight:
        stacked = weight["in_proj_weight"]  # rows: H * D of the queries, Hk * D of the keys, Hk * Dv of the values
        head_dim = (len(stacked) - kv_columns) // (num_heads + num_kv_heads)
        rows = [num_heads * head_dim, (num_heads + num_kv_heads) * head_dim]
        in_weights = np.split(stacked, rows)
    else:
        in_weights = [weight[f"{letter}_proj_weight"] for letter in "qkv"]
        rows = [len(in_weights[0]), len(in_weights[0]) + len(in_weights[1])]
    in_biases: Any = [weight.get(f"{letter}_proj_bias", 0) for letter in "qkv"]
    if "in_proj_bias" in weight:
        in_biases = np.split(weight["in_proj_bias"], rows)

    def heads(x: ArrayLike, i: int, count: int) -> Array:
        projected = np.asarray(x, np.float64) @ in_weights[i].T + in_biases[i]  # [..., T, count * D]
        return np.swapaxes(projected.reshape(*projected.shape[:-1], count, in_weights[i].shape[0] // count), -3, -2)

    q, k, v = heads(query, 0, num_heads), heads(key, 1, num_kv_heads), heads(value, 2, num_kv_heads)
    if qk_norm == "rms_joint":
        q, k = (_jointly_normalized(x, weight, f"{letter}_norm", qk_norm_eps) for x, letter in ((q, "q"), (k, "k")))
    elif qk_norm is not None:
        q, k = (normalize(x, weight, f"{letter}_norm", qk_norm, qk_norm_eps) for x, letter in ((q, "q"), (k, "k")))
    if rotary is not None:
        offset = np.reshape(options.get("query_offset", 0), (-1, 1, 1))  # [B or 1, heads, rows]
        of_query, of_key = offset + np.arange(q.shape[-2]), np.arange(k.shape[-2])
        if positions is not None:
            of_query = of_key = np.expand_dims(positions, -2)
        q, k = rotate(q, of_query, *rotary), rotate(k, of_key, *rotary)
    elif positions is not None:
        raise ValueError("positions must not be given without rotary")
    if count := ("bias_k" in weight) + add_zero_attn:
        shape = (*_with_rank(q, 4).shape[:3], k.shape[-2])
        attn_mask, options = _admit_added_keys(count, shape, attn_mask, **options)
        k, v = (_with_added_rows(x, weight.get(f"bias_{letter}"), add_zero_attn) for x, letter in ((k, "k"), (v, "v")))
    attended = np.swapaxes(scaled_dot_product_attention(q, k, v, attn_mask, **options), -3, -2)  # [..., Tq, H, Dv]
    out = attended.reshape(*attended.shape[:-2], out_weight.shape[1]) @ out_weight.T + weight.get("out_proj.bias", 0)
    return (out, attention_weights(q, k, attn_mask, **options)) if need_weights else out


@named
def rotate(x: ArrayLike, positions: ArrayLike, cos: ArrayLike, sin: ArrayLike, interleaved: bool = False) -> Array:
    """Rotate rows [..., T, D] by their `positions`, which broadcast to [..., T], with cos and sin [P, R / 2].

    ``(a, b)`` becomes ``(a cos - b sin, a sin + b cos)`` for each pair of the first R features: (i, R / 2 + i), or with
    `interleaved` (2 i, 2 i + 1).
    """
    x = np.array(x, np.float64)
    c, s = (np.asarray(table, np.float64)[np.asarray(positions)] for table in (cos, sin))  # [..., T, R / 2]
    pairs = c.shape[-1]
    first, second = (
        (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else (slice(pairs), slice(pairs, 2 * pairs))
    )
    a, b = x[..., first].copy(), x[..., second].copy()
    x[..., first], x[..., second] = a * c - b * s, a * s + b * c
    return x


@named
def visible_keys(
    shape: tuple[int, ...],
    *,
    is_causal: bool = False,
    query_offset: ArrayLike = 0,
    key_lengths: ArrayLike | None = None,
    window: tuple[int, int] | None = None,
    key_mask: ArrayLike | None = None,
    block_mask: ArrayLike | None = None,
) -> NDArray[np.bool_]:
    """Return which keys each query sees by all masks but `attn_mask`, for scores of `shape` [B, H, Tq, Tk]."""
    position, j = _positions(shape, query_offset)
    visible = np.ones(shape, bool)
    if is_causal:
        visible &= j <= position
    if window is not None:
        left, right = window
        visible &= (left == -1) | (position - j <= left)  # `position - left` might not fit 64 bits
        visible &= (right == -1) | (j - position <= right)
    if key_lengths is not None:
        visible &= j < np.reshape(key_lengths, (-1, 1, 1, 1))
    if key_mask is not None:
        visible &= np.expand_dims(np.asarray(key_mask, bool), (-3, -2))  # [B | 1, Tk] -> [B | 1, 1, 1, Tk]
    if block_mask is not None:
        blocks = np.asarray(block_mask, bool)
        for axis, length in ((-2, shape[2]), (-1, shape[3])):
            if blocks.shape[axis] != -(-length // 64):
                raise ValueError(f"block_mask must end in [ceil(Tq / 64), ceil(Tk / 64)]; got {list(blocks.shape)}")
            blocks = blocks.repeat(64, axis)
        visible &= blocks[..., : shape[2], : shape[3]]
    return visible


def _with_added_rows(x: Array, given: Array | None, add_zeros: bool) -> Array:
    """Append one or two rows to [..., Hk, T, D]: `given`, [1, 1, Hk * D], and zeros."""
    rows = [] if given is None else [given.reshape(x.shape[-3], 1, -1)]
    if add_zeros:
        rows.append(np.zeros((x.shape[-3], 1, x.shape[-1])))
    return np.concatenate([x, *(np.broadcast_to(row, (*x.shape[:-2], 1, x.shape[-1])) for row in rows)], axis=-2)


def _admit_added_keys(
    count: int,
    shape: tuple[int, ...],
    attn_mask: ArrayLike | None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    position_bias: ArrayLike | None = None,
    **masks: Any,
) -> tuple[Array, dict[str, Any]]:
    """Return one additive mask for all masks and biases, with 0 for `count` more keys, and the other options."""
    bias = np.asarray(True if attn_mask is None else attn_mask)
    bias = np.where(bias, 0, -np.inf) if bias.dtype == bool else bias
    if alibi_slopes is not None:
        position, j = _positions(shape, masks.get("query_offset", 0))
        bias = bias - _for_each_head(alibi_slopes) * np.abs(position - j)
    if position_bias is not None:
        bias = bias + _by_distance(position_bias, shape, masks.get("query_offset", 0))
    mask = np.where(visible_keys(shape, **masks), bias, -np.inf)
    return np.pad(mask, [(0, 0), (0, 0), (0, 0), (0, count)]), {"scale": scale, "softcap": softcap, "sinks": sinks}


def _scores(
    query: ArrayLike,
    key: ArrayLike,
    attn_mask: ArrayLike | None,
    *,
    stage: str = "masked",
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: ArrayLike | None = None,
    position_bias: ArrayLike | None = None,
    query_offset: ArrayLike = 0,
    key_lengths: ArrayLike | None = None,
    **masks: Any,
) -> tuple[Array, NDArray[np.bool_]]:
    """Return scores [B, H, Tq, Tk] at a stage, and which keys are visible; other scores are minus infinity."""
    query = _with_rank(np.asarray(query, np.float64), 4)
    key = _for_each_query_head(key, query.shape[1])
    if scale is None:
        scale = 1 / np.sqrt(max(query.shape[3], 1))

    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        scores = scale * (query @ np.swapaxes(key, -2, -1))
        if stage != "scaled" and softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        if stage in ("scaled", "capped"):
            exists = visible_keys(scores.shape, key_lengths=key_lengths)
            return np.where(exists, scores, -np.inf), exists
        if alibi_slopes is not None:
            position, j = _positions(scores.shape, query_offset)
            scores = scores - _for_each_head(alibi_slopes) * np.abs(position - j)
        if position_bias is not None:
            scores = scores + _by_distance(position_bias, scores.shape, query_offset)
        visible = visible_keys(scores.shape, query_offset=query_offset, key_lengths=key_lengths, **masks)
        if attn_mask is not None:
            attn_mask = np.asarray(attn_mask)
            is_boolean = attn_mask.dtype == bool
            visible = visible & (attn_mask if is_boolean else attn_mask != -np.inf)
            scores = scores if is_boolean else scores + attn_mask
    return np.where(visible, scores, -np.inf), visible


def _softmax_of_scores(
    query: ArrayLike,
    key: ArrayLike,
    attn_mask: ArrayLike | None,
    *,
    sinks: ArrayLike | None = None,
    **options: Any,
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return weights [B, H, Tq, Tk], lse [B, H, Tq], and which keys take part."""
    scores, visible = _scores(query, key, attn_mask, **options)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        sink = -np.inf if sinks is None else _for_each_head(sinks)  # a score without a value
        largest = np.maximum(scores.max(axis=-1, keepdims=True, initial=-np.inf), sink)
        largest = np.where(largest == -np.inf, 0, largest)  # without a key, the exponentials below are 0
        exponentials = np.exp(scores - largest)
        total = exponentials.sum(axis=-1, keepdims=True) + np.exp(sink - largest)
        weights = np.where(visible & (total != 0), exponentials / total, 0)
        lse = np.log(total) + largest
    return weights, lse[..., 0], visible


def _positions(shape: tuple[int, ...], query_offset: ArrayLike) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
    """Return positions of queries, [B | 1, 1, Tq, 1], and of keys, [Tk], for scores of `shape` [B, H, Tq, Tk]."""
    offsets = np.reshape(query_offset, (-1, 1, 1, 1))
    for offset in (offsets.min(initial=0), offsets.max(initial=0)):
        if abs(int(offset)) > 2**62:  # beyond, positions and distances might not fit 64 bits
            raise ValueError(f"query_offset must lie in [-2^62, 2^62]; got {offset}")
    offsets = offsets.astype(np.int64, casting="same_kind")
    return offsets + np.arange(shape[2])[:, None], np.arange(shape[3])


def _by_distance(position_bias: ArrayLike, shape: tuple[int, ...], query_offset: ArrayLike) -> Array:
    """Return the bias of each query and key: [H, 2 R + 1] -> [B | 1, H, Tq, Tk], by the `shape` [B, H, Tq, Tk]."""
    table = np.asarray(position_bias, np.float64)
    if table.ndim != 2 or table.shape[0] != shape[1] or table.shape[1] % 2 == 0:
        raise ValueError(f"position_bias must be [H, 2 R + 1] = [{shape[1]}, an odd number]; got {list(table.shape)}")
    farthest = table.shape[1] // 2
    position, j = _positions(shape, query_offset)
    columns = np.clip(j - position, -farthest, farthest)[:, 0] + farthest  # [B | 1, Tq, Tk]
    return np.moveaxis(table[:, columns], 0, 1)


def _for_each_head(numbers: ArrayLike) -> Array:
    """[H] -> [H, 1, 1], and [B, H] -> [B, H, 1, 1]."""
    return np.asarray(numbers, np.float64)[..., None, None]


def _for_each_query_head(array: ArrayLike, num_heads: int) -> Array:
    """[B, Hk, T, D] -> [B, H, T, D]: query head h reads key-value head h // (H // Hk)."""
    array = _with_rank(np.asarray(array, np.float64), 4)
    return np.repeat(array, num_heads // max(array.shape[1], 1), axis=1)


def _rank_of_result(query: ArrayLike, result: Array) -> int:
    """Return the rank of the query, or 4 if its batch is broadcast to the keys: `result` is [B, ...]."""
    return np.ndim(query) if len(result) == 1 else 4


def _jointly_normalized(x: Array, weight: Mapping[str, Array], name: str, eps: float | None) -> Array:
    """Return the heads [..., H, T, D] after one RMSNorm of the H D features of each row."""
    rows = np.swapaxes(x, -3, -2)
    normed = normalize(rows.reshape(*rows.shape[:-2], -1), weight, name, "rms", eps)
    return np.swapaxes(normed.reshape(rows.shape), -3, -2)


def _with_rank(array: Array, rank: int) -> Array:
    """Add leading axes of extent 1, or drop them."""
    shape = array.shape
    return array.reshape(shape[array.ndim - rank :] if rank < array.ndim else (1,) * (rank - array.ndim) + shape)
