"""Parts of error messages: short forms of values, short lists, and the name of the called function."""

from __future__ import annotations

import functools
import inspect
import re
import reprlib
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TypeVar, cast

Call = TypeVar("Call", bound=Callable[..., Any])

# The most names in a list, and the most characters of all of them, of one name, and of a type. A message may have 500
# characters: room for three lists.
MOST_LISTED, _MOST_CHARACTERS, _LONGEST_NAME, _LONGEST_TYPE = 8, 125, 100, 40

# The begin of a message: the name of a class, a method or a function. Functions of one word are named one by one, as
# other words before a colon are part of the message.
_FUNCTION = re.compile(r"(?:[A-Z]\w*(?:\.\w+)*|[a-z]+(?:_[a-z]+)+|maxsim): ")

# The errors whose message `in_the_name_of` changes. Errors of other libraries may build their messages in other ways,
# and errors of the operating system have a number and a file.
_ERRORS = (TypeError, ValueError, MemoryError, RuntimeError, ImportError, FileNotFoundError, OSError)


def shown(value: object) -> str:
    """Return a short form of a value, on one line."""
    try:
        text = " ".join(reprlib.repr(value).split())
        return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 3]}..."
    except Exception:  # its repr fails, or has more digits than Python converts
        return name_of_type(value)


def name_of_type(value: object) -> str:
    """Return the name of the type of a value, cut if it is long."""
    return type(value).__name__[:_LONGEST_TYPE]


def listed(names: Iterable[str]) -> str:
    """Return a short list of names, on one line. Some of the names may come from a user."""
    text = ""
    for count, name in enumerate(names):
        readable = name if name.isprintable() and len(name) <= _LONGEST_NAME else shown(name)
        if count == MOST_LISTED or (text and len(text) + len(readable) > _MOST_CHARACTERS):
            return f"{text} and more"
        text += f", {readable}" if text else readable
    return text


def names_sizes(call: Call) -> Call:
    """Make a MemoryError of a function or method name it, and its integers and arrays, the largest first."""
    signature = inspect.signature(call)
    owner = next(iter(signature.parameters))

    @functools.wraps(call)
    def named(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except MemoryError as error:
            given = dict(signature.bind(*args, **kwargs).arguments)
            name = call.__name__
            if owner in ("self", "cls"):
                of = given.pop(owner)
                kind = of if isinstance(of, type) else type(of)
                name = kind.__name__ if name == "__init__" else f"{kind.__name__}.{name}"
            for each in signature.parameters.values():
                if each.kind is inspect.Parameter.VAR_KEYWORD:
                    given |= given.pop(each.name, {})
            sizes = {key: _size_of(value) for key, value in given.items()}
            largest = sorted((key for key, size in sizes.items() if size), key=lambda key: -sizes[key])
            shapes = (f"{key} {getattr(given[key], 'shape', given[key])}" for key in largest)
            raise MemoryError(f"{name}: could not allocate memory for {listed(shapes)}") from error

    return cast(Call, named)


def _size_of(value: Any) -> int:
    """Return an integer, or the number of elements of an array; 0 for other objects."""
    size = getattr(value, "size", value)
    return size if isinstance(size, int) and not isinstance(size, bool) else 0


class in_the_name_of:
    """Make errors of called functions name the caller and its arguments, in a ``with`` statement.

    Parameters
    ----------
    function : str
        The name of the caller.
    **arguments
        The caller's name for each argument of a called function, where the names differ.
    """

    def __init__(self, function: str, **arguments: str) -> None:
        self._function, self._arguments = function, arguments

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if type(error) in _ERRORS and error is not None and getattr(error, "errno", None) is None:
            rename_arguments(error, **self._arguments)
            message = str(error).removeprefix(f"{self._function}: ")
            begin = _FUNCTION.match(message)
            error.args = (f"{self._function}: {message[begin.end() if begin else 0 :]}",)
            if isinstance(error, ImportError):
                error.msg = error.args[0]  # its message


def rename_arguments(error: BaseException, **arguments: str) -> None:
    """Replace names of arguments in the message of `error` by the names that the caller knows."""
    message = str(error)
    for theirs, own in arguments.items():  # not in paths of files
        message = re.sub(rf"(?<![\w/\\.-]){theirs}(?![\w/\\-]|\.\w)", own, message)
    for own in arguments.values():  # two arguments of a function may be one argument of the caller
        message = re.sub(rf"(\b{own} (?:\[[\d, ]*\]|\w+)), \1", r"\1", message)
    error.args = (message,)
