"""GGUF files in the local cache of Hugging Face, by the name of their model and a part of their own name."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

from ...functions.messages import listed
from .hub_cache import hub_cache, is_name, repository_folder, snapshot_folder, weights_in


def find_gguf(name: str) -> Path | None:
    """Return the file of a name such as "organization/model:Q4_K_M"; None for a path, or a name of another model.

    After the colon comes the name of the file, a pattern with ``*``, ``?`` or ``[``, or a word of the name, in capital
    or small letters. Without a colon, a model that has one GGUF file and no other weights is this file.

    Raises FileNotFoundError if the cache has no such file, and ValueError if it has several.
    """
    repository, _, pattern = name.partition(":")
    if "/" not in repository or not is_name(repository) or Path(name).exists():
        return None
    snapshot = snapshot_folder(repository_folder(repository))
    files = [] if snapshot is None else gguf_files(snapshot)
    if not pattern and (not files or snapshot is None or weights_in(snapshot)):
        return None
    found = [path for path in files if _matches(path, pattern)]
    if not found:
        names = listed(path.name for path in files)
        advice = f"it has {names}" if files else f"hf download {repository} FILE fetches one"
        raise FileNotFoundError(f"{name} is no GGUF file in the cache {hub_cache()}; {advice}")
    if len(found) > 1:
        which = f"{listed(path.name for path in found)}; name one of them, as in {repository}:Q4_K_M"
        raise ValueError(f"{name} must be one GGUF file; the cache has {which}")
    return found[0]


def gguf_files(snapshot: Path) -> list[Path]:
    """Return the GGUF files in a folder of the cache and below it, by their names."""
    return sorted(path for path in snapshot.rglob("*.gguf") if path.is_file())


def _matches(path: Path, pattern: str) -> bool:
    if not pattern or path.name == pattern or fnmatchcase(path.name, pattern):
        return True
    # The word Q4_K is not in the name Q4_K_M, and Q4_K_M is not in IQ4_K_M.
    return re.search(rf"(?<![a-z0-9]){re.escape(pattern)}(?![a-z0-9_])", path.stem, re.I) is not None
