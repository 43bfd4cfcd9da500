"""Pixels of images against the image processors of transformers: the same bits, the same refusals."""

from __future__ import annotations

import base64
import io
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import ODD, damaged_json

from mha_native.models.images.preprocessing import Preprocessing, read_preprocessing

Image = pytest.importorskip("PIL.Image")
Array = np.ndarray[Any, Any]

KINDS = ["ViT", "DeiT", "Bit", "CLIP", "Siglip"]
SHAPES = [(48, 64), (17, 5), (30, 30), (224, 224), (1, 9), (300, 41)]
SMALL = {"size": {"height": 12, "width": 20}, "crop_size": {"height": 9, "width": 30}}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"size": 24},
    {"size": [20, 12]},
    {"size": {"shortest_edge": 11}, "do_center_crop": True, "crop_size": {"height": 16, "width": 7}},
    {"size": {"shortest_edge": 20, "longest_edge": 26}, "do_center_crop": True, "crop_size": 21},
    {"size": {"max_height": 20, "max_width": 33}, "do_center_crop": True, "crop_size": [40, 8]},
    {"do_resize": False, "do_center_crop": True, "crop_size": 32},
    *({"resample": filter_, **SMALL} for filter_ in range(6)),
    {"do_rescale": False, **SMALL},
    {"do_normalize": False, **SMALL},
    {"do_rescale": False, "do_normalize": False, **SMALL},
    {"rescale_factor": 1 / 127.5, "image_mean": [1.0, 0.5, 0.25], "image_std": 0.7, **SMALL},
    {"image_mean": 0.3, "image_std": [0.1, 0.2, 0.3], "do_convert_rgb": None, **SMALL},
]


def levels(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def pictures() -> dict[str, Any]:
    """Images in every mode of Pillow, and arrays."""
    rgb, gray = Image.fromarray(levels(48, 64, 3)), Image.fromarray(levels(48, 64))
    palette = rgb.quantize(17)
    of_color = rgb.copy()
    of_color.info["transparency"] = rgb.getpixel((3, 4))
    modes = ("RGBA", "L", "LA", "1", "P", "CMYK", "YCbCr", "HSV", "LAB", "I", "F", "I;16")
    found = {mode: (gray if mode in ("LA", "1", "I", "F", "I;16") else rgb).convert(mode) for mode in modes}
    rgba = levels(40, 31, 4, seed=1)
    return found | {
        "RGB": rgb,
        "RGBA with alpha": Image.fromarray(rgba),
        "P with transparency": _with(palette, transparency=3),
        "RGB with a transparent color": of_color,
        "lazy": Image.open(io.BytesIO(saved(rgb, "PNG"))),
        "[H, W, 3]": levels(20, 33, 3),
        "[3, H, W]": levels(3, 20, 33),
        "[3, 8, 3]": levels(3, 8, 3),
        "[H, W, 1]": levels(20, 33, 1),
        "[4, H, W]": levels(4, 20, 33),
        "[H, W, 4] of floats": levels(20, 33, 4) / 255.0,
        "int64": levels(20, 33, 3).astype(np.int64),
        "whole floats": levels(20, 33, 3).astype(np.float32),
        "floats to 1": levels(20, 33, 3).astype(np.float32) / 255,
        "float64 to 1": levels(3, 20, 33) / 255.0,
        "bool": levels(20, 33, 3) > 99,
        "negative": levels(20, 33, 3).astype(np.int16) - 7,
        "beyond": levels(20, 33, 3).astype(np.int16) * 2,
        "two channels": levels(20, 33, 2),
    }


def _with(image: Any, **info: Any) -> Any:
    image.info |= info
    return image


def saved(image: Any, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


@pytest.fixture(scope="module")
def oracle() -> Any:
    return pytest.importorskip("transformers", minversion="5.23").AutoImageProcessor


def write(folder: Path, kind: str, settings: dict[str, Any], **others: Any) -> Path:
    entries = {"image_processor_type": f"{kind}ImageProcessor", **settings, **others}
    (folder / "preprocessor_config.json").write_text(json.dumps(entries))
    return folder


def expected(processor: Any, image: Any) -> Array | None:
    """The pixels by transformers; None where it refuses the image, or makes one of another form."""
    try:
        pixels = processor(image, return_tensors="np")["pixel_values"]
    except (ValueError, TypeError):
        return None
    return pixels if pixels.shape[1] == 3 else None


def assert_same(name: str, preprocessing: Preprocessing, processor: Any, image: Any) -> bool:
    """Whether both compute pixels; they have the same bits, or both refuse the image."""
    wanted = expected(processor, image)
    if wanted is None:
        with pytest.raises((ValueError, TypeError), match="image 0"):
            preprocessing(image)
        return False
    found = preprocessing(image)
    assert found.dtype == np.float32, name
    assert found.shape[1:] == (preprocessing.channels, *preprocessing.size), name
    np.testing.assert_array_equal(found, wanted.astype(np.float32), err_msg=name)
    return True


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_settings_and_sizes(oracle: Any, kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    try:
        preprocessing = read_preprocessing(write(tmp_path, kind, settings))
    except ValueError as error:
        # An edge without a crop gives images of different sizes, which no model reads in a batch.
        if kind == "Siglip" and settings == {"size": 24} and "do_center_crop must be true" in str(error):
            return
        raise
    processor = oracle.from_pretrained(tmp_path, backend="pil")
    assert type(processor).__name__ == f"{kind}ImageProcessorPil"
    for shape in SHAPES:
        assert assert_same(str(shape), preprocessing, processor, Image.fromarray(levels(*shape, 3)))


@pytest.mark.parametrize("to_rgb", [True, False])
@pytest.mark.parametrize("scales", [True, False])
@pytest.mark.parametrize("resizes", [True, False])
def test_kinds_of_images(oracle: Any, to_rgb: bool, scales: bool, resizes: bool, tmp_path: Path) -> None:
    crop = {"do_center_crop": True, "crop_size": 16}
    settings = {"do_convert_rgb": to_rgb, "do_rescale": scales, "do_resize": resizes, **crop}
    preprocessing = read_preprocessing(write(tmp_path, "ViT", settings))
    processor = oracle.from_pretrained(tmp_path, backend="pil")
    computed = []
    for name, image in pictures().items():
        if scales and resizes and expected(processor, image) is not None and name.endswith("to 1"):
            with pytest.raises(ValueError, match="multiply by 255"):  # transformers scales them twice
                preprocessing(image)
        elif name == "[H, W, 4] of floats" and scales and resizes and to_rgb:
            with pytest.raises(ValueError, match="multiply by 255"):
                preprocessing(image)
        elif assert_same(name, preprocessing, processor, image):
            computed.append(name)
    assert len(computed) >= (22 if to_rgb else 8), computed


def test_files(oracle: Any, tmp_path: Path) -> None:
    """Paths: turned by EXIF, and converted to RGB before anything else, also where a processor does not convert."""
    from transformers.image_utils import load_image

    rgb = Image.fromarray(levels(48, 64, 3))
    for turn in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = turn
        rgb.save(tmp_path / f"{turn}.jpg", exif=exif)
    gray = Image.fromarray(levels(48, 64))
    Image.fromarray(levels(40, 31, 4)).save(tmp_path / "a.png")
    Image.fromarray(levels(40, 31, 3)).save(tmp_path / "t.png", transparency=(1, 2, 3))
    rgb.quantize(17).save(tmp_path / "p.png", transparency=3)
    gray.save(tmp_path / "l.tiff")
    gray.convert("I;16").save(tmp_path / "i16.png")
    rgb.convert("CMYK").save(tmp_path / "cmyk.jpg")
    rgb.save(tmp_path / "w.webp")
    rgb.save(tmp_path / "b.bmp")
    rgb.save(tmp_path / "g.gif", save_all=True, append_images=[rgb.rotate(90)])
    files = sorted(path for path in tmp_path.iterdir())
    assert len(files) == 17
    for kind in ("ViT", "CLIP"):
        preprocessing = read_preprocessing(write(tmp_path, kind, {}))
        processor = oracle.from_pretrained(tmp_path, backend="pil")
        found = preprocessing(files, num_threads=3)
        for row, path in zip(found, files, strict=True):
            with Image.open(path) as image:  # which transformers leaves open
                wanted = processor(load_image(image), return_tensors="np")["pixel_values"][0]
            np.testing.assert_array_equal(row, wanted, err_msg=path.name)
            with open(path, "rb") as file:
                np.testing.assert_array_equal(preprocessing(file)[0], wanted)
        address = "data:image/png;base64," + base64.b64encode((tmp_path / "a.png").read_bytes()).decode()
        wanted = processor(address, return_tensors="np")["pixel_values"]
        np.testing.assert_array_equal(preprocessing(address), wanted)
        np.testing.assert_array_equal(preprocessing([str(tmp_path / "a.png")]), wanted)


def campaign(seed: int) -> tuple[str, dict[str, Any], Any]:
    """A processor with random settings, and a random image."""
    rng = random.Random(seed)
    edge = lambda most=60: rng.randint(1, most)  # noqa: E731
    crop = rng.choice([edge(), [edge(), edge()], {"height": edge(), "width": edge()}])
    first = edge(30)
    size = rng.choice([
        edge(), [edge(), edge()], {"height": edge(), "width": edge()}, {"shortest_edge": edge()},
        {"shortest_edge": first, "longest_edge": first + edge()}, {"max_height": edge(), "max_width": edge()},
    ])  # fmt: skip
    settings: dict[str, Any] = {"size": size, "crop_size": crop, "do_center_crop": True}
    for name, values in {
        "resample": range(6), "do_resize": [True, True, False], "do_rescale": [True, False],
        "do_normalize": [True, False], "do_convert_rgb": [True, False, None], "default_to_square": [True, False],
        "rescale_factor": [1 / 255, 1 / 127.5, 2], "image_mean": [0.5, [0.1, 0.2, 0.3]], "image_std": [0.2, [1, 2, 3]],
    }.items():  # fmt: skip
        if rng.random() < 0.4:
            settings[name] = rng.choice(values)
    shape = (edge(120), edge(120), rng.choice([3, 3, 3, 1, 4]))
    pixels = levels(*shape, seed=seed)
    if rng.random() < 0.5:
        return rng.choice(KINDS), settings, Image.fromarray(pixels[:, :, 0] if shape[2] == 1 else pixels)
    return rng.choice(KINDS), settings, pixels


@pytest.mark.parametrize("times", [60, pytest.param(4000, marks=pytest.mark.exhaustive)])
def test_random_settings(oracle: Any, times: int, tmp_path: Path) -> None:
    computed = 0
    for seed in range(times):
        kind, settings, image = campaign(seed)
        preprocessing = read_preprocessing(write(tmp_path, kind, settings))
        processor = oracle.from_pretrained(tmp_path, backend="pil")
        computed += assert_same(f"{seed}: {kind} {settings}", preprocessing, processor, image)
    assert computed > 0.6 * times


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_processors(oracle: Any, kind: str, tmp_path: Path) -> None:
    """Old names, names of variants, no name, and the file of transformers 5."""
    image = levels(50, 70, 3)
    wanted = read_preprocessing(write(tmp_path, kind, {}))(image)
    model = {"Bit": "dinov2"}.get(kind, kind.lower())
    named: list[dict[str, Any]] = [
        {"image_processor_type": f"{kind}ImageProcessorFast", "device": None, "disable_grouping": True},
        {"feature_extractor_type": f"{kind}FeatureExtractor", "_valid_processor_keys": ["images"]},
        {"processor_class": "CLIPProcessor"},
    ]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model}))
    for entries in named:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(entries))
        np.testing.assert_array_equal(read_preprocessing(tmp_path)(image), wanted, err_msg=str(entries))
    write(tmp_path, "ViT", {"size": 32})
    processors = {"image_processor": {"image_processor_type": f"{kind}ImageProcessor"}, "processor_class": "X"}
    (tmp_path / "processor_config.json").write_text(json.dumps(processors))
    np.testing.assert_array_equal(read_preprocessing(tmp_path)(image), wanted)
    assert oracle.from_pretrained(tmp_path, backend="pil")(image, return_tensors="np")["pixel_values"].shape == (
        1, 3, 224, 224,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "value", "says"),
    [
        ("image_processor_type", "Siglip2ImageProcessor", "image_processor_type must be one of"),
        ("image_processor_type", "OwlViTImageProcessor", "image_processor_type must be one of"),
        ("crop_pct", 0.9, "unknown entries: crop_pct"),
        ("use_square_size", True, "unknown entries: use_square_size"),
        ("auto_map", {"AutoImageProcessor": "x.Y"}, "unknown entries: auto_map"),
        ("do_pad", True, "do_pad must be False"),
        ("data_format", "channels_last", "data_format must be 'channels_first'"),
        ("size", {"longest_edge": 9}, "size must have one of the forms"),
        ("size", {"min_pixels": 9, "max_pixels": 99}, "size must have one of the forms"),
        ("size", {"shortest_edge": 224}, "do_center_crop must be true"),
        ("size", {"height": 1 << 20, "width": 9}, "size must be at most"),
        ("size", None, "size must be an integer"),
        ("resample", None, "resample must be an integer"),
        ("resample", 6, "resample must be from 0 to 5"),
        ("image_std", [1, 0, 1], "image_std must be at least 1e-6"),
        ("image_mean", [0.5, 0.5], "image_mean must be numbers of one or three channels"),
        ("rescale_factor", 1e300, "rescale_factor must be from 1e-6 to 1e6"),
        ("rescale_factor", 0, "rescale_factor must be a positive number"),
        ("do_resize", "yes", "do_resize must be True or False"),
    ],
)
def test_unsupported_settings(entry: str, value: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        read_preprocessing(write(tmp_path, "ViT", {}, **{entry: value}))
    assert "preprocessor_config.json" in str(raised.value)


@pytest.mark.parametrize("times", [150, pytest.param(6000, marks=pytest.mark.exhaustive)])
def test_damaged_settings(oracle: Any, times: int, tmp_path: Path) -> None:
    """Every entry with odd values: refused, or the pixels of transformers for these values."""
    processor = oracle.from_pretrained(write(tmp_path, "CLIP", {"crop_size": 24, "size": 20}), backend="pil")
    path = tmp_path / "preprocessor_config.json"
    raw = json.dumps(json.loads(processor.to_json_string()) | {"do_pad": False, "data_format": "channels_first"})
    image, refused = levels(30, 40, 3), 0
    for seed in range(times):
        # Large values would make images of many gigabytes in transformers.
        values = [value for value in ODD if not isinstance(value, int) or -2 < value < 300]
        path.write_bytes(damaged_json(raw.encode(), random.Random(seed), values))
        try:
            found = read_preprocessing(tmp_path)(image)
        except (ValueError, OSError):
            refused += 1
            continue
        wanted = oracle.from_pretrained(tmp_path, backend="pil")(image, return_tensors="np")["pixel_values"]
        np.testing.assert_array_equal(found, wanted.astype(np.float32), err_msg=path.read_text())
    assert 0.3 * times < refused < times


@pytest.fixture
def vit(tmp_path: Path) -> Preprocessing:
    return read_preprocessing(write(tmp_path, "ViT", {"size": 16}))


def bad_images(folder: Path) -> Iterator[tuple[Any, type[Exception], str]]:
    jpeg = saved(Image.fromarray(levels(64, 64, 3)), "JPEG")
    png = saved(Image.fromarray(levels(64, 64, 3)), "PNG")
    (folder / "cut.jpg").write_bytes(jpeg[: len(jpeg) // 2])
    (folder / "text.png").write_text("no image")
    yield folder / "cut.jpg", ValueError, "cut.jpg.* cannot be read: .*truncated"
    yield folder / "text.png", ValueError, "text.png.* cannot be read: cannot identify"
    yield io.BytesIO(png[:-100]), ValueError, "cannot be read"
    yield io.BytesIO(png[:60] + b"\0\0\0" + png[63:]), ValueError, "cannot be read"
    yield io.BytesIO(b""), ValueError, "cannot identify"
    yield Image.open(io.BytesIO(jpeg[: len(jpeg) // 2])), ValueError, "cannot be read: .*truncated"
    yield folder / "missing.png", FileNotFoundError, "missing.png does not exist"
    yield folder, FileNotFoundError, "is not a file"
    yield "https://example.org/cat.png", ValueError, "URLs are not downloaded"
    yield "data:image/png;base64,%%%", ValueError, "base64"
    yield Image.new("RGB", (0, 5)), ValueError, "must have pixels"
    yield np.zeros((0, 5, 3), np.uint8), ValueError, "with pixels"
    yield np.full((5, 5, 3), np.nan), ValueError, "finite"
    yield np.zeros((5, 5, 3), np.complex64), TypeError, "integers or floats"
    yield Image.new("RGBA", (4, 4)), ValueError, "must have 3 channels"
    yield 3, TypeError, "must be a PIL image"
    yield None, TypeError, "must be a PIL image"
    yield b"bytes", TypeError, "must be a PIL image"


def test_bad_images_lose_nothing(vit: Preprocessing, tmp_path: Path) -> None:
    """The images before a wrong one come in blocks, and its error has its index; the next call is not affected."""
    good = [levels(20, 20, 3, seed=seed) for seed in range(13)]
    wanted = vit(good)
    for at, (image, kind, says) in enumerate(bad_images(tmp_path)):
        index = at % len(good)
        blocks: list[Array] = []
        with pytest.raises(kind, match=f"image {index}.*{says}") as raised:
            blocks.extend(vit.stream([*good[:index], image, *good[index:]], block=4, num_threads=2))
        assert len(str(raised.value)) < 500
        np.testing.assert_array_equal(np.concatenate([wanted[:0], *blocks]), wanted[:index])
        with pytest.raises(kind, match=f"image {index}"):
            vit([*good[:index], image])
    np.testing.assert_array_equal(vit(good, num_threads=1), wanted)


def test_bombs(vit: Preprocessing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file of a large image, and an image that resizing would make large."""
    Image.fromarray(np.zeros((70, 70), np.uint8)).save(tmp_path / "bomb.png")
    narrow = read_preprocessing(write(tmp_path, "CLIP", {}))
    with pytest.raises(ValueError, match="image 1 is too narrow: its 1 rows of 2000000 pixels would become 224 rows"):
        narrow([levels(9, 9, 3), Image.new("RGB", (2_000_000, 1))])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    with pytest.raises(ValueError, match=r"image 1 .*decompression bomb"):
        vit([levels(9, 9, 3), tmp_path / "bomb.png"])


def test_streams_read_as_needed(vit: Preprocessing) -> None:
    """An endless iterable; an error of an iterable, after its images; closing early."""
    read = []

    def endless() -> Iterator[Array]:
        for seed in range(1000):
            read.append(seed)
            yield levels(9, 9, 3, seed=seed)
        raise OSError("the disk is gone")

    blocks = vit.stream(endless(), block=4)
    first = next(blocks)
    assert len(first) == 4
    assert len(read) <= 13
    blocks.close()  # type: ignore[attr-defined]
    assert len(read) <= 13
    found: list[int] = []
    with pytest.raises(OSError, match="the disk is gone"):
        found.extend(len(block) for block in vit.stream(endless(), block=300))
    assert found == [300, 300, 300, 100]


def test_one_and_many(vit: Preprocessing) -> None:
    torch = pytest.importorskip("torch")
    images = levels(3, 20, 30, 3)
    wanted = vit(list(images))
    assert wanted.shape == (3, 3, 16, 16)
    np.testing.assert_array_equal(vit(images), wanted)
    np.testing.assert_array_equal(vit(image for image in images), wanted)
    np.testing.assert_array_equal(vit(torch.from_numpy(images)), wanted)
    np.testing.assert_array_equal(vit([torch.from_numpy(image) for image in images]), wanted)
    np.testing.assert_array_equal(vit(images[1]), wanted[1:2])
    assert vit([]).shape == (0, 3, 16, 16)
    for wrong in (3, b"bytes", {"image": 1}, None):
        with pytest.raises(TypeError, match="images must be PIL images"):
            vit(wrong)
    with pytest.raises(ValueError, match="2 to 4 axes"):
        vit(levels(3))


def test_gray_models(tmp_path: Path, oracle: Any) -> None:
    """A model of one channel reads gray images, also [H, W], and refuses others."""
    gray = read_preprocessing(write(tmp_path, "ViT", {"size": 16, "image_mean": [0.4], "image_std": [0.2]}))
    processor = oracle.from_pretrained(tmp_path, backend="pil")
    image = Image.fromarray(levels(20, 30))
    wanted = processor(image, return_tensors="np")["pixel_values"]
    assert gray.channels == 1
    np.testing.assert_array_equal(gray(image), wanted)
    np.testing.assert_array_equal(gray(np.asarray(image)), wanted)
    with pytest.raises(ValueError, match="must have 1 channels"):
        gray(levels(20, 30, 3))


def test_without_pillow(vit: Preprocessing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="Preprocessing: needs the package Pillow: pip install Pillow"):
        vit(levels(9, 9, 3))
