"""Files of a pretrained model: opened, read up to a limit, and JSON whose entries are checked."""

import json
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

# The most bytes of JSON or text that are read: settings take a few KiB, the header of a large checkpoint some 100 KiB.
MAX_JSON_BYTES = 1 << 24

MAX_SIZE = (1 << 63) - 1  # the largest number that the core takes for a size

_LONGEST_NAME = 255  # characters of the name of a file or folder: no file system of Linux has longer ones


def require_file(path: Path) -> Path:
    """`path`, or FileNotFoundError if it is no file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist, or is no file")
    return path


def read_json(path: Path, kind: type) -> Any:
    """The JSON object (`kind` is dict) or list in a file."""
    raw = _read(path)
    try:
        value = parse_json(raw)
    except ValueError as error:
        raise ValueError(f"{path} is no valid JSON: {error}") from error
    if not isinstance(value, kind):
        expected = "an object" if kind is dict else "a list"
        raise ValueError(f"{path} must hold {expected}; got {type(value).__name__}")
    return value


def read_text(path: Path) -> str:
    """The text in a file, in UTF-8."""
    try:
        return _read(path).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8: {error}") from error


def _read(path: Path) -> bytes:
    with open(require_file(path), "rb") as file:
        raw = file.read(MAX_JSON_BYTES + 1)
    if len(raw) > MAX_JSON_BYTES:
        raise ValueError(f"{path} must have at most {MAX_JSON_BYTES >> 20} MiB")
    return raw


def parse_json(raw: bytes, from_pairs: Callable[[list[tuple[str, Any]]], Any] = dict) -> Any:
    """The value of JSON in UTF-8. `from_pairs` makes objects from their entries. ValueError if it is none."""
    try:
        return json.loads(raw.decode(), object_pairs_hook=from_pairs)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def is_below(name: object) -> bool:
    """Whether a path in a file leads to no other place than below where it starts."""
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or not name.isprintable():
        return False
    path = PurePath(name)
    return not path.is_absolute() and ".." not in path.parts and path != PurePath()
