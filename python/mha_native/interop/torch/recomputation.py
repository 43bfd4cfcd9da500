"""Attention by torch's own operations, which know their gradients: what the gradient of the operator recomputes."""

from __future__ import annotations

import torch

from ...functions.options import ScoreOptions

# Queries and keys for which one entry of a block mask stands.
_BLOCK = 64


def attention_by_torch(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """`mha_native.scaled_dot_product_attention` and its `lse`, with the [Tq, Tk] scores stored.

    Parameters
    ----------
    query : [B, H, Tq, D], [H, Tq, D] or [Tq, D]
    key, value : [B, Hk, Tk, D] and [B, Hk, Tk, Dv], likewise
    options : dict
        Tensors are those of torch.

    Returns
    -------
    out : [B, H, Tq, Dv]
        Of the rank and dtype of `query`.
    lse : [B, H, Tq]
    """
    rank, wide = query.ndim, torch.float64 if query.dtype == torch.float64 else torch.float32
    q, k, v = (x[(None,) * (4 - rank)].to(wide) for x in (query, key, value))
    heads, kv_heads, queries, keys = q.shape[1], k.shape[1], q.shape[2], k.shape[2]
    shared = kv_heads, heads // max(kv_heads, 1)
    position = torch.arange(queries, device=q.device)[:, None] + _each_sequence(options.get("query_offset", 0))
    distance = torch.arange(keys, device=q.device) - position  # [B or 1, Tq, Tk]
    seen = _seen(distance, options)
    # What nobody sees may be NaN, which times a weight of 0 would not vanish.
    is_read = seen.flatten(1, 2).any(1) if seen.ndim == 4 else seen.any(-2)
    k, v = (x.masked_fill(~is_read[:, None, :, None], 0) for x in (k, v))

    scale = options.get("scale")
    groups = q.unflatten(1, shared)
    scores = (groups * (max(q.shape[3], 1) ** -0.5 if scale is None else scale)) @ k[:, :, None].mT
    scores = _modified(scores.flatten(1, 2), distance, options)
    scores = scores.masked_fill(~(seen if seen.ndim == 4 else seen[:, None]), -torch.inf)
    sinks = options.get("sinks")
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
    """One number for all sequences, or [B] as [B, 1, 1]."""
    return number[:, None, None] if isinstance(number, torch.Tensor) else number


def _seen(distance: torch.Tensor, options: ScoreOptions) -> torch.Tensor:
    """Which keys a query sees: [B or 1, Tq, Tk], or with H or 1 behind B."""
    queries, keys = distance.shape[-2:]
    seen = torch.ones_like(distance, dtype=torch.bool)[(None,) * (3 - distance.ndim)]
    if options.get("is_causal"):
        seen = seen & (distance <= 0)
    left, right = options.get("window") or (-1, -1)
    if left >= 0:
        seen = seen & (distance >= -left)
    if right >= 0:
        seen = seen & (distance <= right)
    if (lengths := options.get("key_lengths")) is not None:
        seen = seen & (torch.arange(keys, device=seen.device) < lengths[:, None, None])
    if (key_mask := options.get("key_mask")) is not None:
        seen = seen & torch.atleast_2d(key_mask)[:, None]
    if (blocks := options.get("block_mask")) is not None:
        pairs = blocks.repeat_interleave(_BLOCK, -2).repeat_interleave(_BLOCK, -1)[..., :queries, :keys]
        seen = seen[:, None] & pairs[(None,) * (4 - pairs.ndim)]
    if (mask := options.get("attn_mask")) is not None and mask.dtype == torch.bool:
        seen = (seen if seen.ndim == 4 else seen[:, None]) & mask
    return seen


def _modified(scores: torch.Tensor, distance: torch.Tensor, options: ScoreOptions) -> torch.Tensor:
    """The scores [B, H, Tq, Tk] with a cap, and what is added to them."""
    distance = distance[(None,) * (3 - distance.ndim)]
    if (softcap := options.get("softcap")) is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if (slopes := options.get("alibi_slopes")) is not None:
        scores = scores - slopes[..., None, None] * distance.abs()[:, None]
    if (bias := options.get("position_bias")) is not None:
        reach = bias.shape[1] // 2
        scores = scores + bias[:, distance.clamp(-reach, reach) + reach].transpose(0, 1)
    if (mask := options.get("attn_mask")) is not None and mask.dtype != torch.bool:
        scores = scores + mask
    return scores
