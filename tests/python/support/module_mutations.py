"""Changes of a torch module: of each number, each method and each part without weights, in all of its parts."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import torch


class Mutation:
    """A change of one part of a module. `apply` makes it and returns what undoes it."""

    def __init__(self, part: str, name: str, value: Callable[[Any], Any], target: str = "attribute") -> None:
        self.part, self.name, self.value, self.target = part, name, value, target

    def __str__(self) -> str:
        return f"{self.part or 'it'}.{self.name} ({self.target})"

    def apply(self, module: Any) -> Callable[[], None]:
        part = module.get_submodule(self.part)
        table = part._modules if self.target == "part" else vars(part)
        if self.target == "class":
            of, part.__class__ = type(part), type(type(part).__name__, (type(part),), {"forward": self.value(part)})
            return lambda: setattr(part, "__class__", of)
        before = dict(table)
        table[self.name] = self.value(part)

        def undo() -> None:
            table.clear()
            table.update(before)

        return undo


def other_value(value: Any) -> Any:
    """A valid value of the same type; None for what is no number."""
    if isinstance(value, float):
        return value / 2 + 0.01
    return not value if isinstance(value, bool) else 2 * value + 1 if isinstance(value, int) else None


def scaled_forward(part: Any) -> Any:
    """The forward of a part whose first result is multiplied."""

    def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        out = original(self, *arguments, **named)
        return (1.5 * out[0], *out[1:]) if isinstance(out, tuple) else 1.5 * out

    original = type(part).forward
    return forward


def mutations(module: Any) -> Iterator[Mutation]:
    """Of every part: each number, another forward, a class with another forward; each part without weights replaced."""
    common = vars(torch.nn.Module())
    for place, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in common and name != "forward" and other_value(value) is not None:
                yield Mutation(place, name, lambda _, value=value: other_value(value))
        if place:
            yield Mutation(place, "forward", lambda part: types.MethodType(scaled_forward(part), part))
            yield Mutation(place, "forward", scaled_forward, "class")
        for name, child in part.named_children():
            if not list(child.parameters()):
                yield Mutation(place, name, lambda _: torch.nn.Tanh(), "part")
        if isinstance(part, torch.nn.Dropout):
            yield Mutation(place, "training", lambda _: True)
