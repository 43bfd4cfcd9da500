"""A tiny model, in files and loaded. A module that takes another one has fixtures of these names itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_bert

from mha_native.sentence_transformers import SentenceTransformer


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tiny_bert.write(tmp_path / "model")


@pytest.fixture
def model(directory: Path) -> SentenceTransformer:
    return SentenceTransformer(str(directory), device="cpu")
