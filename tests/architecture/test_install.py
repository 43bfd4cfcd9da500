"""The first minute: what is installed, and the error of a machine without a compiler."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_a_missing_compiler_is_an_error_that_names_the_package(tmp_path: Path) -> None:
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not installed")
    environment = os.environ | {"CXX": "no-such-compiler"}
    done = subprocess.run([cmake, "-S", ROOT, "-B", tmp_path], env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert "needs a C++17 compiler" in done.stderr
    assert "apt install g++" in done.stderr


def test_the_extra_all_leaves_out_ray() -> None:
    section = PYPROJECT.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = dict(re.findall(r"^([\w-]+) = \[(.*?)\](?:  #[^\n]*)?$", section, re.M | re.S))
    found = extras["all"]
    for extra in re.findall(r"mha_native\[(.*)\]", extras["all"])[0].split(","):
        found += extras[extra]
    needed = {"matplotlib", "tokenizers", "jinja2", "Pillow", "soundfile", "soxr", "starlette", "uvicorn", "shtab"}
    assert needed <= set(re.findall(r"\w+", found))
    assert "ray" not in re.findall(r"\w+", found)


def test_tools_are_groups_which_do_not_compile_the_package() -> None:
    groups = re.sub("#.*", "", PYPROJECT.partition("[dependency-groups]")[2].partition("\n[")[0])
    assert re.findall(r"^(\w+) = \[", groups, re.M) == ["clients", "dev", "docs"]
    assert "mha_native" not in groups
