"""Attention with the signature of an ``AttentionInterface`` of transformers."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

import numpy as np
import torch

from ...functions.arrays import like, to_numpy
from ...functions.attention import scaled_dot_product_attention
from ..torch.attention import drawn_dropout
from ..torch.attention import scaled_dot_product_attention as recorded_attention
from .masks import options_of_mask

_NAME = "mha_native attention"

# The keys that each query sees, in place of a mask, as models with sparse attention name them.
_SPARSE = frozenset({"indices", "block_indices"})


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    cache: Any = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention for a layer of a model, as an `AttentionInterface` of transformers: [B, Tq, H, Dv], and None.

    Shapes are [B, H, Tq, D], [B, Hk, Tk, D] and [B, Hk, Tk, Dv]. `attention_mask`, a result of `mask` or of the caller,
    and `position_bias` broadcast to [B, H, Tq, Tk]; `s_aux` are sinks, [H]. Without a mask, several queries of a causal
    layer see the keys up to their own position. The generator of torch draws a seed for each call with `dropout`.
    """
    if cache is not None:
        raise RuntimeError(f"{_NAME}: paged caches are not read; use another attn_implementation to serve continuously")
    layer: Any = type(module)
    unread = _unread_by(layer)
    if not unread.isdisjoint(others):
        _refuse_unread({name: others[name] for name in unread & others.keys()})
    inputs: tuple[Any, ...] = query, key, value
    is_recorded = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (*inputs, attention_mask, position_bias, s_aux)
    )
    by_operator = is_recorded or dropout or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
    if not by_operator:  # a decoding step takes as long here as in the core, and reading sizes of tensors is slow
        inputs = to_numpy(_NAME, "query", query), to_numpy(_NAME, "key", key), to_numpy(_NAME, "value", value)
    q, k, v = inputs
    batch, heads, queries, _ = q.shape
    if attention_mask is None:
        is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        options: dict[str, Any] = {"is_causal": True} if is_causal and queries > 1 else {}
    else:
        options = options_of_mask(attention_mask, (len(k), queries, k.shape[2]), query.dtype)
    if position_bias is not None:
        options["attn_mask"] = _masked_bias(position_bias.to(query.dtype), options.get("attn_mask"))
    if s_aux is not None:
        options["sinks"] = _sinks(s_aux, query.dtype)
    if scaling is not None:
        options["scale"] = scaling
    if softcap is not None:
        options["softcap"] = softcap
    if dropout:
        options |= drawn_dropout(dropout)
    if by_operator:
        options = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
        recorded: Any = recorded_attention(query, key, value, **options)
        return recorded.transpose(1, 2), None

    out = np.empty((max(batch, len(k)), queries, heads, v.shape[3]), q.dtype)
    scaled_dot_product_attention(q, k, v, out=out.swapaxes(1, 2), **options)
    return like(query, out), None


@functools.cache
def _unread_by(layer: type) -> frozenset[str]:
    """Return the names of arguments that "eager" reads for a class of layers, and `attention` does not."""
    place = vars(sys.modules[layer.__module__]) if layer.__module__ in sys.modules else {}
    eager = [function for name, function in place.items() if name.endswith("eager_attention_forward")]
    read = {name for function in eager for name in list(inspect.signature(function).parameters)[4:]}  # after the value
    return (_SPARSE | read) - inspect.signature(attention).parameters.keys() - {"sliding_window"}  # which masks have


def _refuse_unread(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None:
            raise RuntimeError(f'{_NAME}: the argument {name} is not computed; use attn_implementation="eager"')


def _sinks(sinks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return sinks as they are, if they have `dtype`, else in the dtype of scores."""
    return sinks if sinks.dtype == dtype else sinks.to(torch.float64 if dtype == torch.float64 else torch.float32)


def _masked_bias(bias: torch.Tensor, mask: Any) -> torch.Tensor:
    """Add an additive `mask` to the bias; with a boolean mask, put minus infinity where it is False."""
    if mask is None:
        return bias
    mask = torch.as_tensor(mask)
    return bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask
