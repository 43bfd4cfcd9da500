"""The entries of config.json, each read with what it must be."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..files.json_files import read_choice, read_count, read_eps, read_flag, read_positive, read_size


class Entries(NamedTuple):
    """What config.json says, and what the family has where it says nothing.

    Attributes
    ----------
    path : Path
        For messages.
    """

    path: Path
    values: Mapping[str, Any]

    def size(self, name: str) -> int:
        """An integer of at least 1."""
        return read_size(self.path, self.values, name)

    def size_or_none(self, name: str) -> int | None:
        """An integer of at least 1, or null."""
        return None if self.values.get(name) is None else self.size(name)

    def count(self, name: str) -> int:
        """An integer of at least 0."""
        return read_count(self.path, self.values, name)

    def flag(self, name: str) -> bool:
        """True or false."""
        return read_flag(self.path, self.values, name, False)

    def positive(self, name: str) -> float:
        """A positive number."""
        return read_positive(self.path, self.values, name)

    def eps(self, name: str) -> float:
        """What is added to a variance."""
        return read_eps(self.path, self.values, name)

    def positive_or_none(self, name: str) -> float | None:
        """A positive number, or null."""
        return None if self.values.get(name) is None else self.positive(name)

    def choice(self, name: str, *allowed: object) -> Any:
        """One of `allowed`."""
        return read_choice(self.path, self.values, name, None, *allowed)
