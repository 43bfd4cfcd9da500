"""The patches of tests/mutants still apply, each says what it breaks, and each breaks one line."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATCHES = sorted((ROOT / "tests/mutants").glob("*.patch"))


def test_none_is_lost() -> None:
    assert len(PATCHES) >= 60


@pytest.mark.parametrize("path", PATCHES, ids=lambda path: path.stem)
def test_the_patch_breaks_one_line(path: Path) -> None:
    first, *lines = path.read_text().splitlines()
    assert re.fullmatch(r"[A-Z].*\. Killed by \S+( on amx_model)?", first)
    assert sum(bool(re.match(r"-(?!--)", line)) for line in lines) == 1
    assert sum(bool(re.match(r"\+(?!\+\+)", line)) for line in lines) <= 1


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_patches_apply(tmp_path: Path) -> None:
    # In a repository git looks for the files of a patch from its root on, which is where they are.
    shutil.copytree(ROOT / "cpp/src", tmp_path / "cpp/src")
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    wrong = [
        path.stem
        for path in PATCHES
        if subprocess.run(["git", "apply", "--check", path], cwd=tmp_path, capture_output=True).returncode
    ]
    assert not wrong
