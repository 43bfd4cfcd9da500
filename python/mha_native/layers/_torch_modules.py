"""Checks of torch modules that `from_torch` reads: their class, and their activation. Torch is not imported here."""

from __future__ import annotations

import functools
import sys
from typing import Any

from ..functions.messages import listed

# Attributes with the hooks that run before and after the forward of a module, and of all modules of torch.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_GLOBAL_HOOKS = ("_global_forward_pre_hooks", "_global_forward_hooks")


def checked_module(function: str, module: Any, kind: str) -> Any:
    """Return `module` if it is exactly a ``torch.nn.<kind>``, without additions to it or to a part of it.

    Raises
    ------
    TypeError
        For another class, also a derived one, and for parametrized weights, which derive a class.
    ValueError
        For hooks, and for a replaced ``forward``.
    """
    torch, wrong = sys.modules.get("torch"), f"{function}: module: expected a plain torch.nn.{kind}"
    if torch is None or type(module) is not getattr(torch.nn, kind):
        given = f"{type(module).__module__}.{type(module).__qualname__}"
        raise TypeError(f"{wrong}; got {listed([given])}{_remedy(module)}")
    for name, part in module.named_modules():
        which = f"its {name}" if name else "it"
        if remedy := _remedy(part):
            raise TypeError(f"{wrong}; {which} is parametrized{remedy}")
        if any(getattr(part, hooks) for hooks in _HOOKS):
            raise ValueError(
                f"{wrong}; {which} has forward hooks, whose effect would be lost: remove them first, for weight_norm, "
                "spectral_norm or prune by the functions of torch.nn.utils"
            )
        if "forward" in vars(part):
            raise ValueError(
                f"{wrong}; {which} has a forward of its own, whose effect would be lost: delete that attribute first"
            )
    if any(getattr(torch.nn.modules.module, hooks, None) for hooks in _GLOBAL_HOOKS):
        raise ValueError(f"{wrong}; all modules have forward hooks, whose effect would be lost: remove them first")
    return module


def _remedy(module: Any) -> str:
    """Return advice for a module with parametrized weights."""
    is_parametrized = hasattr(module, "parametrizations")
    return ": make its weights plain by torch.nn.utils.parametrize.remove_parametrizations" if is_parametrized else ""


def activation_name(function: str, activation: Any) -> str:
    """Return this library's name of a torch activation: a function, a partial function, or a module."""
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
    elif (activation is nn.functional.silu or type(activation) is nn.SiLU) and not keywords:
        return "silu"
    raise ValueError(f"{function}: activation must be torch's relu, gelu or silu; got {activation!r}")
