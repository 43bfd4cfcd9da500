"""`Preprocessing`: images to the pixels that a model reads, as the image processors of transformers make them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...functions.runtime import num_threads as threads_of_calls
from ...layers._constructor_arguments import checked_size
from .pixels import PixelSteps
from .settings import ImageSettings, read_image_settings
from .sources import ImageSource, PlacedImage, images_in, open_image, pillow

Images: TypeAlias = "ImageSource | Iterable[ImageSource]"
Pixels: TypeAlias = NDArray[np.float32]  # [N, C, H, W]

# Blocks that threads prepare while the caller computes with an earlier one.
_BLOCKS_AHEAD = 2

_NAME = "Preprocessing"


class Preprocessing:
    """The steps from images to pixels: open, resize, crop, scale and normalize, as the files of a model say.

    `read_preprocessing` makes it from files, and models have it as their attribute ``preprocessing``.

    Attributes
    ----------
    size : (int, int)
        The height and width of all results, H and W.
    channels : int
        The channels of all results, C.

    Notes
    -----
    Pixels have the bits that the processors of transformers 5.23 with the backend "pil" compute, also for files of
    their variants with names in "Fast", which resize by torchvision instead: there most numbers differ by at most one
    grey level. As there, a file is turned as its EXIF entry says and becomes RGB, and a PIL image is not turned. A
    model whose files convert images to RGB puts transparent pixels on white.

    Arrays are grey levels: integers from 0 to 255 of any dtype, [H, W], [H, W, C] or [C, H, W]. The first axis with 1,
    3 or 4 entries is the channels.

    Images are opened and resized by several threads. Results have the same bits for any number of them.
    """

    def __init__(self, settings: ImageSettings) -> None:
        self._settings = settings
        self._steps = PixelSteps(settings)

    @property
    def size(self) -> tuple[int, int]:
        """The height and width of an image for the model."""
        return self._settings.size

    @property
    def channels(self) -> int:
        """The channels of an image for the model."""
        return self._settings.channels

    def __call__(self, images: Images, *, num_threads: int | None = None) -> Pixels:
        """Return the pixels of one image or of several.

        Parameters
        ----------
        images : image, or N of them
            A PIL image, a path, a file object of bytes, a data URI, or an array. An array with four axes is N images.
        num_threads : int, optional
            The most images that are opened at once. Default: `mha_native.num_threads()`.

        Returns
        -------
        pixels : float32 [N, C, H, W]
            N is 1 for one image.

        Raises
        ------
        TypeError, ValueError, OSError
            If something is no image, or an image cannot be read. The message has its index.
        ImportError
            Without Pillow.
        """
        blocks = list(self.stream(images, num_threads=num_threads))
        if len(blocks) == 1:
            return blocks[0]
        return np.concatenate([np.empty((0, self.channels, *self.size), np.float32), *blocks])

    def stream(self, images: Images, *, block: int = 8, num_threads: int | None = None) -> Iterator[Pixels]:
        """Return an iterator of pixels in blocks, which threads prepare while you compute with an earlier block.

        Parameters
        ----------
        images : image, or N of them
            As for a call; read as needed, at most three blocks ahead.
        block : int
            The images of a block; the last one may have fewer.
        num_threads : int, optional
            As for a call.

        Returns
        -------
        blocks : iterator of float32 [n, C, H, W]
            The pixels of all images before a wrong one come before its error.
        """
        checked_size(_NAME, "block", block)
        workers = threads_of_calls() if num_threads is None else num_threads
        checked_size(_NAME, "num_threads", workers)
        is_one, given = images_in(_NAME, images)
        pillow(_NAME)
        return self._serial(given) if is_one else self._parallel(given, block, workers)

    def _serial(self, images: Iterable[ImageSource | PlacedImage]) -> Iterator[Pixels]:
        for image in images:
            yield self._fill(np.empty((1, self.channels, *self.size), np.float32), 0, 0, image)

    def _parallel(self, images: Iterable[ImageSource | PlacedImage], size: int, workers: int) -> Iterator[Pixels]:
        waiting: deque[tuple[Pixels, list[Future[Pixels]]]] = deque()
        source, index = iter(images), 0
        error: Exception | None = None
        pool = ThreadPoolExecutor(workers, "mha_native images")
        try:
            while True:
                pixels = np.empty((size, self.channels, *self.size), np.float32)
                futures: list[Future[Pixels]] = []
                try:
                    while len(futures) < size and error is None:
                        image = next(source)
                        futures.append(pool.submit(self._fill, pixels, len(futures), index, image))
                        index += 1
                except StopIteration as end:
                    error = end
                except Exception as raised:  # of the iterable; earlier images come first
                    error = raised
                if futures:
                    waiting.append((pixels, futures))
                while waiting and (error is not None or len(waiting) > _BLOCKS_AHEAD):
                    yield from _finished(*waiting.popleft())
                if error is not None:
                    break
            if not isinstance(error, StopIteration):
                raise error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _fill(self, out: Pixels, row: int, index: int, image: ImageSource | PlacedImage) -> Pixels:
        """Write the pixels of the image at `index` to a row of `out`; return `out`."""
        if isinstance(image, PlacedImage):
            index, image = image
        opened = open_image(_NAME, index, image, self._settings.to_rgb)
        self._steps.fill(f"{_NAME}: images: image {index}", out[row], opened)
        return out

    def __repr__(self) -> str:
        height, width = self.size
        return f"{_NAME}({self.channels} x {height} x {width})"


def read_preprocessing(folder: Path) -> Preprocessing:
    """Return the preprocessing of the model in a folder.

    Raises
    ------
    OSError
        If the folder has neither preprocessor_config.json nor a processor_config.json with an image processor.
    ValueError
        If a setting is not valid, or is not supported.
    """
    return Preprocessing(read_image_settings(Path(folder)))


def _finished(pixels: Pixels, futures: list[Future[Pixels]]) -> Iterator[Pixels]:
    """Return a block once its threads are done; the images before a wrong one, and then its error."""
    for row, future in enumerate(futures):
        try:
            future.result()
        except Exception:
            if row:
                yield pixels[:row]
            raise
    yield pixels[: len(futures)]
