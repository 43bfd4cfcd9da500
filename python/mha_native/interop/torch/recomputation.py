"""Attention in operations of torch, for the gradient of the operator. Stores the scores of all queries and keys."""

from __future__ import annotations

import torch

from ...functions.options import ScoreOptions
from .._read_options import BLOCK, ReadOptions


def attention_by_torch(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `mha_native.scaled_dot_product_attention` of tensors and its `lse`.

    `query` is [B, H, Tq, D], [H, Tq, D] or [Tq, D]; other tensors and results have this rank, `out` also this dtype.
    RuntimeError for an option that is not read.
    """
    given = ReadOptions(options)
    rank, wide = query.ndim, torch.float64 if query.dtype == torch.float64 else torch.float32
    q, k, v = (x[(None,) * (4 - rank)].to(wide) for x in (query, key, value))
    heads, kv_heads, queries, keys = q.shape[1], k.shape[1], q.shape[2], k.shape[2]
    shared = kv_heads, heads // max(kv_heads, 1)
    position = torch.arange(queries, device=q.device)[:, None] + _each_sequence(given.get("query_offset", 0))
    distance = torch.arange(keys, device=q.device) - position  # [B or 1, Tq, Tk]
    seen = _seen(distance, given)
    # A key that no query sees may be NaN, and NaN times a weight of 0 is NaN.
    is_read = seen.flatten(1, 2).any(1) if seen.ndim == 4 else seen.any(-2)
    k, v = (x.masked_fill(~is_read[:, None, :, None], 0) for x in (k, v))

    scale = given.get("scale")
    groups = q.unflatten(1, shared)
    scores = (groups * (max(q.shape[3], 1) ** -0.5 if scale is None else scale)) @ k[:, :, None].mT
    scores = _modified(scores.flatten(1, 2), distance, given)
    scores = scores.masked_fill(~(seen if seen.ndim == 4 else seen[:, None]), -torch.inf)
    sinks = given.get("sinks")
    given.refuse_unread()
    sink = scores.new_full((heads,), -torch.inf) if sinks is None else sinks.to(wide)
    scores = torch.cat([scores, sink[:, None, None].expand(*scores.shape[:3], 1)], -1)

    largest = scores.detach().amax(-1, keepdim=True)
    powers = torch.exp(scores - largest.masked_fill(largest == -torch.inf, 0))
    total = powers.sum(-1, keepdim=True)
    sees_nothing = total == 0
    total = total.masked_fill(sees_nothing, 1)
    weights = (powers / total)[..., :keys].unflatten(1, shared)
    out = (weights @ v[:, :, None]).flatten(1, 2).to(query.dtype)
    lse = (largest + total.log()).masked_fill(sees_nothing, -torch.inf)[..., 0]
    for _ in range(4 - rank):
        out, lse = out[0], lse[0]
    return out, lse


def _each_sequence(number: int | torch.Tensor) -> int | torch.Tensor:
    """Return a number for all sequences as it is, and [B] as [B, 1, 1]."""
    return number[:, None, None] if isinstance(number, torch.Tensor) else number


def _seen(distance: torch.Tensor, given: ReadOptions) -> torch.Tensor:
    """Return which keys each query sees: [B or 1, Tq, Tk] or [B or 1, H or 1, Tq, Tk]."""
    queries, keys = distance.shape[-2:]
    seen = given.in_reach(torch.ones_like(distance, dtype=torch.bool)[(None,) * (3 - distance.ndim)], distance)
    if (lengths := given.get("key_lengths")) is not None:
        seen = seen & (torch.arange(keys, device=seen.device) < lengths[:, None, None])
    if (key_mask := given.get("key_mask")) is not None:
        seen = seen & torch.atleast_2d(key_mask)[:, None]
    if (blocks := given.get("block_mask")) is not None:
        pairs = blocks.repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)[..., :queries, :keys]
        seen = seen[:, None] & pairs[(None,) * (4 - pairs.ndim)]
    if (mask := given.get("attn_mask")) is not None and mask.dtype == torch.bool:
        seen = (seen if seen.ndim == 4 else seen[:, None]) & mask
    return seen


def _modified(scores: torch.Tensor, distance: torch.Tensor, given: ReadOptions) -> torch.Tensor:
    """Apply the cap and all biases to the scores [B, H, Tq, Tk]."""
    distance = distance[(None,) * (3 - distance.ndim)]
    if (softcap := given.get("softcap")) is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if (slopes := given.get("alibi_slopes")) is not None:
        scores = scores - slopes[..., None, None] * distance.abs()[:, None]
    if (bias := given.get("position_bias")) is not None:
        reach = bias.shape[1] // 2
        scores = scores + bias[:, distance.clamp(-reach, reach) + reach].transpose(0, 1)
    if (mask := given.get("attn_mask")) is not None and mask.dtype != torch.bool:
        scores = scores + mask
    return scores
