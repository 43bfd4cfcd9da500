"""Linear maps, norms and activations as operators of torch, with gradients by the kernels of this library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from ...functions.activation import activation, activation_gradient
from ...functions.linear import linear, linear_gradient
from ...functions.norm_gradient import layer_norm_gradient
from ...layers.layer_norm import LayerNorm
from .operator import is_watched, of_one_dtype

_NAMES = ("x", "weight", "bias")  # of arguments with a gradient


class RowOperator:
    """An operator of x [..., I], weight, bias and constants, of which each row of the result needs one row of x.

    `forward` returns the result, and `gradient` the gradients by the arguments that its last argument names. The
    result has as many columns as `weight` has rows, or as x.
    """

    def __init__(self, name: str, constants: str, forward: Callable[..., Any], gradient: Callable[..., Any]) -> None:
        self._name, self._forward, self._gradient = name, forward, gradient
        library: Any = torch.library.custom_op
        kind: dict[str, Any] = {"mutates_args": (), "device_types": "cpu"}
        inputs = f"Tensor x, Tensor? weight, Tensor? bias{constants}"
        self._operator = library(f"mha_native::{name}", self._compute, schema=f"({inputs}) -> Tensor", **kind)
        self._operator.register_fake(self._shape)
        self._operator.register_autograd(self._backward, setup_context=_keep)
        self._of_gradient = library(
            f"mha_native::{name}_gradient",
            self._differentiate,
            schema=f"({inputs}, Tensor dout, str[] wrt) -> Tensor[]",
            **kind,
        )
        self._of_gradient.register_fake(self._shapes_of_gradients)
        self._of_gradient.register_autograd(self._refuse)

    def __call__(self, x: Any, weight: Any = None, bias: Any = None, *constants: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            x, weight, bias = of_one_dtype(x, weight, bias)
        if is_watched(x, weight, bias):
            return self._operator(x, weight, bias, *constants)
        return _Recorded.apply(x, weight, bias, (self, constants))

    def _compute(self, *given: Any) -> torch.Tensor:
        found: torch.Tensor = self._forward(*_detached(given[:3]), *given[3:])
        return found

    def _shape(self, x: torch.Tensor, weight: torch.Tensor | None, *_: Any) -> torch.Tensor:
        is_matrix = weight is not None and weight.ndim == 2
        return x.new_empty((*x.shape[:-1], weight.shape[0]) if weight is not None and is_matrix else x.shape)

    def _differentiate(self, *given: Any) -> list[torch.Tensor]:
        *inputs, dout, wrt = given
        found = self._gradient(*_detached(inputs[:3]), *inputs[3:], dout.detach(), tuple(wrt))
        return [getattr(found, name) for name in wrt]

    def _shapes_of_gradients(self, *given: Any) -> list[torch.Tensor]:
        return [x.new_empty(x.shape) for name, x in zip(_NAMES, given, strict=False) if name in given[-1]]

    def _backward(self, ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        wrt = [name for name, is_wanted in zip(_NAMES, ctx.needs_input_grad, strict=False) if is_wanted]
        call = self._of_gradient if torch.is_grad_enabled() or is_watched(dout) else self._differentiate
        found = dict(zip(wrt, call(*ctx.saved_tensors, *ctx.constants, dout, wrt), strict=True))
        return (*map(found.get, _NAMES), *(None for _ in ctx.constants))

    def _refuse(self, ctx: Any, *grads: Any) -> NoReturn:
        raise NotImplementedError(f"{self._name}: second derivatives are not computed; first derivatives are")


def _detached(tensors: Sequence[Any]) -> list[Any]:
    return [None if x is None else x.detach() for x in tensors]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.constants = inputs[3:]


class _Recorded(torch.autograd.Function):
    """An operator where nothing but autograd sees it, which takes less time than the machinery of operators."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, call: tuple[RowOperator, tuple[Any, ...]]) -> Any:
        ctx.operator, constants = call
        _keep(ctx, (x, weight, bias, *constants), None)
        return ctx.operator._compute(x, weight, bias, *constants)

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *ctx.operator._backward(ctx, dout)[:3], None


apply_linear = RowOperator(
    "linear",
    "",
    linear,
    lambda x, weight, bias, dout, wrt: linear_gradient(x, weight, dout, wrt=wrt),
)
apply_layer_norm = RowOperator(
    "layer_norm",
    ", float eps",
    lambda x, weight, bias, eps: LayerNorm.from_weights(weight, bias, eps=eps)(x),
    lambda x, weight, bias, eps, dout, wrt: layer_norm_gradient(x, weight, dout, eps=eps, wrt=wrt),
)
apply_activation = RowOperator(
    "activation",
    ", str activation",
    lambda x, weight, bias, name: activation(x, activation=name),
    lambda x, weight, bias, name, dout, wrt: activation_gradient(x, dout, activation=name),
)
