"""`SentenceTransformer` over images and texts against sentence-transformers: its two layouts, and plain folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("tokenizers")

from damage import ODD  # noqa: E402
from saved_image_models import save_clip, save_vit  # noqa: E402

from mha_native.sentence_transformers import SentenceTransformer  # noqa: E402

TEXTS = ["", "a dog", "the dog, the dog and the dog and a dog that is cut", "0123"]
LAYOUTS = ["CLIPModel", "Transformer", "Normalize and Dense", "clip", "pooled vit", "vit", "dinov2"]


@pytest.fixture(scope="module")
def theirs() -> Any:
    return pytest.importorskip("sentence_transformers", minversion="6.2")


def pictures() -> list[Any]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in ((40, 60), (33, 20))]


@pytest.fixture(scope="module")
def folders(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each layout."""
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import CLIPModel, Pooling

    home = tmp_path_factory.mktemp("models")
    clip, vit = save_clip(home / "clip"), save_vit(home / "vit")
    found = {"clip": clip, "vit": vit, "dinov2": save_vit(home / "dinov2", model_type="dinov2")}

    def save(name: str, *modules: Any) -> None:
        found[name] = home / name
        theirs.SentenceTransformer(modules=list(modules)).save_pretrained(str(home / name))

    save("Transformer", Transformer(str(clip)))
    save("Normalize and Dense", Transformer(str(clip)), Dense(20, 12), Normalize())
    save("pooled vit", Transformer(str(vit)), Pooling(24, "cls"))
    # As older versions have saved it: the module in a folder of its own, and no settings.
    save("CLIPModel", CLIPModel(str(clip)))
    root = found["CLIPModel"]
    (root / "0_CLIPModel").mkdir()
    for path in list(root.iterdir()):
        if path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json", "README.md"):
            path.rename(root / "0_CLIPModel" / path.name)
    (root / "0_CLIPModel" / "sentence_bert_config.json").unlink()
    entry = {"idx": 0, "name": "0", "path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}
    (root / "modules.json").write_text(json.dumps([entry]))
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_embeddings(theirs: Any, folders: dict[str, Path], layout: str, tmp_path: Path) -> None:
    """Every kind of input, in every form of the result."""
    oracle, model = theirs.SentenceTransformer(str(folders[layout])), SentenceTransformer(folders[layout])
    assert model.modalities == oracle.modalities
    assert model.get_embedding_dimension() == oracle.get_embedding_dimension()
    first, second = pictures()
    first.save(tmp_path / "a.png")
    inputs: list[Any] = [
        first, [first, second], str(tmp_path / "a.png"), np.asarray(second), {"image": first},
        [np.moveaxis(np.asarray(second), -1, 0), {"image": str(tmp_path / "a.png")}],
    ]  # fmt: skip
    if "text" in model.modalities:
        inputs += [TEXTS, "a dog", {"text": "a dog"}, ("a", "b"), str(tmp_path / "missing.png")]
        assert model.max_seq_length == oracle.max_seq_length
    for given in inputs:
        for form in ({}, {"normalize_embeddings": True}, {"truncate_dim": 7, "normalize_embeddings": True}):
            wanted = oracle.encode(given, **form)
            found = model.encode(given, **form)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5, err_msg=f"{given} {form}")
    if "text" in model.modalities:
        wanted = oracle.encode(TEXTS, prompt="the ", precision="int8")
        np.testing.assert_allclose(model.encode(TEXTS, prompt="the ", precision="int8"), wanted, atol=1)


def test_lists_of_texts_and_images(folders: dict[str, Path]) -> None:
    """Each input has the bits that it has alone, also under a progress bar."""
    model = SentenceTransformer(folders["Transformer"])
    mixed = ["a dog", *pictures(), "the", np.asarray(pictures()[1]), {"image": pictures()[0]}, {"text": "a dog"}]
    alone = np.stack([model.encode(each) for each in mixed])
    np.testing.assert_array_equal(model.encode(mixed), alone)
    np.testing.assert_array_equal(model.encode(mixed, show_progress_bar=True), alone)
    scores = model.similarity(model.encode_query("a dog"), model.encode_document(mixed))
    assert scores[0, 0] == scores[0, -1] == pytest.approx(1)
    assert model.encode([]).shape == (0,)


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        (["a", "https://example.org/a.png?x=1"], ValueError, "image 1 .* URLs are not downloaded"),
        (["a", 3], TypeError, "image 1 must be a PIL image"),
        (["a", "b", {"image": "a.png", "text": "a"}], ValueError, "one of image and text; got image, text at 2"),
        ([["a", "b"]], TypeError, "got list at 0"),
        (["a", np.zeros(5)], TypeError, "got ndarray at 1"),
        (["a", "\ud800"], ValueError, "text 1 holds half of a surrogate pair"),
        (["a", {"image": "missing.png"}], FileNotFoundError, "image 1: missing.png does not exist"),
    ],
)
def test_wrong_inputs(folders: dict[str, Path], given: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=f"SentenceTransformer.encode: .*{says}"):
        SentenceTransformer(folders["clip"]).encode(given)


def test_unsupported_calls(folders: dict[str, Path]) -> None:
    model, images = SentenceTransformer(folders["clip"]), SentenceTransformer(folders["vit"])
    for value in ("token_embeddings", None):
        with pytest.raises(ValueError, match="output_value must be 'sentence_embedding'"):
            model.encode("a", output_value=value)
    with pytest.raises(ValueError, match="reads no texts; got a text at 1"):
        images.encode([pictures()[0], "a dog"])
    with pytest.raises(ValueError, match="must not change"):
        model.max_seq_length = 5
    assert (images.supports("text"), images.supports("image"), model.supports("text")) == (False, True, True)


@pytest.mark.parametrize("name", ["sentence_bert_config.json", "modules.json"])
def test_damaged_settings(theirs: Any, folders: dict[str, Path], name: str, tmp_path: Path) -> None:
    """Every entry with other values: refused, or the embeddings of sentence-transformers."""
    home = tmp_path / "model"
    shutil.copytree(folders["Transformer"], home)
    raw = json.loads((home / name).read_text())
    image, refused, computed = pictures()[0], 0, 0
    values = [value for value in ODD if not isinstance(value, str) or len(value) < 9]
    for entry in raw if isinstance(raw, dict) else ("type", "path"):  # others have no effect here
        for value in values:
            damaged = raw | {entry: value} if isinstance(raw, dict) else [raw[0] | {entry: value}]
            (home / name).write_text(json.dumps(damaged))
            try:
                found = SentenceTransformer(home).encode(image)
            except (ValueError, OSError):
                refused += 1
                continue
            computed += 1
            wanted = theirs.SentenceTransformer(str(home)).encode(image)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5, err_msg=str(damaged))
    assert refused > (30 if computed else 40)
