"""What messages of errors have in common: values in few words, lists that end, and the name of the function called."""

import re
import reprlib
from collections.abc import Iterable
from types import TracebackType

# The names that a message lists, their characters together, and those of the longest one, and of a type. Lists of three
# kinds fit in the 500 characters that a message may have.
MOST_LISTED, _MOST_CHARACTERS, _LONGEST_NAME, _LONGEST_TYPE = 8, 125, 100, 40

# What messages begin with: the name of a class, a method or a function.
_FUNCTION = re.compile(r"(?:[A-Z]\w*(?:\.\w+)*|[a-z]+(?:_[a-z]+)+): ")

# What `in_the_name_of` changes the message of. Those of other libraries may compose theirs in another way, and the
# operating system's have a number and the name of a file.
_ERRORS = (TypeError, ValueError, MemoryError, RuntimeError, ImportError, FileNotFoundError, OSError)


def shown(value: object) -> str:
    """A value for a message: one line, and not a long one."""
    try:
        text = " ".join(reprlib.repr(value).split())
        return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 3]}..."
    except Exception:  # it cannot say what it is, or has more digits than Python converts
        return name_of_type(value)


def name_of_type(value: object) -> str:
    """The name of the type of a value, or the beginning of a long one."""
    return type(value).__name__[:_LONGEST_TYPE]


def listed(names: Iterable[str]) -> str:
    """Names for a message, some of them from a user: one line, and not a long one."""
    text = ""
    for count, name in enumerate(names):
        readable = name if name.isprintable() and len(name) <= _LONGEST_NAME else shown(name)
        if count == MOST_LISTED or (text and len(text) + len(readable) > _MOST_CHARACTERS):
            return f"{text} and more"
        text += f", {readable}" if text else readable
    return text


class in_the_name_of:
    """A ``with`` statement in a function that calls others: their errors begin with its name and name its arguments.

    Parameters
    ----------
    function : str
        The name of the caller's function.
    **arguments
        Which of its arguments those of the functions that it calls are, where the names differ.
    """

    def __init__(self, function: str, **arguments: str) -> None:
        self._function, self._arguments = function, arguments

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if type(error) in _ERRORS and error is not None and getattr(error, "errno", None) is None:
            rename_arguments(error, **self._arguments)
            message = str(error)
            begin = _FUNCTION.match(message)
            error.args = (f"{self._function}: {message[begin.end() if begin else 0 :]}",)
            if isinstance(error, ImportError):
                error.msg = error.args[0]  # which is what it shows


def rename_arguments(error: BaseException, **arguments: str) -> None:
    """Let the message of `error` say the names that a caller knows, for those of the function that raised it."""
    message = str(error)
    for theirs, own in arguments.items():
        message = re.sub(rf"\b{theirs}\b", own, message)
    for own in arguments.values():  # two of theirs may be one of the caller's
        message = re.sub(rf"(\b{own} (?:\[[\d, ]*\]|\w+)), \1", r"\1", message)
    error.args = (message,)
