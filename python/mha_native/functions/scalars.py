"""Checks of scalars that the core does not read, by the rules of the core."""

from __future__ import annotations

from .. import _core
from .messages import shown


def checked_integer(function: str, name: str, value: int, least: int, most: int | None = None) -> int:
    """Return the integer that a caller gave, from `least` to `most`; TypeError for a bool and for other types."""
    number = _core.integer(function, name, value)
    if number < least or (most is not None and number > most):
        rule = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{function}: {name} must be {rule}; got {shown(number)}")
    return number


def checked_choice(function: str, name: str, value: int, choices: tuple[int, ...]) -> int:
    """Return the integer that a caller gave, one of two or more `choices`."""
    number = _core.integer(function, name, value)
    if number not in choices:
        rule = f"{', '.join(map(str, choices[:-1]))} or {choices[-1]}"
        raise ValueError(f"{function}: {name} must be {rule}; got {number}")
    return number


def checked_real(function: str, name: str, value: float) -> float:
    """Return the finite real number that a caller gave; TypeError for a bool and for other types."""
    return _core.real(function, name, value)


def checked_boolean(function: str, name: str, value: bool) -> bool:
    """Return the bool that a caller gave; TypeError for other types."""
    return _core.boolean(function, name, value)
