"""Settings of the image processors of transformers: preprocessor_config.json, or a part of processor_config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...functions.messages import listed, shown
from ..files.entries import Entries

# The largest edge of an image that a model reads, and the largest number of Pillow for a filter of resampling.
_MOST_EDGE, _MOST_RESAMPLE = 1 << 14, 5

# The largest factor, mean and deviation: beyond it float32 has no numbers for some pixels.
_MOST_FACTOR = 1e6

_HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_OF_CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_STEPS: dict[str, Any] = {
    "default_to_square": True,
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
}
_SQUARE = {"height": 224, "width": 224}
_CENTER = {"size": {"shortest_edge": 224}, "default_to_square": False, "do_center_crop": True, "crop_size": _SQUARE}

# The entries of a file without them, for each class of transformers 5.23. Its variants Fast and Pil have the same.
_BILINEAR, _BICUBIC = {"resample": 2}, {"resample": 3}
_PROCESSORS: dict[str, dict[str, Any]] = {
    "ViTImageProcessor": _STEPS | _BILINEAR | _HALF | {"size": _SQUARE},
    "DeiTImageProcessor": _STEPS
    | _BICUBIC
    | _HALF
    | {"size": {"height": 256, "width": 256}, "do_center_crop": True, "crop_size": _SQUARE},
    "BitImageProcessor": _STEPS | _BICUBIC | _OF_CLIP | _CENTER | {"do_convert_rgb": True},
    "CLIPImageProcessor": _STEPS | _BICUBIC | _OF_CLIP | _CENTER | {"do_convert_rgb": True},
    "SiglipImageProcessor": _STEPS
    | _BICUBIC
    | _HALF
    | {"size": _SQUARE, "default_to_square": False, "do_convert_rgb": True},
}

# The processor of a model whose files name none.
_OF_MODELS = {
    "vit": "ViTImageProcessor",
    "deit": "DeiTImageProcessor",
    "dinov2": "BitImageProcessor",
    "dinov2_with_registers": "BitImageProcessor",
    "clip": "CLIPImageProcessor",
    "clip_vision_model": "CLIPImageProcessor",
    "siglip": "SiglipImageProcessor",
    "siglip_vision_model": "SiglipImageProcessor",
}

_TYPES = ("image_processor_type", "feature_extractor_type")

# Entries that every class reads, and entries that have no effect on pixels.
_READ = frozenset(key for defaults in _PROCESSORS.values() for key in defaults) | {"do_pad", "data_format"}
_WITHOUT_EFFECT = frozenset(
    (*_TYPES, "processor_class", "_processor_class", "_valid_processor_keys", "pad_size", "device", "disable_grouping")
) | {"return_tensors"}

# The keys of a size: what the image is fitted to.
_FORMS = (
    frozenset({"height", "width"}),
    frozenset({"shortest_edge"}),
    frozenset({"shortest_edge", "longest_edge"}),
    frozenset({"max_height", "max_width"}),
)


@dataclass(frozen=True)
class ImageSettings:
    """The steps from an image to pixels, in this order. A step that is None is left out."""

    to_rgb: bool  # transparency on white
    resize: Mapping[str, int] | None  # the entries of `size`
    resample: int  # the filter, by its number in Pillow
    crop: tuple[int, int] | None  # height and width
    scale: float | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None

    @property
    def size(self) -> tuple[int, int]:
        """The height and width of all images after these steps."""
        if self.crop is not None:
            return self.crop
        assert self.resize is not None
        return self.resize["height"], self.resize["width"]

    @property
    def channels(self) -> int:
        """The channels of an image."""
        return 3 if self.mean is None or self.to_rgb else len(self.mean)

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of an image after its resizing, by the arithmetic of transformers."""
        sizes = self.resize
        if sizes is None:
            return height, width
        if "height" in sizes:
            return sizes["height"], sizes["width"]
        if "max_height" in sizes:
            factor = min(sizes["max_height"] / height, sizes["max_width"] / width)
            return int(height * factor), int(width * factor)
        short, long = sorted((height, width))
        edge = float(sizes["shortest_edge"])
        if "longest_edge" in sizes and long / short * edge > sizes["longest_edge"]:
            exact = sizes["longest_edge"] * float(short) / float(long)
            edge, target = float(round(exact)), exact
        elif "longest_edge" in sizes:
            target = edge
        else:
            long_edge = int(sizes["shortest_edge"] * long / short)
            return (long_edge, int(edge)) if width <= height else (int(edge), long_edge)
        if short == int(edge):
            return height, width
        other = int(target * long / short)
        return (other, int(edge)) if width < height else (int(edge), other)


def read_image_settings(folder: Path) -> ImageSettings:
    """Read the settings in a folder.

    Raises
    ------
    OSError
        If the folder has neither file.
    ValueError
        If an entry is not valid, or is not known.
    """
    entries = _entries_in(folder)
    given = {name: value for name, value in entries.values.items() if value is not None or name in _READ}
    entries = Entries(entries.path, given)
    entries.refuse_others(_READ | _WITHOUT_EFFECT)
    entries = Entries(entries.path, _defaults(folder, entries) | given)
    for name, value in (("do_pad", False), ("data_format", "channels_first")):
        if entries.has(name):
            entries.choice(name, value)
    resize = crop = scale = mean = std = None
    if _flag(entries, "do_resize"):
        resize = _size(entries, "size", _flag(entries, "default_to_square"))
    if _flag(entries, "do_center_crop"):
        sizes = _size(entries, "crop_size", True)
        if "height" not in sizes:
            raise ValueError(f"{entries.path}: crop_size must have height and width; got {shown(sizes)}")
        crop = sizes["height"], sizes["width"]
    if crop is None and (resize is None or "height" not in resize):
        raise ValueError(
            f"{entries.path}: size must have height and width, or do_center_crop must be true, as a model reads images "
            f"of one size; got {shown(resize)}"
        )
    if _flag(entries, "do_rescale"):
        scale = entries.positive("rescale_factor")
        if not 1 / _MOST_FACTOR <= scale <= _MOST_FACTOR:
            raise ValueError(f"{entries.path}: rescale_factor must be from 1e-6 to 1e6; got {shown(scale)}")
    if _flag(entries, "do_normalize"):
        mean, std = _numbers(entries, "image_mean"), _numbers(entries, "image_std")
        if len(mean) != len(std):
            raise ValueError(f"{entries.path}: image_mean and image_std must have one length; got {mean} and {std}")
        if _flag(entries, "do_convert_rgb") and len(mean) == 1:
            raise ValueError(f"{entries.path}: image_mean must have three numbers, of red, green and blue; got {mean}")
        if min(std) < 1 / _MOST_FACTOR:
            raise ValueError(f"{entries.path}: image_std must be at least 1e-6; got {shown(list(std))}")
    resample = entries.count("resample") if resize else 0
    if resample > _MOST_RESAMPLE:
        raise ValueError(f"{entries.path}: resample must be from 0 to {_MOST_RESAMPLE}; got {resample}")
    return ImageSettings(_flag(entries, "do_convert_rgb"), resize, resample, crop, scale, mean, std)


def _entries_in(folder: Path) -> Entries:
    """Return the entries of the file that transformers reads: a part of processor_config.json has priority."""
    path = folder / "processor_config.json"
    if path.exists():
        entries = Entries.read(path)
        if "image_processor" in entries.values:
            part = entries.values["image_processor"]
            if not isinstance(part, dict):
                raise ValueError(f"{path}: image_processor must be an object; got {shown(part)}")
            return Entries(f"{path}: image_processor", part)
    return Entries.read(folder / "preprocessor_config.json")


def _defaults(folder: Path, entries: Entries) -> dict[str, Any]:
    """Return the entries that the processor of a file has by default."""
    given = next((entries.values[name] for name in _TYPES if name in entries.values), None)
    if given is None:
        config = Entries.read(folder / "config.json")
        given = _OF_MODELS.get(str(config.values.get("model_type")))
    name = str(given).replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast").removesuffix("Pil")
    if not isinstance(given, str) or name not in _PROCESSORS:
        known = listed(_PROCESSORS)
        raise ValueError(f"{entries.path}: image_processor_type must be one of {known}; got {shown(given)}")
    return _PROCESSORS[name]


def _flag(entries: Entries, name: str) -> bool:
    """Return true or false; null, and no entry, are false."""
    return entries.has(name) and entries.flag(name)


def _size(entries: Entries, name: str, to_square: bool) -> dict[str, int]:
    """Read a size: an edge, a height and a width, or an object with one of `_FORMS`."""
    given = entries.values.get(name)
    if isinstance(given, list):
        given = dict(zip(("height", "width"), given, strict=True)) if len(given) == 2 else given
    elif not isinstance(given, dict):
        edge = entries.size(name)
        given = {"height": edge, "width": edge} if to_square else {"shortest_edge": edge}
    present = {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else {}
    if present.keys() not in _FORMS:
        forms = listed(" and ".join(sorted(form)) for form in _FORMS)
        raise ValueError(f"{entries.path}: {name} must have one of the forms {forms}; got {shown(given)}")
    sizes = Entries(f"{entries.path}: {name}", present)
    found = {key: sizes.size(key) for key in present}
    if max(found.values()) > _MOST_EDGE:
        raise ValueError(f"{entries.path}: {name} must be at most {_MOST_EDGE}; got {shown(given)}")
    return found


def _numbers(entries: Entries, name: str) -> tuple[float, ...]:
    """Read a number for each channel, of one or three channels; one number counts for all three."""
    given = entries.values.get(name)
    numbers: list[Any] = given if isinstance(given, list) else [given] * 3
    if len(numbers) not in (1, 3) or not all(
        type(each) in (int, float) and abs(each) <= _MOST_FACTOR for each in numbers
    ):
        raise ValueError(f"{entries.path}: {name} must be numbers of one or three channels; got {shown(given)}")
    return tuple(map(float, numbers))
