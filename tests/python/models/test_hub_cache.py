"""Names of models: in the cache of Hugging Face, or downloaded by its library and in no other way."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
from command_line import run
from model_files import assert_not_loaded
from tolerance import assert_same_bits

from mha_native.models import SentenceEncoder
from mha_native.models.files.hub_cache import find_directory

COMMIT = "0123456789abcdef0123456789abcdef01234567"
VARIABLES = [
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_HOME",
    "XDG_CACHE_HOME",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.chdir(tmp_path)


def _fill(cache: Path, repository: str = "org/tiny", commit: str = COMMIT) -> Path:
    """The tiny model in the cache, as the library lays it out: names that are links to what they hold."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    snapshot = tiny_bert.write(folder / "snapshots" / commit)
    (folder / "blobs").mkdir()
    for i, path in enumerate(sorted(path for path in snapshot.rglob("*") if path.is_file())):
        blob = folder / "blobs" / str(i)
        path.rename(blob)
        path.symlink_to(blob)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit, encoding="ascii")
    return snapshot


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, "home/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "{}/xdg"}, "xdg/huggingface/hub"),
        ({"HF_HOME": "{}/hf"}, "hf/hub"),
        ({"HF_HOME": "~/hf"}, "home/hf/hub"),
        ({"HF_HOME": "$HOME/hf"}, "home/hf/hub"),
        ({"HF_HOME": "{}/hf", "HF_HUB_CACHE": "{}/cache"}, "cache"),
        ({"HF_HOME": "{}/hf", "HUGGINGFACE_HUB_CACHE": "{}/cache"}, "cache"),
        ({"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": "", "HF_HOME": ""}, "home/.cache/huggingface/hub"),
    ],
    ids=str,
)
def test_a_model_in_the_cache(
    variables: dict[str, str], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    snapshot = _fill(tmp_path / place)
    assert find_directory("org/tiny") == snapshot
    expected = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path / "plain")).encode(tiny_bert.TEXTS)
    assert_same_bits(SentenceEncoder.from_pretrained("org/tiny").encode(tiny_bert.TEXTS), expected)


def test_a_name_without_an_organization(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    snapshot = _fill(tmp_path / "cache", "sentence-transformers/all-tiny-v1.5")
    assert find_directory("all-tiny-v1.5") == snapshot


def test_a_directory_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    _fill(tmp_path / "cache")
    tiny_bert.write(tmp_path / "org" / "tiny")
    assert find_directory("org/tiny") == Path("org/tiny")
    SentenceEncoder.from_pretrained("org/tiny")


class _Library(types.ModuleType):
    """What of huggingface_hub is called; it downloads the tiny model, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__("huggingface_hub")
        self.calls: list[dict[str, Any]] = []
        self.error = error

    def snapshot_download(self, repository: str, *, cache_dir: Path, allow_patterns: list[str], **options: str) -> str:
        self.calls.append({"repository": repository, "allow_patterns": allow_patterns, **options})
        if self.error is not None:
            raise self.error
        return str(_fill(Path(cache_dir), repository))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Library:
    library = _Library()
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    return library


def test_a_download(library: _Library) -> None:
    for _ in range(2):  # it is in the cache then
        SentenceEncoder.from_pretrained("org/tiny")
    assert [call["repository"] for call in library.calls] == ["org/tiny"]
    assert not any(pattern.endswith((".bin", ".py")) for pattern in library.calls[0]["allow_patterns"])


@pytest.mark.parametrize("commit", ["../../elsewhere", "", "main", "x" * 40, "0" * 39, "0" * 4000])
def test_a_cache_without_the_model(commit: str, library: _Library, tmp_path: Path) -> None:
    refs = tmp_path / "cache" / "models--org--tiny" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text(commit, encoding="ascii")
    library.error = RuntimeError("stop")
    assert_not_loaded("org/tiny", "stop", error=OSError)
    assert len(library.calls) == 1


def test_a_cache_without_weights(library: _Library, tmp_path: Path) -> None:
    snapshot = _fill(tmp_path / "cache")
    (snapshot / "model.safetensors").unlink()
    library.error = ConnectionError("the network\nis down")
    assert_not_loaded("org/tiny", "org/tiny", "the network", error=OSError)
    (snapshot / "pytorch_model.bin").touch()
    assert_not_loaded("org/tiny", "pickle")


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
@pytest.mark.parametrize("value", ["1", "on", "True", "YES"])
def test_nothing_is_downloaded_offline(
    variable: str, value: str, library: _Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert_not_loaded("org/tiny", "org/tiny", "not in the cache", "HF_HUB_OFFLINE", error=FileNotFoundError)
    assert library.calls == []
    monkeypatch.setenv(variable, "0")
    SentenceEncoder.from_pretrained("org/tiny")
    assert len(library.calls) == 1


def test_without_the_library(tmp_path: Path) -> None:
    assert_not_loaded("org/tiny", "pip install huggingface_hub", error=FileNotFoundError)


@pytest.mark.parametrize(
    "name",
    ["./org/tiny", "/org/tiny", "org/tiny/", "a/b/c", "../tiny", "org/..", "~/tiny", "org tiny", "", "org/ti--ny",
     "a\0b", "x" * 97, "C:\\tiny", ".", "-tiny", "https://example.com/tiny", Path("org/tiny")],
    ids=ascii,
)  # fmt: skip
def test_what_is_no_name_of_a_model(name: Any, library: _Library) -> None:
    assert_not_loaded(name, "config.json", "does not exist", error=FileNotFoundError)
    assert library.calls == []


def test_the_command_line(library: _Library, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "embed", "--model", "org/tiny", "dog")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    library.error = ConnectionError("the network is down")
    code, out, err = run(capsys, "embed", "--model", "org/other", "dog")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "the network is down" in err
    assert np.all([call["repository"].startswith("org/") for call in library.calls])


class _Broken:
    def __fspath__(self) -> str:
        raise LookupError("broken")


@pytest.mark.parametrize("directory", [5, None, _Broken()], ids=["int", "None", "broken"])
def test_what_is_no_path(directory: Any) -> None:
    with pytest.raises(TypeError, match=r"^SentenceEncoder\.from_pretrained: model must be a path or a name; got "):
        SentenceEncoder.from_pretrained(directory)


def test_a_revision(library: _Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    snapshot = _fill(tmp_path / "other")
    commit = snapshot.name
    (snapshot.parents[1] / "refs" / "v1.0").write_text(commit)
    for revision in (None, "main", "v1.0", commit):
        assert find_directory("org/tiny", revision=revision, cache_folder=tmp_path / "other") == snapshot
    assert library.calls == []
    for revision in ("../main", "refs/../main", "/main", "", "v1.0/", 3):
        with pytest.raises(ValueError, match="revision must be a branch, a tag or a commit"):
            find_directory("org/tiny", revision=revision)  # type: ignore[arg-type]


def test_a_download_of_a_revision(library: _Library, tmp_path: Path) -> None:
    cache: dict[str, Any] = {"cache_folder": tmp_path / "other", "revision": "v1.0"}
    with pytest.raises(
        FileNotFoundError, match=r"revision v1.0 of org/tiny is not in the cache .* local_files_only is set"
    ):
        find_directory("org/tiny", local_files_only=True, **cache)
    assert library.calls == []
    assert find_directory("org/tiny", token="secret", **cache).parents[2] == tmp_path / "other"
    assert (library.calls[0]["revision"], library.calls[0]["token"]) == ("v1.0", "secret")
