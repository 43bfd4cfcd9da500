"""The files of a model, for a server that opens it again: whether they have changed, and whether memory is there."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from .config import Config, Model

_SHARE = 1.2  # of the bytes of the files must be free: the old model and the new one are open together


class Signature(NamedTuple):
    """The settings and files of a model. Equal signatures need no new model."""

    model: Model
    queue: tuple[Any, ...]
    files: tuple[tuple[str, int, int], ...]  # name, bytes, and time of the last change


def signature_of(name: str, config: Config) -> Signature:
    """Return the signature of a model. The files of a name at Hugging Face do not change."""
    model = config.model(name)
    home = Path(model.path)
    paths = sorted(path for path in home.rglob("*") if path.is_file()) if home.is_dir() else [home]
    files = tuple((str(path), found.st_size, found.st_mtime_ns) for path in paths if (found := _stat(path)) is not None)
    limits = (config.target_seconds, config.max_batch_tokens, config.max_wait_seconds)
    queue = (config.num_threads, *limits, config.max_waiting, config.max_waiting_tokens)
    return Signature(model, queue, files)


def check_memory(signature: Signature) -> None:
    """Raise MemoryError if the memory of the machine has too little room for a model. Linux tells; others do not."""
    needed = _SHARE * sum(size for _, size, _ in signature.files)
    free = _free_bytes()
    if free is not None and free < needed:
        raise MemoryError(f"the model needs {needed / 1e6:.0f} MB of memory; {free / 1e6:.0f} MB are free")


def _free_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024 * int(found[0]) if found else None


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
