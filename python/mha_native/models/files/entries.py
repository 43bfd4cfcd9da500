"""Settings in JSON objects, such as config.json: each entry read with its type and bounds."""

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...functions.messages import listed, shown
from .json_files import MAX_SIZE, read_json


class Entries(NamedTuple):
    """The entries of a JSON object. Each method raises ValueError, which names the object and the entry."""

    path: Path | str  # the name of the object in messages: its file, or its place in a file
    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "Entries":
        """Read the entries of a JSON file. OSError or ValueError if it cannot be read."""
        return cls(path, read_json(path, dict))

    def has(self, name: str) -> bool:
        """Return whether there is an entry `name` that is not null."""
        return self.values.get(name) is not None

    def size(self, name: str, default: int | None = None) -> int:
        """Return an integer of at least 1 that the core can take."""
        value = self.values.get(name, default)
        if type(value) is not int or value < 1:
            raise ValueError(f"{self.path}: {name} must be an integer of at least 1; got {shown(value)}")
        if value > MAX_SIZE:
            raise ValueError(f"{self.path}: {name} must be at most 2^63 - 1; got {shown(value)}")
        return value

    def size_or_none(self, name: str) -> int | None:
        """Return an integer of at least 1, or None for null."""
        return self.size(name) if self.has(name) else None

    def count(self, name: str, default: int | None = None) -> int:
        """Return an integer of at least 0 that the core can take."""
        value = self.values.get(name, default)
        if type(value) is not int or not 0 <= value < MAX_SIZE:
            raise ValueError(f"{self.path}: {name} must be an integer of at least 0; got {shown(value)}")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """Return a positive number."""
        value = self.values.get(name, default)
        is_number = type(value) is float or (type(value) is int and value <= MAX_SIZE)
        if not is_number or not 0 < value <= sys.float_info.max:
            raise ValueError(f"{self.path}: {name} must be a positive number; got {shown(value)}")
        return float(value)

    def positive_or_none(self, name: str) -> float | None:
        """Return a positive number, or None for null."""
        return self.positive(name) if self.has(name) else None

    def eps(self, name: str, default: float | None = None) -> float:
        """Return the number that a norm adds to a variance. It must not be an integer, which transformers refuses."""
        value = self.values.get(name, default)
        if type(value) is int:
            raise ValueError(
                f"{self.path}: {name} must be a positive number with a point, such as 1e-5; got {shown(value)}"
            )
        return self.positive(name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        return bool(self.choice(name, True, False, default=default))

    def choice(self, name: str, *allowed: object, default: object = None) -> Any:
        """Return one of `allowed`, which are of one type."""
        value = self.values.get(name, default)
        if value not in allowed or type(value) is not type(allowed[0]):
            expected = " or ".join(map(repr, allowed))
            raise ValueError(f"{self.path}: {name} must be {expected}; got {shown(value)}")
        return value

    def tokens(self, name: str, vocab_size: int) -> tuple[int, ...]:
        """Return the tokens of an entry: an integer, a list, or null for no tokens."""
        given = self.values.get(name)
        tokens = given if isinstance(given, list) else [] if given is None else [given]
        if not all(type(token) is int and 0 <= token < vocab_size for token in tokens):
            raise ValueError(f"{self.path}: {name} must be of tokens from 0 to {vocab_size - 1}; got {shown(given)}")
        return tuple(dict.fromkeys(tokens))

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Refuse entries of `reasons` that are not empty. Each reason says why the entry must be absent."""
        for name, why in reasons.items():
            if self.values.get(name):
                raise ValueError(f"{self.path}: {name} must be absent, since {why}; got {shown(self.values[name])}")

    def expect(self, expected: Mapping[str, object]) -> None:
        """Refuse entries that are present and differ from `expected`."""
        for name, value in expected.items():
            if name in self.values:
                self.choice(name, value)

    def refuse_others(self, known: Collection[str]) -> None:
        """Refuse entries that are not in `known`: their effect is unknown."""
        if others := [name for name in self.values if name not in known]:
            raise ValueError(f"{self.path} has unknown entries: {listed(others)}")
