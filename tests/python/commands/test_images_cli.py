"""``python -m mha_native embed``, ``classify`` and ``search`` with ``--images``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import assert_refused, run

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("transformers")

from hub_caches import fill  # noqa: E402
from saved_image_models import save_clip, save_vit  # noqa: E402

from mha_native.models import ImageClassifier, ImageEncoder, ImageTextEncoder  # noqa: E402
from mha_native.sentence_transformers import SentenceTransformer  # noqa: E402


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_clip(tmp_path_factory.mktemp("clip")))


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_vit(tmp_path_factory.mktemp("vit"), labels=7))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, one of them in a folder below, and a file that is none."""
    root = tmp_path_factory.mktemp("pictures")
    (root / "below").mkdir()
    rng = np.random.default_rng(0)
    for i, name in enumerate(["b.png", "a.JPG", "below/c.webp", "d.bmp"]):
        Image.fromarray(rng.integers(0, 256, (30 + i, 40, 3), dtype=np.uint8)).save(root / name)
    (root / "notes.txt").write_text("no image")
    return root


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_embed(capsys: pytest.CaptureFixture[str], clip: str, vit: str, folder: Path, tmp_path: Path) -> None:
    """A folder in the order of names; files; JSON lines and .npy; texts of the same model."""
    wanted = [str(folder / name) for name in ("a.JPG", "b.png", "below/c.webp", "d.bmp")]
    for model in (clip, vit):
        code, out, _ = run(capsys, "embed", "--model", model, "--images", str(folder))
        assert code == 0
        found = lines(out)
        assert [line["image"] for line in found] == wanted
        embeddings = ImageEncoder.from_pretrained(model).encode(wanted)
        np.testing.assert_array_equal(np.array([line["embedding"] for line in found], np.float32), embeddings)
        output = str(tmp_path / "out.npy")
        code, out, _ = run(capsys, "embed", "--model", model, "--images", wanted[3], str(folder), "--output", output)
        assert code == 0
        assert out == f"5 embeddings of {embeddings.shape[1]} features: {output}\n"
        np.testing.assert_array_equal(np.load(output), embeddings[[3, 0, 1, 2, 3]])
    code, out, _ = run(capsys, "embed", "--model", clip, "the dog", "a")
    texts = ImageTextEncoder.from_pretrained(clip).encode_texts(["the dog", "a"], normalize=False)
    np.testing.assert_array_equal(np.array([line["embedding"] for line in lines(out)], np.float32), texts)


def test_classify(capsys: pytest.CaptureFixture[str], vit: str, folder: Path) -> None:
    paths = [str(folder / "b.png"), str(folder / "d.bmp")]
    wanted = ImageClassifier.from_pretrained(vit).classify(paths, top_k=2)
    code, out, _ = run(capsys, "classify", "--model", vit, "--images", *paths, "--top-k", "2")
    assert code == 0
    for line, path, labels in zip(lines(out), paths, wanted, strict=True):
        assert line["image"] == path
        assert [label["label"] for label in line["labels"]] == [label["label"] for label in labels]
        np.testing.assert_allclose([label["score"] for label in line["labels"]], [each["score"] for each in labels])
    code, out, _ = run(capsys, "classify", "--model", vit, "--images", paths[0])
    assert lines(out) == [{"image": paths[0], **lines(out)[0]}]
    assert lines(out)[0]["label"] == wanted[0][0]["label"]


def test_search(capsys: pytest.CaptureFixture[str], clip: str, folder: Path) -> None:
    model = SentenceTransformer(clip)
    paths = [str(folder / name) for name in ("a.JPG", "b.png", "below/c.webp", "d.bmp")]
    scores = model.similarity(model.encode("the dog"), model.encode([{"image": path} for path in paths]))[0]
    code, out, _ = run(capsys, "search", "--model", clip, "the dog", "--images", str(folder), "--top-k", "3")
    assert code == 0
    best = np.argsort(-scores)[:3]
    assert [line["image"] for line in lines(out)] == [paths[i] for i in best]
    assert [line["corpus_id"] for line in lines(out)] == best.tolist()


def test_refusals(capsys: pytest.CaptureFixture[str], clip: str, vit: str, folder: Path, tmp_path: Path) -> None:
    """An image that cannot be read ends a run with its name; a file of output stays as it was."""
    (tmp_path / "bad.png").write_bytes((folder / "b.png").read_bytes()[:200])
    output = tmp_path / "out.jsonl"
    output.write_text("before")
    bad, good = str(tmp_path / "bad.png"), str(folder / "b.png")
    code, out, err = run(capsys, "embed", "--model", clip, "--images", good, bad, "--output", str(output))
    assert_refused(code, out, err, "image 1", "bad.png", "cannot be read")
    assert output.read_text() == "before"
    notes = str(folder / "notes.txt")
    for words, arguments in (
        (("notes.txt", "cannot be read"), ["classify", "--model", vit, "--images", notes]),
        (("cannot read missing", "No such file"), ["embed", "--model", clip, "--images", "missing"]),
        (("has no files that end in",), ["embed", "--model", clip, "--images", str(tmp_path / "empty")]),
        (("reads images and no texts",), ["embed", "--model", vit, "a"]),
        (("does not go with --images",), ["classify", "--model", vit, "--images", good, "--aggregation", "max"]),
        (("a model of images and texts",), ["search", "--model", vit, "a", "--images", good]),
        (("ForImageClassification",), ["classify", "--model", clip, "--images", good]),
    ):
        (tmp_path / "empty").mkdir(exist_ok=True)
        code, out, err = run(capsys, *arguments)
        assert_refused(code, out, err, *words)
    for words, arguments in (("a prompt does not go with", ["--prompt", "a"]), ("--sparse does not go", ["--sparse"])):
        with pytest.raises(SystemExit):
            run(capsys, "embed", "--model", clip, "--images", good, *arguments)
        assert words in capsys.readouterr().err


def test_models(capsys: pytest.CaptureFixture[str], clip: str, vit: str, tmp_path: Path, monkeypatch: Any) -> None:
    """The command `models` lists models of images with their kinds."""
    for name, source in (("a/clip", clip), ("b/vit", vit)):
        fill(tmp_path, name, Path(source))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    code, out, _ = run(capsys, "models", "--json")
    assert code == 0
    found = {model["name"]: model for model in json.loads(out)}
    assert found["a/clip"]["kind"] == "image and text embedding"
    assert found["b/vit"]["kind"] == "image classifier"
    assert found["a/clip"]["is_supported"], found
    assert found["b/vit"]["is_supported"], found
    assert found["b/vit"]["needs"] == ["Pillow"]
