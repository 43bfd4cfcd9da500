"""From an image to the pixels of a model: resize, crop, scale, normalize, with the bits of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...functions.messages import shown
from .settings import ImageSettings
from .sources import pillow

if TYPE_CHECKING:
    from PIL import Image


class PixelSteps:
    """The steps of `ImageSettings` after an image is open."""

    def __init__(self, settings: ImageSettings) -> None:
        self._settings = settings
        levels = np.repeat(np.arange(256, dtype=np.uint8)[:, None], settings.channels, axis=1)
        self._table = np.ascontiguousarray(self._numbers(levels).T)  # [C, 256]: the pixel of each grey level

    def fill(self, what: str, out: NDArray[np.float32], image: Image.Image | NDArray[Any]) -> None:
        """Write the pixels of `image` to `out` [C, H, W]. ValueError if the image has other channels or no levels."""
        channels = image.shape[2] if isinstance(image, np.ndarray) else 3
        if channels != len(out):
            raise ValueError(
                f"{what} must have {len(out)} channels, as the files of the model do not convert it; got {channels}"
            )
        array = _center(self._resized(what, image), self._settings.size)
        if array.dtype == np.uint8:
            for row, table, levels in zip(out, self._table, np.moveaxis(array, -1, 0), strict=True):
                np.take(table, levels, out=row, mode="clip")
        else:
            out[:] = np.moveaxis(self._numbers(array), -1, 0)

    def _resized(self, what: str, image: Any) -> NDArray[Any]:
        """Return the numbers [H, W, C] of an image after its resizing."""
        settings = self._settings
        if settings.resize is None:
            return np.asarray(image)
        is_scaled = False
        if isinstance(image, np.ndarray):
            image, is_scaled = _as_levels(what, image, settings.scale is not None)
        height, width = settings.resized(image.size[1], image.size[0])
        _check_area(what, image.size, height, width)
        array = np.asarray(image.resize((width, height), resample=settings.resample))
        array = array[:, :, None] if array.ndim == 2 else array
        return (array.astype(np.float64) * (1 / 255)).astype(np.float32) if is_scaled else array

    def _numbers(self, array: NDArray[Any]) -> NDArray[np.float32]:
        """Return [H, W, C], scaled and normalized with the roundings of transformers."""
        settings = self._settings
        if settings.scale is not None:
            array = (array.astype(np.float64) * settings.scale).astype(np.float32)
        if settings.mean is not None:
            kind = array.dtype if array.dtype.kind == "f" else np.dtype(np.float32)
            array = (array.astype(kind) - np.array(settings.mean, kind)) / np.array(settings.std, kind)
        return array.astype(np.float32)


def _as_levels(what: str, array: NDArray[Any], is_scaled_later: bool) -> tuple[Any, bool]:
    """Return a PIL image with the grey levels of an array [H, W, C], and whether these were floats from 0 to 1."""
    is_unit = False
    if array.dtype != np.uint8:
        least, most = array.min(), array.max()
        is_unit = not np.allclose(array, array.astype(int))
        if least < 0 or most > (1 if is_unit else 255):
            raise ValueError(
                f"{what} must have whole numbers from 0 to 255, or floats from 0 to 1; got {least} to {most}"
            )
        if is_unit and is_scaled_later:
            raise ValueError(
                f"{what} must have grey levels from 0 to 255, as the files of the model scale them; "
                f"got floats from {shown(float(least))} to {shown(float(most))}, so multiply by 255"
            )
        array = (array.astype(np.float64) * 255).astype(np.float32) if is_unit else array
        array = array.astype(np.uint8)
    levels = np.ascontiguousarray(array[:, :, 0] if array.shape[2] == 1 else array)
    return pillow("Preprocessing").fromarray(levels), is_unit


def _check_area(what: str, before: tuple[int, int], height: int, width: int) -> None:
    """Raise ValueError for an empty result, or one that is larger than an image which Pillow opens."""
    limit = pillow("Preprocessing").MAX_IMAGE_PIXELS
    if min(height, width) < 1 or (limit is not None and height * width > 2 * limit):
        raise ValueError(
            f"{what} is too narrow: its {before[1]} rows of {before[0]} pixels would become {height} rows of {width}"
        )


def _center(array: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Return the rows and columns around the center of [H, W, C]; zeros around a smaller image."""
    parts, places, shape = [], [], []
    for length, wanted in zip(array.shape[:2], size, strict=True):
        first = (length - wanted) // 2
        before = -(-(wanted - length) // 2)
        parts.append(slice(max(first, 0), min(first + wanted, length)))
        places.append(slice(max(before, 0), max(before, 0) + min(length, wanted)))
        shape.append(wanted)
    part = array[tuple(parts)]
    if part.shape[:2] == tuple(size):
        return part
    padded = np.zeros((*shape, array.shape[2]), array.dtype)
    padded[tuple(places)] = part
    return padded
