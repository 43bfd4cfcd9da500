"""The manifest of a folder of outputs: how they were made, and counts and hashes of each finished output."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..functions.messages import listed, shown
from .errors import UserError, errors_of_files
from .output import written

NAME = "manifest.jsonl"

Entry = Mapping[str, Any]


class Manifest:
    """A file of JSON lines: the first line says how all outputs were made, each further line describes an output.

    `folder` has the outputs, and `made_with` everything that determines their bytes. `entries` has the entries of
    complete outputs, by their paths inside the folder.

    Raises UserError if the folder has outputs of another model or other options, or cannot be read.
    """

    def __init__(self, folder: Path, made_with: Mapping[str, Any]) -> None:
        self._folder, self._path = folder, folder / NAME
        head, entries = _read(self._path)
        if head is not None and head != made_with:
            raise UserError(f"{folder} holds embeddings of another run: {_difference(head, made_with)}")
        self._made_with = made_with
        self.entries = {name: entry for name, entry in entries.items() if self._is_whole(entry)}

    def remove(self, name: str) -> None:
        """Remove an output, and its entry."""
        with errors_of_files("remove", self._folder / name):
            (self._folder / name).unlink(missing_ok=True)
        del self.entries[name]

    def write(self) -> None:
        """Rewrite the file without truncated lines, and without missing or incomplete outputs."""
        with written(str(self._path)) as file:
            for value in (self._made_with, *self.entries.values()):
                file.write(_line(value))

    def add(self, entry: Entry) -> None:
        """Append the entry of the finished output ``entry["output"]``."""
        with errors_of_files("write", self._path), self._path.open("ab") as file:
            file.write(_line(entry))
            file.flush()
            os.fsync(file.fileno())
        self.entries[entry["output"]] = entry

    def _is_whole(self, entry: Entry) -> bool:
        path = self._folder / entry["output"]
        with errors_of_files("read", path), contextlib.suppress(FileNotFoundError):
            return (path.stat().st_size, sha256_of(path)) == (entry["bytes"], entry["sha256"])
        return False


@contextlib.contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Lock `folder` against other runs on this machine; UserError if another run holds the lock."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(f"another run writes to {folder}") from error
        yield
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Return the hash of the contents of a file."""
    result = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            result.update(part)
    return result.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any] | None, dict[str, Entry]]:
    """Return the first line, and the others by their outputs; None if the file does not exist."""
    lines, values = None, []
    with errors_of_files("read", path), contextlib.suppress(FileNotFoundError):
        lines = path.read_bytes().splitlines()
    if lines is None:
        return None, {}
    for line in lines:
        with contextlib.suppress(ValueError):  # truncated when a run was killed or the disk was full
            values.append(json.loads(line))
    are_entries = all(isinstance(value, dict) for value in values) and all(
        isinstance(entry.get("output"), str) and {"bytes", "sha256"} <= entry.keys() for entry in values[1:]
    )
    if not values or not are_entries:
        raise UserError(f"{path} is no manifest of embeddings")
    return values[0], {entry["output"]: entry for entry in values[1:]}


def _line(value: Entry) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _difference(there: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    names = [name for name in {**given, **there} if there.get(name) != given.get(name)]
    return listed(f"{name} {shown(there.get(name))}, not {shown(given.get(name))}" for name in names)
