"""Models of images, and of images and texts, for `SentenceTransformer`: inputs of several kinds, and modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..functions.messages import in_the_name_of, listed, name_of_type
from ..models import ImageEncoder, ImageTextEncoder
from ..models.architecture.family import IMAGES
from ..models.architecture.registry import families_of
from ..models.files.json_files import read_json
from ..models.files.modules_json import Module, read_image_modules
from ..models.files.sentence_files import ImageModalities, read_image_modalities
from ..models.heads.embedding import Form, HasHead, Head, read_head
from ..models.images.sources import PlacedImage
from ..models.text.inputs import check_text
from ..models.text.prompts import Settings, read_settings
from ._arguments import Formats

# Endings by which a str that is the path of a file, or a URL, is an image and no text.
_ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".tiff", ".webp")

_SLAB = 64  # inputs of a progress bar's step; a model of images takes seconds for them


class ImageModel(HasHead):
    """A model of images, and perhaps of texts, with the modules after it.

    It has the attributes and methods of `SentenceEncoder` that `SentenceTransformer` uses.
    """

    def __init__(self, modules: list[Module], given: ImageModalities, settings: Settings, formats: Formats) -> None:
        folder, kwargs = modules[0].folder, formats._asdict()
        self._settings = settings
        self._model: ImageEncoder | ImageTextEncoder
        if given.has_texts:
            self._model = ImageTextEncoder.from_pretrained(folder, **kwargs)
            if given.max_seq_length is not None and given.max_seq_length != self._model.max_length:
                raise ValueError(
                    f"{folder}: max_seq_length must be the number of positions of the model of texts, "
                    f"{self._model.max_length}; got {given.max_seq_length}"
                )
            width = self._model.embed_dim
        else:
            self._model = ImageEncoder.from_pretrained(folder, **kwargs)
            width = self._model._model.config.embed_dim
        self._head = Head(read_head(modules, width))

    @property
    def modalities(self) -> list[str]:
        """The kinds of inputs that the model takes."""
        return ["text", "image"] if isinstance(self._model, ImageTextEncoder) else ["image"]

    @property
    def similarity_fn_name(self) -> str:
        """The function to compare embeddings."""
        return self._settings.similarity

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the computation."""
        return self._model.dtype

    @property
    def max_length(self) -> Any:
        """The most tokens of a text; None for a model of images alone."""
        return self._model.max_length if isinstance(self._model, ImageTextEncoder) else None

    @max_length.setter
    def max_length(self, max_length: int) -> None:
        if max_length != self.max_length:
            raise ValueError(f"{type(self).__name__}: max_length must not change for a model of images")

    @property
    def _tokenizer(self) -> Any:
        if not isinstance(self._model, ImageTextEncoder):
            raise AttributeError("a model of images alone has no tokenizer")
        return self._model._tokenizer

    def inputs_in(self, function: str, inputs: Any) -> tuple[bool, list[PlacedImage | str]]:
        """Return whether `inputs` is one input, and all inputs: texts, and images with their places.

        Raises TypeError or ValueError for an input that the model does not take. Images are not opened.
        """
        is_many = isinstance(inputs, (list, tuple)) or (
            isinstance(inputs, Iterable)
            and not isinstance(inputs, (str, bytes, dict))
            and not hasattr(inputs, "read")
            and getattr(inputs, "ndim", 1) != 3
        )
        given = list(inputs) if is_many else [inputs]
        return not is_many, [self._input(function, i, each) for i, each in enumerate(given)]

    def _input(self, function: str, place: int, given: Any) -> PlacedImage | str:
        if isinstance(given, dict):
            if given.keys() not in ({"image"}, {"text"}):
                keys = listed(map(str, given))
                raise ValueError(f"{function}: inputs must have one of image and text; got {keys} at {place}")
            kind, given = next(iter(given.items()))
        else:
            kind = "text" if isinstance(given, str) and not _is_image(given) else "image"
        if kind not in self.modalities:
            raise ValueError(f"{function}: inputs must be images, as the model reads no texts; got a text at {place}")
        if kind == "text":
            check_text(f"{function}: inputs", given, place)
            return str(given)
        if getattr(given, "ndim", 3) != 3 or isinstance(given, (list, tuple, bytes)):
            raise TypeError(
                f"{function}: inputs must be {' or '.join(self.modalities)}, arrays with three axes; "
                f"got {name_of_type(given)} at {place}"
            )
        return PlacedImage(place, given)

    def encode(self, inputs: list[PlacedImage | str], **kwargs: Any) -> NDArray[np.float32]:
        """Return the embeddings [N, E] of inputs; arguments as for `encode_batches`."""
        width = min(kwargs.get("truncate_dim") or self.embed_dim, self._head.features)
        return np.concatenate([np.empty((0, width), np.float32), *self.encode_batches(inputs, **kwargs)])

    def encode_batches(
        self,
        inputs: Iterable[PlacedImage | str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
        normalize: bool | None = None,
        num_threads: int | None = None,
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the embeddings of inputs in order, some at a time; arguments as for `SentenceEncoder`."""
        name = f"{type(self).__name__}.encode_batches"
        before = self._settings.prompts.chosen(name, prompt_name, prompt)
        form = self._form(name, truncate_dim, normalize, num_threads)
        rest = iter(inputs)
        while slab := list(islice(rest, _SLAB)):
            yield self._embeddings(slab, before, form)

    def _embeddings(self, inputs: list[PlacedImage | str], prompt: str, form: Form) -> NDArray[np.float32]:
        images = [i for i, given in enumerate(inputs) if not isinstance(given, str)]
        texts = [i for i, given in enumerate(inputs) if isinstance(given, str)]
        embeddings = np.empty((len(inputs), form.features), np.float32)
        num_threads = form.num_threads
        for places in filter(None, (images, texts)):
            given: list[Any] = [inputs[i] for i in places]
            if isinstance(self._model, ImageEncoder):
                found = self._model.hidden_states(given, num_threads=num_threads)
            elif places is images:
                found = self._model.encode_images(given, normalize=False, num_threads=num_threads)[:, None]
            else:
                whole = [prompt + text for text in given]
                found = self._model.encode_texts(whole, normalize=False, num_threads=num_threads)[:, None]
            rows = found.reshape(-1, found.shape[2])
            cu_seqlens = np.arange(len(places) + 1, dtype=np.int64) * found.shape[1]
            embeddings[places] = self._head.embeddings(rows, cu_seqlens, 0, *form)
        return embeddings

    def __repr__(self) -> str:
        return repr(self._model).replace(type(self._model).__name__, type(self).__name__, 1)


def open_image_model(function: str, directory: Path, formats: Formats) -> ImageModel | None:
    """Open the model in a directory if it reads images; None for a model of texts.

    Raises TypeError, ValueError or OSError if a file cannot be read, or asks for an unsupported feature.
    """
    with in_the_name_of(function):
        modules = read_image_modules(directory)
        if modules is not None:
            first = modules[0]
            given = read_image_modalities(first.folder, first.kind == "CLIPModel") or ImageModalities(True, None)
            is_pooled = "Pooling" in [module.kind for module in modules]
            if is_pooled == given.has_texts:
                what = "no Pooling" if is_pooled else "a Pooling"
                raise ValueError(f"{directory / 'modules.json'} must list {what} after such a {first.kind}")
            return ImageModel(modules, given, read_settings(directory), formats)
        path = directory / "config.json"
        family = read_json(path, dict).get("model_type") if path.is_file() else None
        if (directory / "modules.json").exists() or family not in families_of(IMAGES):
            return None
        modules = [Module("Transformer", directory)]  # and for images alone the mean of all rows
        return ImageModel(modules, ImageModalities(family in ("clip", "siglip"), None), Settings(), formats)


def _is_image(text: str) -> bool:
    """Return whether a str is the data of an image, the path of one that exists, or a URL that ends as such a path."""
    if text.startswith("data:image/"):
        return True
    if text.startswith(("http://", "https://")):
        return " " not in text and text.partition("?")[0].partition("#")[0].lower().endswith(_ENDINGS)
    return text.lower().endswith(_ENDINGS) and _is_file(text)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a path, or with a null character
        return False
