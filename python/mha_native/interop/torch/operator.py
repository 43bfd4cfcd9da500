"""The operator mha_native::scaled_dot_product_attention of torch: its kernel, shapes and gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...functions.attention import scaled_dot_product_attention
from ...functions.options import ScoreOptions
from .recomputation import attention_by_torch

# An offset is a number, or one for each sequence in `query_offsets`, with a `query_offset` of 0.
_SCHEMA = (
    "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, Tensor? alibi_slopes, Tensor? position_bias, "
    "Tensor? sinks, Tensor? query_offsets, Tensor? key_lengths, Tensor? key_mask, Tensor? block_mask, bool is_causal, "
    "SymInt query_offset, SymInt[]? window, float? scale, float? softcap, int? num_threads) -> (Tensor, Tensor)"
)
_NAMES = tuple(part.rpartition(" ")[2] for part in _SCHEMA.partition(")")[0].split(","))
_TENSORS = _NAMES.index("is_causal")
# Those that have a gradient: the other tensors are not of floating point, but for a mask that is added.
_DIFFERENTIABLE = _NAMES.index("query_offsets")


def _options(arguments: Sequence[Any]) -> ScoreOptions:
    """Return the score options among the arguments of the operator."""
    options: Any = {name: value for name, value in zip(_NAMES[3:-1], arguments[3:-1], strict=True) if value is not None}
    offsets = options.pop("query_offsets", None)
    if offsets is not None:
        options["query_offset"] = offsets
    if "window" in options:
        options["window"] = tuple(options["window"])
    return options  # type: ignore[no-any-return]


def _attend(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    query, key, value = arguments[:3]
    with torch.no_grad():
        result: tuple[torch.Tensor, torch.Tensor] = scaled_dot_product_attention(
            query, key, value, return_lse=True, num_threads=arguments[-1], **_options(arguments)
        )
    return result


def _shapes(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    query, key, value = arguments[:3]
    batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3])
    shape = (*batch, *query.shape[-3:-1], value.shape[-1])
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    return query.new_empty(shape), query.new_empty(shape[:-1], dtype=wide)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:_TENSORS])
    ctx.numbers = inputs[_TENSORS:]


def _gradient(ctx: Any, grad_out: torch.Tensor, grad_lse: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    tensors = ctx.saved_tensors
    query, key, value = tensors[:3]
    wanted = [i for i in range(_DIFFERENTIABLE) if ctx.needs_input_grad[i]]
    goes_on = torch.is_grad_enabled()  # a gradient of the gradient is wanted
    with torch.enable_grad():
        outputs = attention_by_torch(query, key, value, _options((*tensors, *ctx.numbers)))
        found = torch.autograd.grad(
            outputs, [tensors[i] for i in wanted], (grad_out, grad_lse), create_graph=goes_on, allow_unused=True
        )
    gradients: list[torch.Tensor | None] = [None] * len(_NAMES)
    for i, gradient in zip(wanted, found, strict=True):
        gradients[i] = gradient
    return tuple(gradients)


operator = torch.library.custom_op(
    "mha_native::scaled_dot_product_attention", _attend, mutates_args=(), device_types="cpu", schema=_SCHEMA
)
operator.register_fake(_shapes)
operator.register_autograd(_gradient, setup_context=_keep)
