"""Models of transformers that compute attention by themselves, refused before a mask of this library misleads them."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch.nn.modules.module import register_module_module_registration_hook
from transformers import PreTrainedModel

_usable: set[type] = set()  # classes of configurations whose models use the attention interface
_names: list[str] = []  # implementations of attention that tables of models have to know
_seen: set[str] = set()  # modules of Python whose tables know them


def refuse_own_attention(config: Any) -> None:
    """Raise RuntimeError if models with this configuration ignore the attention that its name stands for.

    The first call for a class of configurations takes milliseconds, and later ones a look-up.
    """
    if type(config) not in _usable:
        _examine(config)


@torch.compiler.disable
def _examine(config: Any) -> None:
    kind = type(config)
    for model in _models_of(kind):
        if not model._can_set_attn_implementation():
            _refuse(f"{model.__name__} ({config.model_type})", config._attn_implementation)
    _usable.add(kind)


@torch.compiler.disable
@functools.cache
def has_own_parts(kind: Any) -> bool:
    """Return whether a class of attention next to models of a configuration computes shares without the interface."""
    sources = {inspect.getsource(sys.modules[model.__module__]) for model in _models_of(kind)}
    classes = [each for source in sources for each in source.split("\nclass ") if "Attention" in each.partition("(")[0]]
    return any("softmax(" in each.partition("\ndef ")[0] and "get_interface(" not in each for each in classes)


def _models_of(kind: type) -> list[Any]:
    """Return the loaded models of a class of configurations that its own package has."""
    package = kind.__module__.rpartition(".")[0]
    near = (model for model in _subclasses(PreTrainedModel) if model.__module__.rpartition(".")[0] == package)
    return [model for model in near if model.config_class is kind]


def _subclasses(model: Any) -> Iterator[Any]:
    for each in model.__subclasses__():
        yield each
        yield from _subclasses(each)


def _refuse(model: str, name: str) -> NoReturn:
    raise RuntimeError(
        f'mha_native: {model} computes attention by itself, so that attn_implementation="{name}" has no effect on it; '
        'use "eager" or "sdpa" for this part of the model, or mha_native.interop.torch.accelerate'
    )


def refuse_in_tables(name: str) -> None:
    """Refuse `name` in models that look their class of attention up in a table, in place of a KeyError.

    Tables are in the module of a model, under names of its own. They get an entry for `name` when a part of the first
    model of a module is made, which is before its attention.
    """
    if not _names:
        register_module_module_registration_hook(_see)
    if name not in _names:
        _names.append(name)
        _seen.clear()


def _see(parent: torch.nn.Module, _: str, __: torch.nn.Module | None) -> None:
    place = type(parent).__module__
    if place in _seen:
        return
    _seen.add(place)
    for table in list(vars(sys.modules[place]).values()) if place in sys.modules else []:
        if type(table) is dict and isinstance(table.get("eager"), type):
            for name in _names:
                table.setdefault(name, functools.partial(_refuse_entry, table["eager"].__name__, name))


def _refuse_entry(attention: str, name: str, *_: Any, **__: Any) -> NoReturn:
    _refuse(attention, name)
