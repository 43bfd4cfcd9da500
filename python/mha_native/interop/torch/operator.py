"""The operator mha_native::scaled_dot_product_attention of torch: its kernel, shapes and gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
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
    return options


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


def _recomputation(ctx: Any) -> tuple[list[int], list[torch.Tensor], Callable[..., Any]]:
    """Return which arguments want a gradient, these arguments, and the function of them in operations of torch."""
    tensors = ctx.saved_tensors
    wanted = [i for i in range(_DIFFERENTIABLE) if ctx.needs_input_grad[i]]

    def attend(*changed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        given = [*tensors, *ctx.numbers]
        for i, tensor in zip(wanted, changed, strict=True):
            given[i] = tensor
        return attention_by_torch(given[0], given[1], given[2], _options(given))

    return wanted, [tensors[i] for i in wanted], attend


def _of_all(wanted: list[int], found: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
    gradients = dict(zip(wanted, found, strict=True))
    return tuple(gradients.get(i) for i in range(len(_NAMES)))


def _gradient(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    wanted, inputs, attend = _recomputation(ctx)
    goes_on = torch.is_grad_enabled()  # a gradient of the gradient is wanted
    with torch.enable_grad():
        found = torch.autograd.grad(attend(*inputs), inputs, grads, create_graph=goes_on, allow_unused=True)
    return _of_all(wanted, found)


def _transformed_gradient(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Compute the gradient by torch.func, which works inside its transforms and takes more time than `_gradient`."""
    wanted, inputs, attend = _recomputation(ctx)
    _, pullback = torch.func.vjp(attend, *inputs)
    return _of_all(wanted, pullback(grads))


def _map(
    call: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], *arguments: Any
) -> tuple[tuple[torch.Tensor, ...], tuple[int, int]]:
    """Call a function for each part of a batch, as a rule of torch.vmap. `in_dims` are axes of mapped tensors."""
    columns = [
        x.unbind(axis) if isinstance(axis, int) else (x,) * info.batch_size
        for x, axis in zip(arguments, in_dims, strict=True)
    ]
    results = [call(*part) for part in zip(*columns, strict=True)]
    return tuple(map(torch.stack, zip(*results, strict=True))), (0, 0)


operator = torch.library.custom_op(
    "mha_native::scaled_dot_product_attention", _attend, mutates_args=(), device_types="cpu", schema=_SCHEMA
)
operator.register_fake(_shapes)
operator.register_autograd(_gradient, setup_context=_keep)
operator.register_vmap(functools.partial(_map, operator))


class Transformed(torch.autograd.Function):
    """The operator for transforms of torch.func, which read the gradient of a function and not of an operator."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return operator(*arguments)

    setup_context = staticmethod(_keep)
    backward = staticmethod(_transformed_gradient)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        return _map(Transformed.apply, info, in_dims, *arguments)
