"""Scalars that the package reads itself, by the rules that the core has for those that it reads."""

from .. import _core
from .messages import shown


def checked_integer(function: str, name: str, value: int, least: int, most: int | None = None) -> int:
    """The integer that a caller gave, from `least` to `most`; TypeError for a bool, and for what is no integer."""
    number = _core.integer(function, name, value)
    if number < least or (most is not None and number > most):
        rule = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{function}: {name} must be {rule}; got {shown(number)}")
    return number


def checked_choice(function: str, name: str, value: int, choices: tuple[int, ...]) -> int:
    """The integer that a caller gave, one of two or more `choices`."""
    number = _core.integer(function, name, value)
    if number not in choices:
        rule = f"{', '.join(map(str, choices[:-1]))} or {choices[-1]}"
        raise ValueError(f"{function}: {name} must be {rule}; got {number}")
    return number


def checked_real(function: str, name: str, value: float) -> float:
    """The finite number that a caller gave; TypeError for a bool, and for what is no real number."""
    return _core.real(function, name, value)


def checked_boolean(function: str, name: str, value: bool) -> bool:
    """The truth value that a caller gave; TypeError for what is none."""
    return _core.boolean(function, name, value)
