"""Masks of transformers as score options of this library, by their structure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import masking_utils

from .own_attention import has_own_parts, refuse_own_attention

# The distances that a query sees to the left and right of its position; -1 is unbounded.
Reach = tuple[int, int]

# Attributes of a tensor that do not need its elements.
_FIELDS = ("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda")
_METADATA = {getattr(torch.Tensor, field).__get__ for field in _FIELDS} | {torch.Tensor.size, torch.Tensor.dim}

# The memory of masks without elements.
_ANY = torch.zeros(1, dtype=torch.bool)

# Operations that read booleans as this library does: True where a query sees a key.
_CONDITIONAL = {torch.where, torch.nn.functional.scaled_dot_product_attention, torch.Tensor.__repr__}


class StructuredMask(torch.Tensor):
    """Booleans [B, 1, Tq, Tk], stored only if they must be: True where a query sees a key.

    Attention reads `options`, or the elements if `options` is None. Models may join masks, or select by them. Other
    operations raise RuntimeError: a model that computes with a mask means numbers to add, as "eager" has them.
    """

    options: dict[str, Any] | None  # the equivalent score options of this library
    sizes: tuple[int, int, int]  # B, Tq and Tk
    model_type: str
    _make_dense: Callable[[], torch.Tensor]
    _dense: torch.Tensor | None

    @staticmethod
    def of(
        sizes: tuple[int, int, int],
        options: dict[str, Any] | None,
        model_type: str,
        make_dense: Callable[[], torch.Tensor],
    ) -> StructuredMask:
        """Make a mask of these sizes and options. `make_dense` computes its elements when they are needed."""
        batch, queries, keys = sizes
        mask: StructuredMask = _ANY.expand(batch, 1, queries, keys).as_subclass(StructuredMask)
        mask.options, mask.sizes, mask.model_type = options, sizes, model_type
        mask._make_dense, mask._dense = make_dense, None
        return mask

    def dense(self) -> torch.Tensor:
        """Return the mask with elements in memory."""
        if self._dense is None:
            self._dense = self._make_dense()
        return self._dense

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _METADATA:
            return super().__torch_function__(func, types, args, kwargs or {})
        if func is torch.Tensor.contiguous or _is_to_cpu(func, args, kwargs or {}):  # called by generate, and by hooks
            return args[0]
        if func in _CONDITIONAL:
            return func(*_with_elements(args), **_with_elements(kwargs or {}))
        if func is torch.cat and all(type(x) is cls for x in args[0]):
            joined = func(*_with_elements(args), **(kwargs or {}))
            return cls.of((len(joined), *joined.shape[2:]), None, args[0][0].model_type, lambda: joined)
        masks = (x for x in (args[0] if func is torch.cat else args) if type(x) is cls)
        model = next((f" of type {x.model_type!r}" for x in masks), "")
        raise RuntimeError(
            f"mha_native: a model{model} applies {getattr(func, '__name__', func)} to its boolean attention mask, as "
            'attention of its own would; use attn_implementation="eager" or "sdpa" for this part of the model'
        )


def _is_to_cpu(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether a call moves a mask to the CPU, where it is, and converts nothing."""
    return func is torch.Tensor.to and [str(x) for x in args[1:]] == ["cpu"] and kwargs.keys() <= {"non_blocking"}


def _with_elements(arguments: Any) -> Any:
    """Replace structured masks in arguments by dense masks."""
    if isinstance(arguments, StructuredMask):
        return arguments.dense()
    if isinstance(arguments, list | tuple):
        parts = [_with_elements(each) for each in arguments]
        return parts if isinstance(arguments, list) else tuple(parts)
    if isinstance(arguments, dict):
        return {name: _with_elements(each) for name, each in arguments.items()}
    return arguments


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    config: Any = None,
    **others: Any,
) -> torch.Tensor | None:
    """Make the mask [B, 1, Tq, Tk] of the layers of a model, as an `AttentionMaskInterface` of transformers.

    `attention_mask`, boolean [B, S], is False for tokens that no query sees. None as the result means that the only
    query sees every key: without a mask for several, a layer would have to know whether it is causal. RuntimeError for
    a model that computes attention by itself.
    """
    refuse_own_attention(config)
    arguments = {
        "batch_size": batch_size,
        "q_length": q_length,
        "kv_length": kv_length,
        "kv_offset": kv_offset,
        "mask_function": mask_function,
        "attention_mask": attention_mask,
        "use_vmap": use_vmap,
        **others,
    }
    is_skipped = allow_is_causal_skip and q_length == 1
    if torch.compiler.is_compiling():  # which knows no structured masks: such an own part adds numbers
        make = masking_utils.eager_mask if has_own_parts(type(config)) else masking_utils.sdpa_mask
        return make(q_offset=q_offset, allow_is_causal_skip=is_skipped, **arguments)
    start = int(q_offset)  # static caches count in a tensor that they change
    reach = None if use_vmap else reach_of(mask_function)
    options: dict[str, Any] | None = None
    if reach is not None:
        offset = start - kv_offset
        options = _options_of_reach(reach, offset, q_length, kv_length)
        seen = kv_length if reach[1] < 0 else min(kv_length, offset + q_length + reach[1])  # by the last query too
        options |= _options_of_padding(attention_mask, kv_offset, kv_length, seen)
        if is_skipped and not options:
            return None
    made = StructuredMask.of(
        (batch_size, q_length, kv_length),
        options,
        getattr(config, "model_type", ""),
        lambda: masking_utils.sdpa_mask(q_offset=start, allow_is_causal_skip=False, **arguments),
    )
    if options is None:
        made.dense()  # while what the function reads is as it is now
    return made


def reach_of(mask_function: Callable[..., Any]) -> Reach | None:
    """Return the reach of a query under a mask function of transformers, or None for other kinds of masks."""
    if mask_function is masking_utils.causal_mask_function:
        return -1, 0
    if mask_function is masking_utils.bidirectional_mask_function:
        return -1, -1
    if getattr(mask_function, "__module__", None) != masking_utils.__name__:
        return None
    contents = [cell.cell_contents for cell in mask_function.__closure__ or ()]
    captured = dict(zip(mask_function.__code__.co_freevars, contents, strict=True))
    maker = mask_function.__qualname__.partition(".")[0]
    if maker == "sliding_window_overlay":
        return captured["sliding_window"] - 1, -1
    if maker == "sliding_window_bidirectional_overlay":
        return captured["sliding_window"], captured["sliding_window"]
    if maker != "and_masks":
        return None
    parts = [reach_of(part) for part in captured["mask_functions"]]
    lefts, rights = zip(*(part for part in parts if part is not None), strict=True) if all(parts) else ((), ())
    return (_nearest(lefts), _nearest(rights)) if lefts else None


def _nearest(bounds: tuple[int, ...]) -> int:
    return min((bound for bound in bounds if bound >= 0), default=-1)


def _options_of_reach(reach: Reach, offset: int, queries: int, keys: int) -> dict[str, Any]:
    """Return the options for a reach, for queries from position `offset` on."""
    left, right = reach
    if left >= offset + queries - 1:  # the last query sees the first key
        left = -1
    if right >= keys - 1 - offset:  # the first query sees the last key
        right = -1
    if (left, right) == (-1, -1):
        return {}
    options: dict[str, Any] = {"is_causal": True} if (left, right) == (-1, 0) else {"window": (left, right)}
    return options | ({"query_offset": offset} if offset != 0 else {})


def _options_of_padding(padding: torch.Tensor | None, kv_offset: int, kv_length: int, seen: int) -> dict[str, Any]:
    """Return options for padding: lengths if it is on the right, else a mask; empty if all `seen` keys exist."""
    if padding is None:
        return {}
    given = padding[:, kv_offset : kv_offset + kv_length].numpy()
    is_key = np.zeros((len(given), kv_length), np.bool_)
    is_key[:, : given.shape[1]] = given
    if is_key[:, :seen].all():
        return {}
    lengths = is_key.sum(1)
    if np.array_equal(is_key, np.arange(kv_length) < lengths[:, None]):
        return {"key_lengths": lengths}
    return {"key_mask": is_key}


def options_of_mask(mask: torch.Tensor, sizes: tuple[int, int, int], dtype: torch.dtype) -> dict[str, Any]:
    """Return the score options equivalent to `mask`, for B, Tq and Tk of a call in `dtype`."""
    if type(mask) is StructuredMask:
        if mask.options is not None and (mask.sizes == sizes or not mask.options):  # seen is everything, or these
            return dict(mask.options)
        mask = mask.dense()
    return {"attn_mask": mask if mask.dtype in (torch.bool, dtype) else mask.to(dtype)}


def options_of_layer(
    mask: torch.Tensor | None, sizes: tuple[int, int, int], dtype: torch.dtype, is_causal: bool, over_cache: bool
) -> dict[str, Any] | None:
    """Return the options of a layer, whose queries are the last keys; None if layers have no equivalent options.

    The `mask` is structured, boolean or additive, and broadcasts to [B, H, Tq, Tk]; `sizes` are B, Tq and Tk. Without a
    mask, several queries of a causal layer see the keys up to their own position. A cache takes no lengths.
    """
    _, queries, keys = sizes
    if mask is None:
        if not is_causal or queries == 1:
            return {}
        return {"is_causal": True} if queries == keys else None
    options = options_of_mask(mask, sizes, dtype)
    offset = options.pop("query_offset", 0)
    if offset != keys - queries and not options.keys().isdisjoint(("is_causal", "window")):
        options = options_of_mask(mask.dense(), sizes, dtype)
    if over_cache and "key_lengths" in options:
        options["key_mask"] = np.arange(keys) < options.pop("key_lengths")[:, None]
    dense = options.get("attn_mask")
    return options if dense is None or (dense.ndim == 4 and dense.shape[3] == keys) else None
