"""Encoders of images: the same bits alone and in a batch, dtypes, copies, and what is refused.

`test_images_against_transformers.py` compares them with transformers.
"""

from __future__ import annotations

import copy
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_images
from model_files import write_safetensors
from tiny_images import FAMILIES, PAIRS, config, tensors
from tolerance import assert_same_bits

from mha_native.models import ImageClassifier, ImageEncoder, ImageTextEncoder
from mha_native.models.front_ends import patches

pytest.importorskip("PIL")

Array = np.ndarray[Any, Any]

IMAGES = list(np.random.default_rng(0).integers(0, 256, (5, 40, 33, 3), dtype=np.uint8))
TEXT = config("siglip")["text_config"]
TEXTS = ["a b", "", "ab c d e f g a b c d e f g"]
FORMATS = [("float32", None), ("bfloat16", None), ("float16", None), ("float64", None), ("float32", "int8"),
           ("float32", "int4")]  # fmt: skip


@pytest.mark.parametrize("model_type", FAMILIES)
def test_an_image_alone_and_in_a_batch(model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every format of weights, for any number of threads, and for batches of several sizes."""
    folder = tiny_images.write(tmp_path, config(model_type))
    exact = ImageEncoder.from_pretrained(folder, dtype="float64").encode(IMAGES)
    for dtype, weight_dtype in FORMATS:
        model = ImageEncoder.from_pretrained(folder, dtype=dtype, weight_dtype=weight_dtype)
        expected = model.encode(IMAGES, num_threads=1)
        assert np.abs(expected - exact).max() < (0.3 if weight_dtype or "16" in dtype else 1e-4) * np.abs(exact).max()
        for image, vector in zip(IMAGES, expected, strict=True):
            assert_same_bits(model.encode(image, num_threads=2), vector, label=(dtype, weight_dtype))
        for most in (20, 40, 2048):  # one image at a time, two, and all
            monkeypatch.setattr("mha_native.models.image_encoder.MOST_TOKENS", most)
            assert_same_bits(model.encode(IMAGES, num_threads=3), expected, label=most)
            assert_same_bits(model._embed_pixels(model.preprocessing(IMAGES), 1), expected, label=most)
    assert_same_bits(model.encode(np.stack(IMAGES)), expected)
    assert model.encode([]).shape == (0, model.embed_dim)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_rows_and_attention_weights(model_type: str, tmp_path: Path) -> None:
    model = ImageEncoder.from_pretrained(tiny_images.write(tmp_path, config(model_type)))
    rows, columns = model.patch_grid
    special = {"deit": 2, "dinov2_with_registers": 3, "siglip": 0}.get(model_type, 1)
    assert (rows, columns, model.num_special_rows, model.image_size) == (4, 4, special, (32, 32))
    states = model.hidden_states(IMAGES)
    assert states.shape == (5, special + 16, tiny_images.WIDTH)
    assert_same_bits(model.hidden_states(IMAGES[3]), states[3])
    assert model.hidden_states([]).shape == (0, *states.shape[1:])
    weights = model.attention_weights(IMAGES[0])
    assert weights.shape == (2, 3, special + 16, special + 16)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert f"embed_dim={model.embed_dim}, num_layers=2, num_heads=3, image_size=(32, 32)" in repr(model)


def test_copies(tmp_path: Path) -> None:
    models = [ImageEncoder.from_pretrained(tiny_images.write(tmp_path / name, config(name))) for name in FAMILIES]
    classifier = ImageClassifier.from_pretrained(tiny_images.write(tmp_path / "labels", config("dinov2", 3)))
    for model in models:
        for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
            assert_same_bits(other.encode(IMAGES), model.encode(IMAGES))
        assert_same_bits(model.astype("float64").astype("float32").encode(IMAGES), model.encode(IMAGES))
        assert model.quantize("int8").weight_dtype == "int8"
        assert "int8" in model.quantize("int8").weight_bytes
    for other in (pickle.loads(pickle.dumps(classifier)), classifier.astype("float64").astype("float32")):
        assert_same_bits(other.predict_proba(IMAGES), classifier.predict_proba(IMAGES))


@pytest.mark.parametrize("model_type", PAIRS)
def test_images_and_texts(model_type: str, tmp_path: Path) -> None:
    """A text or an image has the same bits alone and with others, in both encoders of every copy."""
    model = ImageTextEncoder.from_pretrained(tiny_images.write(tmp_path, config(model_type)))
    for other in (model, model.astype("bfloat16"), model.quantize("int8"), pickle.loads(pickle.dumps(model))):
        of_texts, of_images = other.encode_texts(TEXTS), other.encode_images(IMAGES)
        for text, vector in zip(TEXTS, of_texts, strict=True):
            assert_same_bits(other.encode_texts(text, num_threads=2), vector, label=text)
        assert_same_bits(other.encode_images(IMAGES[2], num_threads=2), of_images[2])
        np.testing.assert_allclose(np.linalg.norm(of_images, axis=1), 1, rtol=1e-5)
        logits = other.logits(IMAGES, TEXTS)
        assert_same_bits(other.logits(IMAGES[1], TEXTS[2]), logits[1:2, 2:])
        assert other.image_encoder.dtype == other.dtype
    raw = model.encode_images(IMAGES, normalize=False)
    assert_same_bits(raw, ImageEncoder.from_pretrained(tmp_path).encode(IMAGES))
    scaled = model.logit_scale * (model.encode_images(IMAGES) @ model.encode_texts(TEXTS).T) + (model.logit_bias or 0)
    np.testing.assert_allclose(model.logits(IMAGES, TEXTS), scaled, rtol=1e-4, atol=1e-4)
    probabilities = model.probabilities(IMAGES, TEXTS)
    if model_type == "clip":
        np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    else:
        np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-scaled)), rtol=1e-3)
    assert model.logits([], TEXTS).shape == model.probabilities([], TEXTS).shape == (0, 3)
    assert model.encode_texts([]).shape == (0, model.embed_dim)
    assert model.count_tokens("a b") == 4
    assert sum(model.weight_bytes.values()) > sum(model.image_encoder.weight_bytes.values())
    assert (model.max_length, model.image_size) == (10, (32, 32))


@pytest.mark.parametrize("antialias", [False, True])
def test_interpolation(antialias: bool) -> None:
    torch = pytest.importorskip("torch")
    numbers = np.random.default_rng(0).standard_normal((7, 7))
    for wanted in (1, 2, 3, 5, 7, 8, 16, 37):
        matrix = patches._interpolation(7, wanted, antialias)
        np.testing.assert_allclose(matrix.sum(1), 1, rtol=1e-12)
        size, options = (wanted, wanted), {"mode": "bicubic", "align_corners": False, "antialias": antialias}
        expected = torch.nn.functional.interpolate(torch.from_numpy(numbers)[None, None], size, **options)
        np.testing.assert_allclose(matrix @ numbers @ matrix.T, expected[0, 0].numpy(), rtol=0, atol=1e-12)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("vit", {"hidden_act": "mish"}, "hidden_act must be"),
    ("vit", {"image_size": 4}, "image_size must be at least patch_size"),
    ("vit", {"image_size": [32]}, "image_size must be an integer of at least 1"),
    ("vit", {"patch_size": [8, 0]}, "patch_size must be an integer of at least 1"),
    ("vit", {"image_size": 40}, r"of the wrong shape: embeddings\.position_embeddings"),
    ("vit", {"pooler_act": "mish"}, "pooler_act must be"),
    ("vit", {"auto_map": {"AutoModel": "x"}}, "auto_map must be absent"),
    ("deit", {"model_type": "vit"}, r"position_embeddings .1, 18, 24. instead of .1, 17, 24."),
    ("dinov2", {"use_swiglu_ffn": True}, "missing: encoder.layer.0.mlp.weights_in"),
    ("dinov2", {"mlp_ratio": 2.5}, "mlp_ratio must be an integer"),
    ("dinov2_with_registers", {"num_register_tokens": -1}, "num_register_tokens must be an integer of at least 0"),
    ("clip", {"vision_config": 3}, "vision_config must be an object"),
    ("clip", {"vision_config": {"model_type": "x"}}, "vision_config: model_type must be 'clip_vision_model'"),
    ("siglip", {"vision_config": {"vision_use_head": False}}, "vision_use_head must be True"),
    ("siglip", {"model_type": "siglip2"}, "'siglip2' is a SigLIP 2 for images of any shape, NaFlex"),
    ("vit", {"model_type": "swin"}, "model_type must be 'vit' or 'deit'"),
]


@pytest.mark.parametrize(("model_type", "changes", "message"), REFUSED)
def test_refused(model_type: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = tiny_images.write(tmp_path, config(model_type))
    path = folder / "config.json"
    given = json.loads(path.read_text())
    for name, value in changes.items():
        given[name] = given[name] | value if isinstance(given.get(name), dict) and isinstance(value, dict) else value
    path.write_text(json.dumps(given))
    with pytest.raises(ValueError, match=message):
        ImageEncoder.from_pretrained(folder)


def test_images_smaller_than_a_patch_are_refused(tmp_path: Path) -> None:
    tiny_images.write(tmp_path, tiny_images.config("vit"))
    path = tmp_path / "preprocessor_config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"size": {"height": 1, "width": 1}, "do_center_crop": False})
    )
    rule = re.escape(f"{tmp_path}: images must be prepared to at least a patch of ")
    with pytest.raises(ValueError, match=rf"^ImageEncoder\.from_pretrained: {rule}.* pixels; got 1 x 1$"):
        ImageEncoder.from_pretrained(tmp_path)


def test_refused_pairs(tmp_path: Path) -> None:
    cases: list[tuple[str, str, dict[str, Any], str]] = [
        ("clip", "config.json", {"projection_dim": 9}, "visual_projection|text_projection"),
        ("clip", "config.json", {"model_type": "vit"}, "model_type must be 'clip' or 'siglip'"),
        ("clip", "tokenizer.json", {"normalizer": None}, "normalizer must have Lowercase"),
        ("siglip", "config.json", {"text_config": TEXT | {"projection_size": 7}}, "must have the same features"),
        ("siglip", "tokenizer_config.json", {"pad_token": "zz"}, "pad_token must be a"),
        ("siglip", "tokenizer_config.json", {"padding_side": "top"}, "padding_side must be 'left' or 'right'"),
        ("siglip", "tokenizer_config.json", {"model_input_names": ["x"]}, "model_input_names must be a list"),
        ("siglip", "tokenizer_config.json", {"model_input_names": ["input_ids", "attention_mask"],
                                             "padding_side": "left"}, "padding_side must be 'right' where"),
    ]  # fmt: skip
    for i, (model_type, name, changes, message) in enumerate(cases):
        folder = tiny_images.write(tmp_path / str(i), config(model_type))
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | changes))
        with pytest.raises(ValueError, match=message):
            ImageTextEncoder.from_pretrained(folder)


def test_refused_classifiers(tmp_path: Path) -> None:
    folder = tiny_images.write(tmp_path / "model", config("vit"))
    with pytest.raises(ValueError, match="architectures must be a model ForImageClassification"):
        ImageClassifier.from_pretrained(folder)
    model = ImageClassifier.from_pretrained(tiny_images.write(tmp_path / "labels", config("vit", 3)))
    with pytest.raises(ValueError, match=r"ImageClassifier\.classify: top_k must be"):
        model.classify(IMAGES, top_k=0)
    with pytest.raises(TypeError, match=r"ImageClassifier\.classify"):
        model.classify(3)
    assert model.predict_proba([]).shape == (0, 3)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_tensor(model_type: str, tmp_path: Path) -> None:
    """Missing, with a number that is not finite, or of another shape: refused by its name, in both encoders."""
    given = config(model_type)
    folder, weights = tiny_images.write(tmp_path, given), tensors(given)
    kind: Any = ImageTextEncoder if model_type in PAIRS else ImageEncoder
    for name, tensor in weights.items():
        if ".1." in name:  # as layer 0
            continue
        not_finite = tensor.copy()
        not_finite.flat[-1] = np.nan
        for damaged in (None, not_finite, tensor[np.newaxis]):
            others = {key: value for key, value in weights.items() if key != name}
            write_safetensors(folder / "model.safetensors", others if damaged is None else others | {name: damaged}, {})
            with pytest.raises(ValueError, match=name.removeprefix("vision_model.").removeprefix("text_model.")):
                kind.from_pretrained(folder)
