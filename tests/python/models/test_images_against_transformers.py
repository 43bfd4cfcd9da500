"""Encoders of images of every family, as transformers saves them: the vectors of transformers in float64.

Skipped without transformers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from saved_images import FAMILIES, MODELS, TEXTS, pictures, pixels_of, save, tokenizer_of
from tolerance import assert_same_bits

from mha_native.models import ImageClassifier, ImageEncoder, ImageTextEncoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("PIL")

pytestmark = pytest.mark.filterwarnings("ignore")

Array = np.ndarray[Any, Any]

BOUND = 1e-5  # of the largest number
SHAPES = [(32, 32), (40, 24), (64, 64), (17, 39)]


def _assert_near(actual: Array, expected: Any, label: object, bound: float = BOUND) -> None:
    expected = expected.detach().numpy()
    assert actual.shape == expected.shape, label
    np.testing.assert_allclose(
        actual, expected, rtol=0, atol=bound * max(1, np.abs(expected).max()), err_msg=str(label)
    )


def _oracle(folder: Path, auto: str = "AutoModel") -> Any:
    return getattr(transformers, auto).from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()


def _of_oracle(oracle: Any, pixels: Array, interpolated: bool = True) -> tuple[Any, Any]:
    """The rows and the vectors of images."""
    options = {} if "Dinov2" in type(oracle).__name__ or not interpolated else {"interpolate_pos_encoding": True}
    with torch.no_grad():
        call = getattr(oracle, "get_image_features", oracle)
        found = call(torch.from_numpy(pixels).double(), **options)
    vectors = getattr(found, "image_embeds", None)
    if vectors is None:
        vectors = found.pooler_output
    return found.last_hidden_state, found.last_hidden_state[:, 0] if vectors is None else vectors


def _assert_same(folder: Path, shapes: list[tuple[int, int]] = SHAPES, oracle: Any = None) -> ImageEncoder:
    """The rows and vectors of images of several sizes."""
    oracle, model = _oracle(folder) if oracle is None else oracle, ImageEncoder.from_pretrained(folder)
    for shape in shapes:
        pixels = pixels_of(*shape)
        rows, vectors = _of_oracle(oracle, pixels)
        _assert_near(model._model.image_rows(pixels, None), rows, shape)
        _assert_near(model._embed_pixels(pixels, None), vectors, shape)
    return model


@pytest.mark.parametrize("model_type", FAMILIES)
def test_each_family(model_type: str, tmp_path: Path) -> None:
    """Images of several sizes, through the whole preprocessing, and in files of other dtypes."""
    folder = save(tmp_path / "float32", model_type)
    model = _assert_same(folder)
    given = pictures()
    _, expected = _of_oracle(_oracle(folder), model.preprocessing(given))
    _assert_near(model.encode(given), expected, "encode")
    for dtype in ("bfloat16", "float16") if model_type in ("deit", "clip") else ():
        _assert_same(save(tmp_path / dtype, model_type, dtype=dtype), SHAPES[:1])


_ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "quick_gelu")
_OF_ALL: list[dict[str, Any]] = [
    *[{"hidden_act": name} for name in _ACTIVATIONS],
    {"layer_norm_eps": 0.1, "num_hidden_layers": 1},
    {"patch_size": 4, "image_size": 16},
]
_OF_VIT: list[dict[str, Any]] = [
    {"qkv_bias": False, "pooler_act": "relu"}, {"pooler_act": "gelu", "pooler_output_size": 7}, {"head_dim": 5},
]  # fmt: skip
_OF_DINOV2: list[dict[str, Any]] = [
    {"qkv_bias": False, "mlp_ratio": 2}, {"use_swiglu_ffn": True}, {"use_swiglu_ffn": True, "mlp_ratio": 3},
    {"layerscale_value": 0.1, "image_size": 88}, {"image_size": 56},
]  # fmt: skip
_SWITCHES = {
    "vit": _OF_ALL + _OF_VIT,
    "deit": _OF_VIT,
    "dinov2": [*_OF_ALL, *_OF_DINOV2, {"use_mask_token": False}],
    "dinov2_with_registers": [*_OF_DINOV2, {"num_register_tokens": 1}, {"num_register_tokens": 7}],
    "clip_vision_model": _OF_ALL[:3],
    "siglip_vision_model": _OF_ALL[4:],
}


@pytest.mark.parametrize(
    ("model_type", "changes"), [(name, changes) for name, all_of in _SWITCHES.items() for changes in all_of]
)
def test_each_switch(model_type: str, changes: dict[str, Any], tmp_path: Path) -> None:
    _assert_same(save(tmp_path, model_type, **changes), [SHAPES[0], SHAPES[3]])


def test_an_image_that_is_no_square(tmp_path: Path) -> None:
    """Of a model for images of 16 x 40: its own positions, and none for images of another size."""
    folder = save(tmp_path, "vit", image_size=[16, 40])
    pixels = pixels_of(16, 40)
    rows, vectors = _of_oracle(_oracle(folder), pixels, interpolated=False)
    model = ImageEncoder.from_pretrained(folder)
    _assert_near(model._model.image_rows(pixels, None), rows, "rows")
    _assert_near(model._embed_pixels(pixels, None), vectors, "vectors")
    with pytest.raises(ValueError, match=r"images must have 16 x 40 pixels, .*; got 4 x 4 patches"):
        model.encode(pictures())


def test_models_without_a_pooler_or_a_projection(tmp_path: Path) -> None:
    config = transformers.ViTConfig(**MODELS["vit"][1], initializer_range=0.2)
    folder = save(tmp_path / "vit", "vit")
    bare = transformers.ViTModel(config, add_pooling_layer=False).eval()
    bare.save_pretrained(folder)
    _assert_same(folder, SHAPES[:1], bare.double())
    _assert_same(save(tmp_path / "projected", "clip_vision_model", "ModelWithProjection"), SHAPES[:1], _oracle(
        tmp_path / "projected", "CLIPVisionModelWithProjection"))  # fmt: skip


def test_old_entries_of_clip(tmp_path: Path) -> None:
    """vision_config_dict replaces vision_config, also by defaults."""
    folder = save(tmp_path, "clip", vision_config={"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5})
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["vision_config_dict"] = {**config["vision_config"]}
    del config["vision_config_dict"]["hidden_act"]
    config["vision_config"] |= {"hidden_act": "gelu", "layer_norm_eps": 0.5}
    path.write_text(json.dumps(config))
    _assert_same(folder, SHAPES[:1])


_CLASSIFIERS = [
    *[(name, "ForImageClassification") for name in FAMILIES if not name.endswith("model")],
    ("deit", "ForImageClassificationWithTeacher"),
]


@pytest.mark.parametrize(("model_type", "head"), _CLASSIFIERS)
def test_classifiers(model_type: str, head: str, tmp_path: Path) -> None:
    labels = {i: f"label {i}" for i in range(6)}
    folder = save(tmp_path, model_type, head, id2label=labels, label2id={name: i for i, name in labels.items()})
    model, given = ImageClassifier.from_pretrained(folder), pictures()
    oracle = getattr(transformers, MODELS[model_type][0] + head).from_pretrained(folder, dtype=torch.float64).eval()
    with torch.no_grad():
        logits = oracle(torch.from_numpy(model.preprocessing(given)).double()).logits
    _assert_near(model.predict_proba(given), logits.softmax(-1), head)
    assert model.labels == tuple(labels.values())
    best = model.classify(given, top_k=2)
    assert [[label["label"] for label in of_image] for of_image in best] == [
        [labels[i] for i in row.tolist()] for row in logits.topk(2).indices
    ]
    assert model.classify(given[0], top_k=2) == best[0]
    assert len(model.classify(given[0], top_k=None)) == 6


_PAIRS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("clip", {}, {}),
    ("clip", {"text_config": {"eos_token_id": 2}}, {}),  # the largest token ends a text
    ("clip", {"text_config": {"hidden_act": "gelu", "num_attention_heads": 4}, "projection_dim": 5}, {}),
    ("siglip", {}, {}),
    ("siglip", {}, {"model_input_names": ["input_ids", "attention_mask"]}),
    ("siglip", {}, {"padding_side": "left"}),
    ("siglip", {"text_config": {"layer_norm_eps": 0.1, "max_position_embeddings": 7}}, {"model_max_length": 7}),
]


@pytest.mark.parametrize(("model_type", "changes", "settings"), _PAIRS)
def test_images_and_texts(model_type: str, changes: dict[str, Any], settings: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = tokenizer_of(model_type, **({"model_max_length": 10} | settings))
    folder = save(tmp_path, model_type, tokenizer=tokenizer, **changes)
    model, oracle, given = ImageTextEncoder.from_pretrained(folder), _oracle(folder), pictures(3)
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    options = {"padding": "max_length"} if model_type == "siglip" else {"padding": True}
    inputs = loaded(TEXTS, truncation=True, return_tensors="pt", **options)
    with torch.no_grad():
        features = oracle.get_text_features(**inputs).pooler_output
        pixels = torch.from_numpy(model.preprocessing(given)).double()
        found = oracle(**inputs, pixel_values=pixels)
    _assert_near(model.encode_texts(TEXTS, normalize=False), features, "texts")
    _assert_near(model.encode_texts(TEXTS), found.text_embeds, "normalized texts")
    _assert_near(model.encode_images(given), found.image_embeds, "images")
    _assert_near(model.logits(given, TEXTS), found.logits_per_image, "logits")
    function = torch.sigmoid if model_type == "siglip" else lambda x: x.softmax(-1)
    _assert_near(model.probabilities(given, TEXTS), function(found.logits_per_image), "probabilities")
    for i, text in enumerate(TEXTS):
        assert_same_bits(model.encode_texts(text), model.encode_texts(TEXTS)[i], label=text)
    for dtype, bound in (("float64", BOUND), ("bfloat16", 0.2), ("float16", 0.02)):
        other = model.astype(dtype)
        assert other.image_encoder.dtype == other.dtype
        _assert_near(other.encode_texts(TEXTS), found.text_embeds, dtype, bound)
        _assert_near(other.encode_images(given), found.image_embeds, dtype, bound)
