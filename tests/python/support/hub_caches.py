"""Models in the layout of a cache of huggingface_hub: files in snapshots that are links to blobs."""

from __future__ import annotations

import shutil
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def fill(cache: Path, repository: str, files: Path, commit: str = COMMIT) -> Path:
    """Put a file, or all files of a folder, into `cache` as the model `repository`. Return the snapshot."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    snapshot, blobs = folder / "snapshots" / commit, folder / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    paths = [path for path in files.rglob("*") if path.is_file()] if files.is_dir() else [files]
    for path in paths:
        target = snapshot / (path.relative_to(files) if files.is_dir() else path.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        blob = blobs / f"{len(list(blobs.iterdir()))}"
        shutil.copyfile(path, blob)
        target.symlink_to(blob)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(commit, encoding="ascii")
    return snapshot
