"""Vectors of images by a pretrained encoder of images."""

from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..functions.arrays import widened
from ..functions.messages import in_the_name_of
from ..functions.runtime import threads_of_call
from ..layers._constructor_arguments import WeightDType, checked_dtypes
from .architecture.family import IMAGES, entries_of
from .architecture.model import Model
from .architecture.open import OpenModel, open_model
from .files.entries import Entries
from .files.folder import FolderSource
from .files.hub_cache import find_directory
from .heads.images import ImageHead, image_head_of
from .images.preprocessing import Preprocessing, read_preprocessing
from .images.sources import images_in
from .pretrained import PretrainedLayers
from .text.batching import MOST_TOKENS

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

    from .images.preprocessing import Images


_Compute: TypeAlias = Callable[[NDArray[np.float32], int | None], NDArray[np.float32]]


class ReadsImages(PretrainedLayers):
    """A model that reads images, by its `preprocessing`."""

    _SHOWN = (*PretrainedLayers._SHOWN, "image_size")

    def __init__(self, model: Model, preprocessing: Preprocessing) -> None:
        self._model = model
        self._preprocessing = preprocessing

    @property
    def preprocessing(self) -> Preprocessing:
        """The steps from an image to the pixels that the model reads, as the files say."""
        return self._preprocessing

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the pixels that the model reads."""
        return self._preprocessing.size

    @property
    def patch_grid(self) -> tuple[int, int]:
        """Rows and columns of the patches of an image of `image_size`."""
        rows, columns = self._model.config.stacks[0].front_end.grid(*self.image_size)
        return rows, columns

    @property
    def num_special_rows(self) -> int:
        """The number of rows before the patches: of the class, of a teacher, and registers."""
        return int(self._model.config.stacks[0].front_end.first_patch)

    def _batches(
        self, name: str, images: "Images", num_threads: int | None, compute: _Compute
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the results of `compute` for the pixels of images, as many at a time as the layers read in one call."""
        num_threads = threads_of_call(name, num_threads)
        block = self._images_of_call(*self.image_size)
        with in_the_name_of(name):
            for pixels in self._preprocessing.stream(images, block=block, num_threads=num_threads):
                yield compute(pixels, num_threads)

    def _all(
        self, name: str, images: "Images", num_threads: int | None, shape: tuple[int, ...], compute: _Compute
    ) -> NDArray[np.float32]:
        """Return the results of `compute` for N images, [N, *shape]; for one image its array."""
        is_one, _ = images_in(name, images)
        found = np.concatenate([np.empty((0, *shape), np.float32), *self._batches(name, images, num_threads, compute)])
        return found[0] if is_one else found

    def _images_of_call(self, height: int, width: int) -> int:
        """Return the number of images of a size that the layers read in one call."""
        rows, columns = self._model.config.stacks[0].front_end.grid(height, width)
        return max(1, MOST_TOKENS // (self.num_special_rows + int(rows * columns)))


class ImageEncoder(ReadsImages):
    """Vectors of images: patches, their vectors after the layers of an encoder, and one vector for each image.

    Use `from_pretrained` to open a model.

    Parameters
    ----------
    model, head, preprocessing
        The parts that `from_pretrained` reads.

    See Also
    --------
    from_pretrained : Open a model.
    encode : Vectors of images.
    ImageTextEncoder : Vectors of images and texts to compare.

    Notes
    -----
    Images go through the layers several at once. The vector of an image has the same bits alone and in any batch, for
    any number of threads.

    Needs the package Pillow. You can call a model from several threads at once.

    Examples
    --------
    >>> import numpy as np
    >>> from mha_native.models import ImageEncoder
    >>> model = ImageEncoder.from_pretrained("google/vit-base-patch16-224-in21k")
    >>> vectors = model.encode(np.zeros((2, 300, 400, 3), np.uint8))
    >>> vectors.shape == (2, model.embed_dim)
    True
    """

    def __init__(self, model: Model, head: ImageHead, preprocessing: Preprocessing) -> None:
        super().__init__(model, preprocessing)
        self._head = head

    @classmethod
    def from_pretrained(
        cls, model: str | PathLike[str], *, dtype: DTypeLike = "float32", weight_dtype: WeightDType = None
    ) -> "Self":
        """Open a model in the files of transformers.

        Parameters
        ----------
        model : path of a directory, or name of a model
            The directory has config.json, preprocessor_config.json and model.safetensors (or several such files and
            model.safetensors.index.json). The ``model_type`` is vit, deit, dinov2, dinov2_with_registers, clip or
            siglip, of which the encoder of images is read, clip_vision_model or siglip_vision_model. SigLIP 2 for
            images of one size has the model type siglip; for images of any shape (NaFlex) it is unsupported. A str that
            is not a directory is looked up as for `SentenceEncoder.from_pretrained`.
        dtype : {"float32", "bfloat16", "float16", "float64"}, default "float32"
            The dtype of the computation. Vectors are float32 with any of them.
        weight_dtype : str, optional
            The format of the weights of the layers, for a model in float32, see `MultiHeadAttention.quantize`. The
            projection of patches stays in float32. Default: as in quantized files, else `dtype`.

        Raises
        ------
        FileNotFoundError, ValueError
            If a file is missing or damaged, if it asks for an unsupported feature, or if weights are not finite. The
            message names the file, and tensors with both shapes.
        OSError, ImportError
            If a file cannot be read, or a model cannot be downloaded; without Pillow.
        """
        function = f"{cls.__name__}.from_pretrained"
        with in_the_name_of(function):
            kind, stored = checked_dtypes(function, dtype, weight_dtype)
            return cls._of_folder(find_directory(model), kind, stored)

    @classmethod
    def _of_folder(cls, folder: Path, dtype: np.dtype[Any], weight_dtype: str | None) -> "Self":
        opened, entries, preprocessing = open_images(folder)
        config = image_head_of(opened, entries)
        with opened.tensors(config.tensor_shapes()) as tensors:
            head = ImageHead(config, tensors, dtype)
            return cls(opened.build(tensors, dtype, weight_dtype), head, preprocessing)

    @property
    def embed_dim(self) -> int:
        """E, the features of the vector of an image."""
        return self._head.config.features

    def encode(self, images: "Images", *, num_threads: int | None = None) -> NDArray[np.float32]:
        """Return the vectors of images.

        The vectors are ``pooler_output`` of transformers: for ViT and DeiT the first row after the layers, a linear map
        and tanh, or that row itself if the files have no such map; for DINOv2 the first row; for SigLIP the result of
        its attention to all rows. For CLIP they equal ``get_image_features``, or ``pooler_output`` in the files of a
        model without a projection. None is normalized.

        Parameters
        ----------
        images : image, or N of them
            A PIL image, a path, a file object, or an array of grey levels [height, width, 3] or [height, width].
        num_threads : int, optional
            Threads of the computation, and of the preparation of images; default: `mha_native.num_threads`.

        Returns
        -------
        vectors : float32 [N, E]
            For one image [E].

        Raises
        ------
        TypeError, ValueError, OSError
            If something is no image, or an image cannot be read. The message has its index.
        """
        name = f"{type(self).__name__}.encode"
        return self._all(name, images, num_threads, (self.embed_dim,), self._embed_block)

    def encode_batches(self, images: "Images", *, num_threads: int | None = None) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors of `encode` in order, some at a time: for more images than fit in memory.

        Parameters
        ----------
        images : iterable of images
            Read as needed, a bounded number of images ahead of the vectors.
        num_threads : int, optional
            As for `encode`.

        Yields
        ------
        vectors : float32 [n, E]
            The vectors of the next n images. All images before a wrong one come before its error.
        """
        return self._batches(f"{type(self).__name__}.encode_batches", images, num_threads, self._embed_block)

    def hidden_states(self, images: "Images", *, num_threads: int | None = None) -> NDArray[np.float32]:
        """Return the vectors of the rows of images after the layers, ``last_hidden_state`` of transformers.

        Parameters
        ----------
        images, num_threads
            As for `encode`.

        Returns
        -------
        rows : float32 [N, T, E]
            First `num_special_rows`, then the patches, row by row of `patch_grid`. For one image [T, E]. E is the
            number of features in the layers, which a projection can change in `encode`.

        Raises
        ------
        TypeError, ValueError, OSError
            As for `encode`.
        """
        name = f"{type(self).__name__}.hidden_states"
        rows, columns = self.patch_grid
        shape = self.num_special_rows + rows * columns, self._model.config.embed_dim
        return self._all(name, images, num_threads, shape, self._rows_of_block)

    def attention_weights(self, image: Any, *, num_threads: int | None = None) -> NDArray[np.float32]:
        """Return the attention weights of an image, in each layer and head.

        Parameters
        ----------
        image
            One image, as for `encode`.
        num_threads : int, optional
            As for `encode`.

        Returns
        -------
        weights : float32 [layers, H, T, T]
            Rows sum to 1. The T rows of an image are as for `hidden_states`.

        Raises
        ------
        TypeError, ValueError, OSError
            As for `encode`.
        """
        name = f"{type(self).__name__}.attention_weights"
        num_threads = threads_of_call(name, num_threads)
        with in_the_name_of(name):
            pixels = self._preprocessing([image], num_threads=num_threads)
            x = self._model.stacks[0].front_end(pixels, num_threads)[0]
        weights: NDArray[np.float32] = self._model.weights_of(x, num_threads).astype(np.float32, copy=False)
        return weights

    def _embed_pixels(self, pixels: NDArray[np.float32], num_threads: int | None) -> NDArray[np.float32]:
        """Return the vectors [N, E] of pixels [N, C, height, width], also of another size than `image_size`."""
        step = self._images_of_call(*pixels.shape[2:])
        blocks = (pixels[first : first + step] for first in range(0, len(pixels), step))
        parts = [self._embed_block(block, num_threads) for block in blocks]
        vectors: NDArray[np.float32] = np.concatenate([np.empty((0, self.embed_dim), np.float32), *parts])
        return vectors

    def _rows_of_block(self, pixels: NDArray[np.float32], num_threads: int | None) -> NDArray[np.float32]:
        return widened(self._model.image_rows(pixels, num_threads)).astype(np.float32, copy=False)

    def _embed_block(self, pixels: NDArray[np.float32], num_threads: int | None) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = self._head(self._model.image_rows(pixels, num_threads), num_threads)
        return vectors

    def _with_model(self, model: Model) -> "Self":
        other = super()._with_model(model)
        other._head = self._head.astype(model.dtype)
        return other


def open_images(folder: Path) -> tuple[OpenModel, Entries, Preprocessing]:
    """Open the encoder of images in a folder; return it with the entries of config.json that describe it, and with the
    preparation of images.

    Raises OSError or ValueError if a file cannot be read, or asks for an unsupported feature.
    """
    opened = open_model(FolderSource(folder), IMAGES)
    entries = entries_of(opened.family, Entries(opened.source.path, opened.source.config))
    preprocessing = read_preprocessing(folder)
    front_end: Any = opened.config.stacks[0].front_end
    if 0 in front_end.grid(*preprocessing.size):
        rule, got = (" x ".join(map(str, size)) for size in (front_end.patch, preprocessing.size))
        raise ValueError(f"{folder}: images must be prepared to at least a patch of {rule} pixels; got {got}")
    return opened, entries, preprocessing
