"""Files of a pretrained model: opened, read up to a limit, and JSON whose entries are checked."""

import json
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePath
from typing import Any

from ...functions.messages import listed, shown

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


def read_size(path: Path | str, values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """The entry `name` of what was read from `path`: an integer of at least 1 that the core can take."""
    value = values.get(name, default)
    if type(value) is not int or value < 1:
        raise ValueError(f"{path}: {name} must be an integer of at least 1; got {shown(value)}")
    if value > MAX_SIZE:
        raise ValueError(f"{path}: {name} must be at most 2^63 - 1; got {shown(value)}")
    return value


def read_count(path: Path | str, values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """The entry `name` of what was read from `path`: an integer of at least 0 that the core can take."""
    value = values.get(name, default)
    if type(value) is not int or not 0 <= value < MAX_SIZE:
        raise ValueError(f"{path}: {name} must be an integer of at least 0; got {shown(value)}")
    return value


def read_positive(path: Path | str, values: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """The entry `name` of what was read from `path`: a positive number."""
    value = values.get(name, default)
    is_number = type(value) is float or (type(value) is int and value <= MAX_SIZE)
    if not is_number or not 0 < value <= sys.float_info.max:
        raise ValueError(f"{path}: {name} must be a positive number; got {shown(value)}")
    return float(value)


def read_eps(path: Path | str, values: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """The entry `name` of what was read from `path`: a positive number that is no integer, which transformers refuses
    for what is added to a variance."""
    value = values.get(name, default)
    if type(value) is int:
        raise ValueError(f"{path}: {name} must be a positive number with a point, such as 1e-5; got {shown(value)}")
    return read_positive(path, values, name, default)


def read_flag(path: Path | str, values: Mapping[str, Any], name: str, default: bool) -> bool:
    """The entry `name` of what was read from `path`: true or false."""
    return bool(read_choice(path, values, name, default, True, False))


def read_choice(path: Path | str, values: Mapping[str, Any], name: str, default: object, *allowed: object) -> Any:
    """The entry `name` of what was read from `path`: one of `allowed`, which are of one type."""
    value = values.get(name, default)
    if value not in allowed or type(value) is not type(allowed[0]):
        expected = " or ".join(map(repr, allowed))
        raise ValueError(f"{path}: {name} must be {expected}; got {shown(value)}")
    return value


def refuse_other_keys(path: Path | str, values: Mapping[str, Any], known: Collection[str]) -> None:
    """ValueError if what was read from `path` has an entry that is not `known`: nobody knows what it changes."""
    if others := [name for name in values if name not in known]:
        raise ValueError(f"{path} has what is not known here: {listed(others)}")


def is_below(name: object) -> bool:
    """Whether a path in a file leads to no other place than below where it starts."""
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or not name.isprintable():
        return False
    path = PurePath(name)
    return not path.is_absolute() and ".." not in path.parts and path != PurePath()
