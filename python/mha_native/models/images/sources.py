"""One image from a file, an array or a PIL image, read as the image processors of transformers read it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from io import BytesIO
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...functions.arrays import Tensor, to_numpy
from ...functions.messages import name_of_type, shown
from ...functions.needed_packages import needed_package
from ..files.json_files import require_file

if TYPE_CHECKING:
    from pathlib import Path

    from PIL import Image

# A PIL image, a path, a file object of bytes, or an array [H, W], [H, W, C] or [C, H, W].
ImageSource: TypeAlias = "Image.Image | str | PathLike[str] | BinaryIO | Tensor"


class PlacedImage(NamedTuple):
    """An image with its place in the list of a caller, which messages name."""

    place: int
    image: ImageSource


# The channels by which the axes of an array are told apart.
_CHANNELS = (1, 3, 4)

_WEB = ("http://", "https://", "ftp://", "s3://", "gs://", "hf://")
_DATA = "data:image/"


def pillow(function: str) -> Any:
    """Return the module ``PIL.Image``; ImportError with the command that installs it."""
    with needed_package(function, "Pillow", "images"):
        from PIL import Image, ImageOps  # noqa: F401
    return Image


def images_in(function: str, images: Any) -> tuple[bool, Iterable[Any]]:
    """Return whether `images` is one image, and an iterable of all images."""
    if isinstance(images, (str, PathLike)) or hasattr(images, "read") or _is_pil(images):
        return True, [images]
    if (dimensions := getattr(images, "ndim", None)) is not None:
        if dimensions in (2, 3):
            return True, [images]
        if dimensions == 4:
            return False, images
        raise ValueError(f"{function}: an array of images must have 2 to 4 axes; got {dimensions}")
    if isinstance(images, (bytes, bytearray, Mapping, set, frozenset)) or not isinstance(images, Iterable):
        raise TypeError(
            f"{function}: images must be PIL images, paths, file objects or arrays; got {name_of_type(images)}"
        )
    return False, images


def _is_pil(image: object) -> bool:
    """Return whether `image` is a PIL image, without an import of Pillow."""
    return any(kind.__module__ == "PIL.Image" and kind.__name__ == "Image" for kind in type(image).__mro__)


def open_image(function: str, index: int, source: ImageSource, to_rgb: bool) -> Image.Image | NDArray[Any]:
    """Return an image: a PIL image in the mode RGB, or the numbers [H, W, C] of another source.

    A file is turned as its EXIF entry says and becomes RGB; its transparency has no effect unless the file says which
    color is transparent. A PIL image is not turned. With `to_rgb` its transparent pixels are put on white.

    Raises
    ------
    TypeError, ValueError, OSError
        If the source is no image or cannot be read. The message has `index`.
    """
    image_module = pillow(function)
    what = f"{function}: images: image {index}"
    given: Any = source
    if isinstance(source, (str, PathLike)) or hasattr(source, "read"):
        given = _decoded(what, source)
    if isinstance(given, image_module.Image):
        if 0 in given.size:
            raise ValueError(f"{what} must have pixels; got {given.size[1]} rows of {given.size[0]}")
        try:
            given.load()
            if to_rgb:
                return _on_white(image_module, given)
            return given if given.mode == "RGB" else _with_channels(np.array(given))
        except Exception as error:  # a lazy image that is damaged; Pillow raises errors of many kinds
            raise ValueError(f"{what} cannot be read: {error}") from error
    array = to_numpy(function, f"images: image {index}", given)
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{what} must be a PIL image, a path, a file object or an array; got {name_of_type(given)}")
    return _from_array(what, array, to_rgb)


def _decoded(what: str, source: Any) -> Any:
    """Return the PIL image in a file, turned by its EXIF entry, in RGB."""
    from PIL import Image, ImageOps

    name = source if isinstance(source, str) else getattr(source, "name", source)
    where = f"{what} ({shown(name)[:80]})"
    try:
        if isinstance(source, str) and source.startswith(_DATA):
            source = BytesIO(base64.b64decode(source.partition(",")[2], validate=True))
        elif isinstance(source, str) and source.lower().startswith(_WEB):
            raise ValueError("URLs are not downloaded; pass a path, or the image itself")
        elif isinstance(source, (str, PathLike)):
            source = require_file(_path(source))
        with Image.open(source) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{what}: {error}") from error
    except binascii.Error as error:
        raise ValueError(f"{where} must have its bytes in base64: {error}") from error
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises errors of many kinds for damaged files
        reason = (isinstance(error, OSError) and error.strerror) or error  # the whole error has the whole name
        raise ValueError(f"{where} cannot be read: {reason}") from error


def _path(source: str | PathLike[str]) -> Path:
    from pathlib import Path

    return Path(fspath(source))


def _on_white(image_module: Any, image: Any) -> Any:
    """Return a PIL image in RGB, its transparent pixels on white."""
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    layered = image.convert("RGBA")
    white = image_module.new("RGBA", layered.size, (255, 255, 255, 255))
    return image_module.alpha_composite(white, layered).convert("RGB")


def _with_channels(array: NDArray[Any]) -> NDArray[Any]:
    """Return [H, W, C] for [H, W]."""
    return array[:, :, None] if array.ndim == 2 else array


def _from_array(what: str, array: NDArray[Any], to_rgb: bool) -> NDArray[Any]:
    """Return the numbers [H, W, C] of an array. The first axis with 1, 3 or 4 entries is the channels."""
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise ValueError(f"{what} must be [H, W], [H, W, C] or [C, H, W] with pixels; got {array.shape}")
    if array.dtype.kind not in "buif":
        raise TypeError(f"{what} must have integers or floats; got {array.dtype}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{what} must have finite numbers")
    if array.ndim == 2:
        array = array[:, :, None]
    elif array.shape[0] in _CHANNELS:
        array = np.moveaxis(array, 0, -1)
    elif array.shape[2] not in _CHANNELS:
        raise ValueError(f"{what} must have 1, 3 or 4 channels; got {array.shape}")
    channels = array.shape[2]
    if not to_rgb or channels == 3:
        return array
    if channels == 1:
        return np.repeat(array, 3, axis=-1)
    is_float = array.dtype.kind == "f"
    if is_float and not (array.min() >= 0 and array.max() <= 1):
        raise ValueError(f"{what} must have floats from 0 to 1 with transparency; got {shown(array.max())}")
    white = 1.0 if is_float else 255
    alpha = array[..., 3:4] / white
    mixed = alpha * array[..., :3] + (1 - alpha) * white
    return np.asarray((mixed if is_float else np.round(mixed)).astype(array.dtype))
