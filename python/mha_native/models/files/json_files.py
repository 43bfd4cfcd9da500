"""Files of a pretrained model: text and JSON, read up to a limit."""

import json
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

# The largest size of JSON or text. Settings have a few KiB, the header of a large checkpoint some 100 KiB.
MAX_JSON_BYTES = 1 << 24

MAX_SIZE = (1 << 63) - 1  # the largest number that the core takes for a size

_LONGEST_NAME = 255  # characters of the name of a file or folder, the limit of file systems of Linux


def require_file(path: Path) -> Path:
    """Return `path`. FileNotFoundError if it is not a file, or its folder is not a folder."""
    if not path.is_file():
        if path.parent.is_file():
            raise FileNotFoundError(f"{path.parent} must be a directory with {path.name}; it is a file")
        raise FileNotFoundError(f"{path} does not exist, or is not a file")
    return path


def read_json(path: Path, kind: type) -> Any:
    """Return the JSON object in a file, or the list if `kind` is list."""
    raw = _read(path)
    try:
        value = parse_json(raw)
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, kind):
        expected = "an object" if kind is dict else "a list"
        raise ValueError(f"{path} must hold {expected}; got {type(value).__name__}")
    return value


def read_text(path: Path) -> str:
    """Return the text in a file, in UTF-8."""
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
    """Return the value of JSON in UTF-8, or raise ValueError. `from_pairs` makes objects from their entries."""
    try:
        return json.loads(raw.decode(), object_pairs_hook=from_pairs)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def is_below(name: object) -> bool:
    """Return whether `name`, a path in a file, stays below its folder."""
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or not name.isprintable():
        return False
    path = PurePath(name)
    return not path.is_absolute() and ".." not in path.parts and path != PurePath()
