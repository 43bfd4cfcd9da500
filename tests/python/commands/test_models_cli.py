"""``python -m mha_native models``: the models of the cache, of every kind, and the damaged ones among them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf_files
import hub_caches
import pytest
from command_line import run

pytest.importorskip("tokenizers")

import tiny_bert
import tiny_classifiers
import tiny_language_model
import tiny_multi_vector
import tiny_sparse
import tiny_speech

import mha_native.models as models
from mha_native.commands._cached_models import cached_models
from mha_native.models.speech_seq2seq import SpeechSeq2Seq

TEXT, CHAT = ["tokenizers"], ["tokenizers", "jinja2"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HUGGINGFACE_HUB_CACHE", raising=False)
    return tmp_path / "home" / "hub"


def _listed(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    code, out, err = run(capsys, "models", "--json")
    assert (code, err) == (0, "")
    return {entry["name"]: entry for entry in json.loads(out)}


def _unknown(path: Path) -> Path:
    tiny_bert.write(path)
    changes = {"model_type": "moonshine", "architectures": ["MoonshineForConditionalGeneration"]}
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(config))
    (path / "modules.json").unlink(missing_ok=True)
    return path


def test_models_of_every_kind(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "models") == (0, f"No models in the cache {cache}\n", "")
    plain = tiny_bert.write(tmp_path / "bert")
    hub_caches.fill(cache, "org/embeds", plain)
    hub_caches.fill(cache, "org/sparse", tiny_sparse.write_files(tmp_path / "sparse"))
    for name, write in (("org/late", tiny_multi_vector.write_pylate), ("org/colbert", tiny_multi_vector.write_colbert)):
        hub_caches.fill(cache, name, write(tmp_path / name))
    hub_caches.fill(cache, "org/labels", tiny_classifiers.write(tmp_path / "labels"))
    hub_caches.fill(cache, "org/tokens", tiny_classifiers.write(tmp_path / "tokens", tokens=True))
    hub_caches.fill(cache, "org/continues", tiny_language_model.write(tmp_path / "gpt2"))
    for name in ("tiny-Q4_K_M.gguf", "tiny-q8.gguf", "other-q8.gguf"):
        hub_caches.fill(cache, "org/files", gguf_files.write(tmp_path / name))
    hub_caches.fill(cache, "org/hears", _unknown(tmp_path / "moonshine"))
    hub_caches.fill(cache, "org/writes", tiny_speech.write(tmp_path / "whisper", tiny_speech.config()))
    hub_caches.fill(cache, "org/faster", tiny_speech.write_ctranslate2(tmp_path / "faster", tiny_speech.config()))
    (cache / "datasets--org--numbers").mkdir()
    (cache / "version.txt").write_text("1")
    found = _listed(capsys)
    rows = {
        name: (entry["family"], entry["kind"], entry["needs"]) for name, entry in found.items() if entry["is_supported"]
    }
    assert rows == {
        "org/embeds": ("bert", "embedding", TEXT),
        "org/sparse": ("bert", "sparse embedding", TEXT),
        "org/late": ("bert", "multi-vector embedding", TEXT),
        "org/colbert": ("bert", "multi-vector embedding", TEXT),
        "org/labels": ("bert", "classifier", TEXT),
        "org/tokens": ("bert", "token classifier", TEXT),
        "org/continues": ("gpt2", "language model", CHAT),
        "org/writes": ("whisper", "speech model", TEXT),
        "org/faster": ("whisper", "speech model", TEXT),
        "org/files:Q4_K_M": ("llama", "GGUF F32", TEXT),
        "org/files:tiny-q8.gguf": ("llama", "GGUF F32", TEXT),
        "org/files:other-q8.gguf": ("llama", "GGUF F32", TEXT),
    }
    assert found["org/hears"]["reason"] == "the family 'moonshine' is unsupported"
    size = sum(path.stat().st_size for path in plain.rglob("*") if path.is_file())
    assert found["org/embeds"]["bytes"] == size + len(hub_caches.COMMIT)
    # The names are the ones that the classes take.
    models.SentenceEncoder.from_pretrained("org/embeds")
    models.SparseEncoder.from_pretrained("org/sparse")
    models.MultiVectorEncoder.from_pretrained("org/late")
    models.MultiVectorEncoder.from_pretrained("org/colbert")
    models.TextClassifier.from_pretrained("org/labels")
    models.TokenClassifier.from_pretrained("org/tokens")
    for name in ("org/writes", "org/faster"):
        SpeechSeq2Seq.from_pretrained(name)
    for name in ("org/continues", *(name for name in rows if name.startswith("org/files"))):
        models.CausalLM.from_pretrained(name)


def test_damaged_models_do_not_end_the_list(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def damaged(name: str) -> Path:
        return hub_caches.fill(cache, f"org/{name}", tiny_bert.write(tmp_path / name))

    cut = (damaged("cut") / "model.safetensors").resolve()
    cut.write_bytes(cut.read_bytes()[:-100])
    partial = damaged("partial") / "model.safetensors"
    partial.resolve().rename(partial.resolve().with_suffix(".incomplete"))
    partial.unlink()
    (damaged("gone") / "config.json").resolve().unlink()
    (damaged("no_json") / "config.json").write_text("{")
    (damaged("wordless") / "tokenizer.json").unlink()
    (damaged("no_object") / "config.json").write_text("[]")
    (damaged("strange") / "config.json").write_text('{"model_type": ["bert"], "architectures": 3}')
    (cache / "models--org--empty").mkdir()
    file = gguf_files.write(tmp_path / "cut-Q4_0.gguf")
    file.write_bytes(file.read_bytes()[:300])
    hub_caches.fill(cache, "org/file", file)
    hub_caches.fill(cache, "org/whole", tiny_bert.write(tmp_path / "whole"))
    found = _listed(capsys)
    reasons = {name.partition("/")[2]: entry["reason"] for name, entry in found.items()}
    assert reasons.pop("whole") is None
    words = {
        "cut": "model.safetensors is not a valid safetensors file",
        "partial": "a download is incomplete: model.safetensors does not exist",
        "gone": "config.json does not exist",
        "no_json": "config.json is not valid JSON",
        "wordless": "tokenizer.json does not exist",
        "no_object": "config.json must hold an object",
        "strange": "the family \"['bert']\" is unsupported",
        "empty": "the branch main is not here",
        "file:Q4_0": "cut-Q4_0.gguf is not a valid GGUF file",
    }
    assert reasons.keys() == words.keys()
    for name, word in words.items():
        assert word in reasons[name]
        assert str(cache) not in reasons[name]


def test_a_table_for_people(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    hub_caches.fill(cache, "org/continues", tiny_language_model.write(tmp_path / "gpt2"))
    hub_caches.fill(cache, "org/hears", _unknown(tmp_path / "moonshine"))
    header, first, second = run(capsys, "models")[1].splitlines()
    assert header.split() == ["model", "family", "kind", "size", "supported"]
    assert first.split()[:4] == ["org/continues", "gpt2", "language", "model"]
    assert first.endswith(" kB  yes, with tokenizers and jinja2")
    assert second.endswith("  no: the family 'moonshine' is unsupported")
    monkeypatch.setattr("mha_native.commands.models.find_spec", lambda name: None if name == "jinja2" else sys)
    assert run(capsys, "models")[1].splitlines()[1].endswith("  yes, after pip install jinja2")
    monkeypatch.setenv("COLUMNS", "60")
    assert {len(line) for line in run(capsys, "models")[1].splitlines()[1:]} == {60}


def test_real_models(
    cache: Path, model_directory: Path, language_model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub_caches.fill(cache, "sentence-transformers/all-MiniLM-L6-v2", model_directory)
    hub_caches.fill(cache, "HuggingFaceTB/SmolLM2-135M-Instruct-GGUF", language_model_file)
    assert [model[:3] + model[4:] for model in cached_models(cache)] == [
        ("HuggingFaceTB/SmolLM2-135M-Instruct-GGUF:Q4_1", "llama", "GGUF Q4_1", None, tuple(CHAT)),
        ("sentence-transformers/all-MiniLM-L6-v2", "bert", "embedding", None, tuple(TEXT)),
    ]
