"""GGUF files of the cache of Hugging Face by the name of their model and a part of their own."""

from __future__ import annotations

import re
from pathlib import Path

import gguf_files
import hub_caches
import pytest
import tiny_bert

from mha_native.models import CausalLM
from mha_native.models.files.gguf_names import find_gguf

NAMES = ["tiny-Q4_K_M.gguf", "tiny-Q4_K_S.gguf", "tiny.IQ4_K_M.gguf", "tiny-q8_0.gguf"]


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        found = hub_caches.fill(tmp_path / "cache", "org/tiny", gguf_files.write(tmp_path / name))
    return found


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("Q4_K_M", "tiny-Q4_K_M.gguf"),
        ("q4_k_s", "tiny-Q4_K_S.gguf"),
        ("IQ4_K_M", "tiny.IQ4_K_M.gguf"),
        ("Q8_0", "tiny-q8_0.gguf"),
        ("*q8*", "tiny-q8_0.gguf"),
        ("tiny-Q4_K_M.gguf", "tiny-Q4_K_M.gguf"),
    ],
)
def test_a_file_by_a_part_of_its_name(pattern: str, name: str, snapshot: Path) -> None:
    assert find_gguf(f"org/tiny:{pattern}") == snapshot / name


def test_the_model_is_the_one_in_the_file(snapshot: Path, tmp_path: Path) -> None:
    model = CausalLM.from_pretrained("org/tiny:Q8_0")
    assert model.generate_tokens([5, 6]).tolist() == CausalLM.from_pretrained(NAMES[3]).generate_tokens([5, 6]).tolist()
    hub_caches.fill(tmp_path / "cache", "org/one", tmp_path / NAMES[0])
    assert isinstance(CausalLM.from_pretrained("org/one"), CausalLM)


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("org/tiny:Q5_K_M", FileNotFoundError, ["no GGUF file in the cache", *NAMES]),
        ("org/tiny:Q4_K", FileNotFoundError, NAMES),
        ("org/tiny:*Q4*", ValueError, ["must be one GGUF file", *NAMES[:3], "org/tiny:Q4_K_M"]),
        ("org/tiny", ValueError, ["must be one GGUF file", *NAMES]),
        ("org/other:Q4_K_M", FileNotFoundError, ["hf download org/other FILE"]),
    ],
)
def test_no_file_or_several(name: str, error: type[Exception], words: list[str], snapshot: Path) -> None:
    with pytest.raises(error, match=rf"^CausalLM.from_pretrained: {re.escape(name)} ") as caught:
        CausalLM.from_pretrained(name)
    for word in words:
        assert word in str(caught.value)


def test_other_names_are_not_of_files(snapshot: Path, tmp_path: Path) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "a:b").touch()
    hub_caches.fill(tmp_path / "cache", "org/bert", tiny_bert.write(tmp_path / "bert"))
    hub_caches.fill(tmp_path / "cache", "org/bert", tmp_path / NAMES[0])
    for name in ("org/a:b", "C:/models/x.gguf", "tiny:Q8_0", "org/bert", "org/nowhere", "/org/tiny:Q8_0"):
        assert find_gguf(name) is None
