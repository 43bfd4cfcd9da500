"""Error messages of the reference. It has no checks of its own: NumPy raises the errors."""

import functools
import inspect
import reprlib
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

# The most characters of NumPy's message and of each argument: with ten arguments a message has a few lines.
_LONGEST_REASON, _LONGEST_VALUE = 120, 20


def named(function: Callable[P, R]) -> Callable[P, R]:
    """Make all errors of `function` TypeError, ValueError or MemoryError, naming it and its arguments."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            first = error.__cause__ or error  # the first error, if another function of the reference raised it
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError:  # Python refused the call; its message has the reason
                raise first from None
            kinds: dict[type[Exception], tuple[type[Exception], ...]]
            kinds = {TypeError: (TypeError, AttributeError), MemoryError: (MemoryError,), ValueError: (Exception,)}
            kind = next(kind for kind, caused_by in kinds.items() if isinstance(first, caused_by))
            reason = f"{type(first).__name__}, {_words(first)}".replace("\n", " ")[:_LONGEST_REASON]
            given |= given.pop("options", {})
            arguments = ", ".join(f"{name} {_shown(value)}" for name, value in given.items())
            raise kind(f"reference.{function.__name__}: cannot be computed from {arguments}: {reason}") from first

    return call


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # of a key whose str fails
        return "without words"


def _shown(value: Any) -> str:
    if type(value) is np.ndarray:
        return str(list(value.shape))
    if isinstance(value, str | int | float | tuple):
        return reprlib.repr(value)[:_LONGEST_VALUE]
    return type(value).__name__[:_LONGEST_VALUE]
