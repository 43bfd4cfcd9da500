"""Checks of torch modules that `from_torch` reads: their class and their activation. Torch is not imported here."""

import functools
import sys
from typing import Any

from .._messages import listed


def checked_module(function: str, module: Any, kind: str) -> Any:
    """`module` if it is exactly a ``torch.nn.<kind>``. A derived class may compute something else: TypeError."""
    torch = sys.modules.get("torch")
    if torch is None or type(module) is not getattr(torch.nn, kind):
        given = f"{type(module).__module__}.{type(module).__qualname__}"
        raise TypeError(f"{function}: module: expected a plain torch.nn.{kind}; got {listed([given])}")
    return module


def activation_name(function: str, activation: Any) -> str:
    """The name in this library of a torch activation: a function, a partial function, or a module."""
    nn = sys.modules["torch"].nn
    keywords = {}
    if isinstance(activation, functools.partial) and not activation.args:
        keywords = dict(activation.keywords)
        keywords.pop("inplace", None)
        activation = activation.func
    if activation in (nn.functional.relu, sys.modules["torch"].relu) or type(activation) is nn.ReLU:
        if not keywords:
            return "relu"
    elif activation is nn.functional.gelu or type(activation) is nn.GELU:
        approximate = keywords.pop("approximate", getattr(activation, "approximate", "none"))
        name = {"none": "gelu", "tanh": "gelu_tanh"}.get(approximate)
        if name is not None and not keywords:
            return name
    raise ValueError(f"{function}: activation must be torch's relu or gelu; got {activation!r}")
