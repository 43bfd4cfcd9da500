"""Checks that torch modules compute what their classes say, and nothing else. Torch is not imported here."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Container
from typing import Any, cast

from ..functions.messages import listed

# Attributes with the hooks that run before and after the forward of a module, and of all modules of torch.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_GLOBAL_HOOKS = ("_global_forward_pre_hooks", "_global_forward_hooks")

# Attributes that change no result: of `compile()`, and of transformers for loading and for training.
_OF_NO_EFFECT = frozenset({"_compiled_call_impl", "_is_hf_initialized", "gradient_checkpointing"})


def checked_module(function: str, module: Any, kind: str) -> Any:
    """Return `module` if it is exactly a ``torch.nn.<kind>``, without additions to it or to a part of it.

    Raises
    ------
    TypeError
        For another class, also a derived one, in any part, and for parametrized weights, which derive a class.
    ValueError
        For hooks, for a replaced ``forward`` or other method, and for attentions that disagree in ``batch_first``.
    """
    torch, wrong = sys.modules.get("torch"), f"{function}: module: expected a plain torch.nn.{kind}"
    if torch is None or type(module) is not getattr(torch.nn, kind):
        given = f"{type(module).__module__}.{type(module).__qualname__}"
        raise TypeError(f"{wrong}; got {listed([given])}{_remedy(module)}")
    for name, part in module.named_modules():
        which = _named(name)
        if remedy := _remedy(part):
            raise TypeError(f"{wrong}; {which} is parametrized{remedy}")
        if not type(part).__module__.startswith("torch."):
            raise TypeError(f"{wrong}; {which} is a {type(part).__module__}.{type(part).__qualname__}")
        if any(getattr(part, hooks) for hooks in _HOOKS):
            raise ValueError(
                f"{wrong}; {which} has forward hooks, whose effect would be lost: remove them first, for weight_norm, "
                "spectral_norm or prune by the functions of torch.nn.utils"
            )
        if (own := own_attribute(part)) is not None:
            raise ValueError(
                f"{wrong}; {which} has a {own} of its own, whose effect would be lost: delete that attribute first"
            )
        if (own := foreign_method(type(part))) is not None:
            raise ValueError(f"{wrong}; the {own} of the class of {which} is not torch's: its effect would be lost")
    if any(getattr(torch.nn.modules.module, hooks, None) for hooks in _GLOBAL_HOOKS):
        raise ValueError(f"{wrong}; all modules have forward hooks, whose effect would be lost: remove them first")
    _check_options(wrong, module)
    return module


def _check_options(wrong: str, module: Any) -> None:
    """TypeError or ValueError unless each part of `module` has the attributes and parts that its options give it."""
    nn = sys.modules["torch"].nn
    orders: dict[bool, str] = {}
    for name, part in module.named_modules():
        try:
            new = _new_of(part)
        except AssertionError as error:
            raise ValueError(f"{wrong}; {_named(name)} has options that exclude each other: {error}") from error
        if new is not None and (change := difference(part, new, name)) is not None:
            raise TypeError(f"{wrong}; its {change}")
        if type(part) is nn.MultiheadAttention:
            orders.setdefault(bool(part.batch_first), name)
        if type(part) is nn.TransformerEncoderLayer and _adds_keys(part.self_attn):
            which = _named(f"{name}.self_attn".lstrip("."))
            raise ValueError(f"{wrong}; {which} has add_zero_attn or add_bias_kv, which its fast path ignores")
    if len(orders) > 1:
        raise ValueError(
            f"{wrong}; batch_first is True in its {orders[True]} and False in its {orders[False]}: make them equal"
        )


def _adds_keys(attention: Any) -> bool:
    return attention.add_zero_attn or attention.bias_k is not None


def _new_of(part: Any) -> Any:
    """Return a module with the options of `part`, without data; None for classes that derive no attributes."""
    nn, kind = sys.modules["torch"].nn, cast("Any", type(part))
    if kind is nn.MultiheadAttention:
        names = ("embed_dim", "num_heads", "dropout", "add_zero_attn", "kdim", "vdim", "batch_first")
        options: dict[str, Any] = {name: getattr(part, name) for name in names}
        options |= {"bias": part.in_proj_bias is not None, "add_bias_kv": part.bias_k is not None}
        return _new(kind, **options)
    if kind in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer):
        # Sizes are options of its parts.
        options = {"d_model": 1, "nhead": 1, "dim_feedforward": 1}
        return _new(kind, activation=part.activation, norm_first=part.norm_first, **options)
    return None


@functools.lru_cache(maxsize=8)  # the layers of a stack have the same options
def _new(kind: Any, **options: Any) -> Any:
    return kind(**options, device="meta")


def difference(module: Any, new: Any, place: str = "") -> str | None:
    """Return an attribute or a part in which a module, called `place`, differs from a new one; None if there is none.

    Parameters, buffers and whatever parts are made of are not compared.
    """
    if type(module) is not type(new):
        return None if _does_nothing(module) and _does_nothing(new) else _class_of(place, module, new)
    prefix = f"{place}." if place else ""
    if reads_attributes(new):
        for name, expected in vars(new).items():
            given = vars(module).get(name, _MISSING)
            if name not in not_compared() and not _is_same(given, expected, module, new):
                found = getattr(module, name, _MISSING) if given is _MISSING else given
                return f"{prefix}{name} is {found!r:.80}, and not {expected!r:.80}"
    for name, expected in new._modules.items():
        given = getattr(module, name, None)
        if type(given) is not type(expected) and not (_does_nothing(given) and _does_nothing(expected)):
            return _class_of(prefix + name, given, expected)
    return None


_MISSING = type("missing", (), {"__repr__": lambda _: "missing"})()


def _class_of(place: str, given: Any, expected: Any) -> str:
    of_torch, name = sys.modules["torch"].nn, type(expected).__name__
    public = f"torch.nn.{name}" if getattr(of_torch, name, None) is type(expected) else name
    return f"{place or 'class'} is a {type(given).__name__}, and not a {public}"


def _does_nothing(module: Any) -> bool:
    """Return whether `module` returns its input in evaluation mode."""
    nn = sys.modules["torch"].nn
    return type(module) in (nn.Dropout, nn.Identity)


def reads_attributes(module: Any) -> bool:
    """Return whether attributes of `module` other than weights, parts and its mode may change its results."""
    return not _does_nothing(module) and type(module) is not sys.modules["torch"].nn.Linear


def reads_mode(module: Any) -> bool:
    """Return whether training mode may change results of `module`, a module as in transformers."""
    return type(module) is sys.modules["torch"].nn.Dropout or not type(module).__module__.startswith("torch.nn.")


@functools.cache
def not_compared() -> frozenset[str]:
    """Return attributes that every torch module has, its mode, tables of its parts and hooks, and ones of no effect."""
    return frozenset(vars(sys.modules["torch"].nn.Module())) | _OF_NO_EFFECT


def _is_same(given: Any, expected: Any, module: Any, new: Any) -> bool:
    """Return whether an attribute of `module` is what it is in `new`."""
    if given is expected:
        return True
    if type(given) is not type(expected):
        return False
    if isinstance(given, functools.partial):
        return (given.func, given.args, given.keywords) == (expected.func, expected.args, expected.keywords)
    if isinstance(given, types.MethodType):
        return given.__func__ is expected.__func__ and given.__self__ is module and expected.__self__ is new
    if isinstance(given, sys.modules["torch"].Tensor):
        return False
    return bool(given == expected)


def own_attribute(module: Any, known: Container[str] = ()) -> str | None:
    """Return an attribute, such as ``forward``, that hides the one of the class and is not in `known`, if any."""
    names = (name for name in vars(module) if name not in known and name not in not_compared())
    return next((name for name in names if hasattr(type(module), name)), None)


def foreign_method(kind: type) -> str | None:
    """Return the name of a method that other code has put into a class of modules, or into one of its bases, if any."""
    for base in kind.__mro__[:-1]:
        if base is sys.modules["torch"].nn.Module:
            break
        for name, method in vars(base).items():
            if isinstance(method, types.FunctionType) and method.__module__ != base.__module__:
                return name
    return None


def _named(part: str) -> str:
    return f"its {part}" if part else "it"


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
