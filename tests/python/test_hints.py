"""Hints about packages to install: one function writes them, and none names a package that nobody has published."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mha_native.functions import needed_packages
from mha_native.functions.needed_packages import pip_install

ROOT = Path(__file__).resolve().parents[2]


def test_hints_name_packages_until_there_is_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("jinja2>=3.1.6", "scikit-learn")
    assert pip_install(*given, extra="chat") == pip_install(*given) == 'pip install "jinja2>=3.1.6" scikit-learn'
    monkeypatch.setattr(needed_packages, "_IS_ON_INDEX", True)
    assert pip_install(*given, extra="chat") == 'pip install "mha_native[chat]"'
    assert pip_install(*given) == 'pip install "jinja2>=3.1.6" scikit-learn'


def test_nothing_else_installs_this_package_from_the_index() -> None:
    install = re.compile(r"pip install[^\n`;&]*?[\s\"']mha[_-]native\b(?!/)")
    files = [path for name in ("python", "bench", "examples", "docs") for path in (ROOT / name).rglob("*")]
    texts = [path for path in [*files, *ROOT.glob("*.md")] if path.suffix in (".py", ".md", ".ipynb", ".toml")]
    assert len(texts) > 300
    found = [f"{path}: {hit[0]}" for path in texts for hit in install.finditer(path.read_text(encoding="utf-8"))]
    assert not found
