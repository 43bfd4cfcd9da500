"""Old names that keep working for one release, with a DeprecationWarning that says the new one."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn the caller of the caller that `old` is called `new`."""
    warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel)


def renamed(old: str, new: str) -> property:
    """Return the attribute `old` of a class, a method or a property, which is called `new` now."""

    def get(self: Any) -> Any:
        warn_renamed(f"{type(self).__name__}.{old}", new)
        return getattr(self, new)

    def put(self: Any, value: Any) -> None:
        warn_renamed(f"{type(self).__name__}.{old}", new)
        setattr(self, new, value)

    return property(get, put, doc=f"Deprecated: the old name of `{new}`.")


def renamed_keyword(old: str, new: str) -> Callable[[Function], Function]:
    """Let a method take the keyword argument `new` by its `old` name, too."""

    def decorated(function: Function) -> Function:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if old in kwargs:
                owner = args[0] if isinstance(args[0], type) else type(args[0])
                name = f"{owner.__name__}.{function.__name__}"
                warn_renamed(f"{name}: {old}=", f"{new}=")
                if new in kwargs:
                    raise TypeError(f"{name}: {old} is the old name of {new}; give one of them")
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorated
