"""The operators of torch for attention and its gradient: their kernels, shapes and rules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from ...functions.attention import scaled_dot_product_attention
from ...functions.gradient import AttentionGradients, attention_gradient
from ...functions.options import FunctionOptions

# An offset is a number, or one for each sequence in `query_offsets`, with a `query_offset` of 0.
_ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? attn_mask, Tensor? alibi_slopes, Tensor? position_bias, "
    "Tensor? sinks, Tensor? query_offsets, Tensor? key_lengths, Tensor? key_mask, Tensor? block_mask, bool is_causal, "
    "SymInt query_offset, SymInt[]? window, float? scale, float? softcap, float dropout_p, SymInt dropout_seed, "
    "int? num_threads"
)
_RESULTS = "Tensor out, Tensor lse, Tensor dout, Tensor? dlse, str[] wrt"
_NAMES = tuple(part.rpartition(" ")[2] for part in _ARGUMENTS.split(","))
_TENSORS = _NAMES.index("is_causal")
# Those that have a gradient: the other tensors are not of floating point, but for a mask that is added.
_DIFFERENTIABLE = AttentionGradients._fields
# Types without rules of their own for operators.
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, type(None)})


def _options(arguments: Sequence[Any]) -> FunctionOptions:
    """Return the score options among the arguments of the operator."""
    options: Any = {name: value for name, value in zip(_NAMES[3:-1], arguments[3:-1], strict=True) if value is not None}
    offsets = options.pop("query_offsets", None)
    if offsets is not None:
        options["query_offset"] = offsets
    if not options["dropout_p"]:
        del options["dropout_p"], options["dropout_seed"]
    if type(options.get("window")) is list:  # as torch hands it on
        options["window"] = tuple(options["window"])
    return options


def is_watched(*tensors: Any) -> bool:
    """Return whether something other than autograd wants to see the operator, in place of the call of its kernel."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or not _PLAIN.issuperset(map(type, tensors))
    )


def of_one_dtype(*tensors: Any) -> tuple[Any, ...]:
    """Return tensors of floating point, if their dtypes differ, in the dtype of autocast, which excludes float64."""
    if len({x.dtype for x in tensors if x is not None and x.is_floating_point()}) == 1:
        return tensors
    dtype = torch.get_autocast_dtype("cpu")
    is_cast = [x is not None and x.is_floating_point() and x.dtype != torch.float64 for x in tensors]
    return tuple(x.to(dtype) if cast else x for x, cast in zip(tensors, is_cast, strict=True))


def _detached(tensors: Sequence[Any]) -> list[Any]:
    return [None if x is None else x.detach() for x in tensors]


def _attend(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    tensors, numbers = _detached(arguments[:_TENSORS]), arguments[_TENSORS:]
    options = _options((*tensors, *numbers))
    result: tuple[torch.Tensor, torch.Tensor] = scaled_dot_product_attention(
        tensors[0], tensors[1], tensors[2], return_lse=True, num_threads=numbers[-1], **options
    )
    return result


def _shapes(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    query, key, value = arguments[:3]
    batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3])
    shape = (*batch, *query.shape[-3:-1], value.shape[-1])
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    return query.new_empty(shape), query.new_empty(shape[:-1], dtype=wide)


def _differentiate(*given: Any) -> list[torch.Tensor]:
    """Return the gradients by the arguments that `wrt`, the last of `given`, names in their order, in their dtypes."""
    tensors, numbers = _detached(given[:_TENSORS]), given[_TENSORS : len(_NAMES)]
    (out, lse, dout, dlse), wrt = _detached(given[len(_NAMES) : -1]), given[-1]
    found: Any = attention_gradient(
        tensors[0],
        tensors[1],
        tensors[2],
        out,
        lse,
        dout,
        dlse=dlse,
        wrt=tuple(wrt),
        num_threads=numbers[-1],
        **_options((*tensors, *numbers)),
    )
    gradients = []
    for gradient, x in zip(found, tensors, strict=False):
        if gradient is not None:  # of 16 bits, options have gradients of float32
            gradients.append(gradient if gradient.dtype == x.dtype else gradient.to(x.dtype))
    return gradients


def _shapes_of_gradients(*given: Any) -> list[torch.Tensor]:
    wanted = (x for name, x in zip(_DIFFERENTIABLE, given, strict=False) if name in given[-1])
    return [x.new_empty(x.shape) for x in wanted]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:_TENSORS], *output)
    ctx.numbers = inputs[_TENSORS:]


def _gradient_by(call: Callable[..., Any], ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """Return a gradient or None for each argument of the operator, by a function of the arguments of its gradient."""
    *tensors, out, lse = ctx.saved_tensors
    dout, dlse = grads
    wrt = [name for name, is_wanted in zip(_DIFFERENTIABLE, ctx.needs_input_grad, strict=False) if is_wanted]
    found = call(*tensors, *ctx.numbers, out, lse, torch.zeros_like(out) if dout is None else dout, dlse, wrt)
    gradients = dict(zip(wrt, found, strict=True))
    return tuple(map(gradients.get, _NAMES))


def _gradient(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    # A gradient of the gradient needs the operator, to be refused.
    call: Callable[..., Any] = gradient_operator if torch.is_grad_enabled() or is_watched(*grads) else _differentiate
    if any(x is not None and torch._C._functorch.is_legacy_batchedtensor(x) for x in grads):
        return _gradient_of_batch(call, ctx, grads)
    return _gradient_by(call, ctx, *grads)


def _gradient_of_batch(
    call: Callable[..., Any], ctx: Any, grads: tuple[torch.Tensor | None, ...]
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients for each part of a batch, of torch.autograd.grad with `is_grads_batched`."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    apart = [None if x is None else torch._remove_batch_dim(x, level, 1, 0) for x in grads]
    size = max(len(x) for x in apart if x is not None)
    columns = [[None] * size if x is None else x.expand(size, *x.shape[1:]) for x in apart]
    found = [_gradient_by(call, ctx, *part) for part in zip(*columns, strict=True)]
    whole = [None if parts[0] is None else torch.stack(parts) for parts in zip(*found, strict=True)]
    return tuple(None if x is None else torch._add_batch_dim(x, 0, level) for x in whole)


def _refuse(ctx: Any, *grads: Any) -> NoReturn:
    raise NotImplementedError(
        "scaled_dot_product_attention: second derivatives are not computed, as of torch.func.hessian or of backward() "
        "through a gradient; first derivatives are"
    )


def refuse_tangents(*_: Any) -> NoReturn:
    """Refuse forward mode, where torch would treat the result of an operator as a constant."""
    raise RuntimeError(
        "scaled_dot_product_attention: derivatives in forward mode are not computed, as of torch.func.jvp; those in "
        "reverse mode are, by backward() and torch.autograd.grad"
    )


def _map(
    call: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], *arguments: Any
) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
    """Call a function for each part of a batch, as a rule of torch.vmap. `in_dims` are axes of mapped tensors."""
    columns = [
        x.unbind(axis) if isinstance(axis, int) else (x,) * info.batch_size
        for x, axis in zip(arguments, in_dims, strict=True)
    ]
    results = [call(*part) for part in zip(*columns, strict=True)]
    stacked = tuple(map(torch.stack, zip(*results, strict=True)))
    return stacked, (0,) * len(stacked)


operator = torch.library.custom_op(
    "mha_native::scaled_dot_product_attention",
    _attend,
    mutates_args=(),
    device_types="cpu",
    schema=f"({_ARGUMENTS}) -> (Tensor, Tensor)",
)
operator.register_fake(_shapes)
operator.register_autograd(_gradient, setup_context=_keep)
operator.register_vmap(functools.partial(_map, operator))

gradient_operator = torch.library.custom_op(
    "mha_native::attention_gradient",
    _differentiate,
    mutates_args=(),
    device_types="cpu",
    schema=f"({_ARGUMENTS}, {_RESULTS}) -> Tensor[]",
)
gradient_operator.register_fake(_shapes_of_gradients)
gradient_operator.register_autograd(_refuse)


@gradient_operator.register_vmap
def _map_gradient(info: Any, in_dims: Any, *arguments: Any) -> tuple[list[torch.Tensor], list[int]]:
    found, axes = _map(gradient_operator, info, in_dims, *arguments)
    return [*found], [*axes]


class Recorded(torch.autograd.Function):
    """The operator where nothing but autograd sees it, which takes less time than the machinery of operators.

    Its arguments are those with a gradient and a tuple of the others: autograd looks at each.
    """

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        arguments = *given[:-1], *given[-1]
        result = _attend(*arguments)
        _keep(ctx, arguments, result)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return *_gradient(ctx, *grads)[: len(_DIFFERENTIABLE)], None


class Transformed(torch.autograd.Function):
    """The operator for transforms of torch.func, which read the gradient of a function and not of an operator."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return operator(*arguments)

    setup_context = staticmethod(_keep)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _gradient_by(TransformedGradient.apply, ctx, *grads)

    jvp = staticmethod(refuse_tangents)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        return _map(Transformed.apply, info, in_dims, *arguments)


class TransformedGradient(torch.autograd.Function):
    """The operator of the gradient for transforms of torch.func."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return tuple(gradient_operator(*arguments))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep nothing: the only use of a second derivative is its refusal."""

    backward = staticmethod(_refuse)
    jvp = staticmethod(_refuse)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        return _map(TransformedGradient.apply, info, in_dims, *arguments)
