"""Images for a command: files, and the images in folders."""

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from ..models.images.sources import pillow
from .errors import UserError, errors_of_files
from .input_texts import Texts, opened

# The endings of the files of a folder that are images. A file that is named itself can have any ending.
_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".ppm", ".pgm")


class ImageFiles:
    """Paths of images, in the order of the command line, of a folder in the order of names. Iterable once."""

    place = entry = "image"

    def __init__(self, paths: list[str]) -> None:
        self._files = [file for path in paths for file in image_files(path)]
        self.count = 0

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[str]:
        for file in self._files:
            self.count += 1
            yield file

    @property
    def share_read(self) -> float | None:
        """The share of the images read so far, from 0 to 1."""
        return self.count / len(self._files)


Source: TypeAlias = Texts | ImageFiles


def add_images(source: Any) -> None:
    """Add the option for images to a group of arguments."""
    images = "images, and folders of images with all folders below, instead of texts; needs the package Pillow"
    source.add_argument("--images", metavar="PATH", nargs="+", help=images)


@contextlib.contextmanager
def images_or_texts(options: argparse.Namespace) -> Iterator[Source]:
    """Open the images that the arguments name, or else their texts or lines. UserError without one, and without
    Pillow for images."""
    if options.images is None:
        with opened(options.texts, options.file) as texts:
            yield texts
    else:
        try:
            pillow(options.command)
        except ImportError as error:
            raise UserError(str(error)) from error
        yield ImageFiles(options.images)


def image_files(path: str) -> list[str]:
    """Return the images in a folder and all folders below, in the order of names, or the file itself."""
    with errors_of_files("read", path):
        if not os.path.isdir(path):
            os.stat(path)
            return [path]
        found = [str(file) for file in sorted(Path(path).rglob("*")) if file.suffix.lower() in _ENDINGS]
    if not found:
        raise UserError(f"--images: {path} has no files that end in {' '.join(_ENDINGS)}")
    return found
