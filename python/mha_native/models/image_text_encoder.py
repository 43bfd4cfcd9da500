"""Vectors of images and texts that can be compared, by a pretrained pair of encoders: CLIP and SigLIP."""

from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import _core
from ..functions.linear import linear
from ..functions.messages import in_the_name_of
from ..functions.runtime import threads_of_call
from ..layers._constructor_arguments import WeightDType, checked_dtypes
from .architecture.family import TEXTS_OF_IMAGES, entries_of
from .architecture.model import Model
from .architecture.open import open_model
from .files.entries import Entries
from .files.folder import FolderSource
from .files.hub_cache import find_directory
from .files.sentence_files import read_sentence_config
from .heads.labels import apply_function
from .heads.pooling import scaled_to_length_1
from .heads.texts_of_images import TextHead, text_head_of
from .image_encoder import ImageEncoder
from .images.preprocessing import Preprocessing
from .images.sources import images_in
from .pretrained import PretrainedModel
from .text.batching import batches, slabs
from .text.inputs import checked_each, checked_texts
from .text.tokenizer import Tokenizer, read_tokenizer, require_library

if TYPE_CHECKING:
    from .images.preprocessing import Images


class ImageTextEncoder(PretrainedModel):
    """Vectors of images and of texts in the same space: the closer, the better a text describes an image.

    Use `from_pretrained` to open a model.

    Parameters
    ----------
    model, head, tokenizer, image_encoder, scale, bias, max_length
        The parts that `from_pretrained` reads.

    See Also
    --------
    from_pretrained : Open a model.
    encode_images, encode_texts : Vectors to store and compare.
    probabilities : Texts as labels of images, without training.

    Notes
    -----
    Sizes and dtypes such as `num_layers` belong to the encoder of texts; `image_encoder` has the others. The vector
    of an image or of a text has the same bits alone and in any batch.

    Needs the packages Pillow and tokenizers. You can call a model from several threads at once.

    Examples
    --------
    >>> import numpy as np
    >>> from mha_native.models import ImageTextEncoder
    >>> model = ImageTextEncoder.from_pretrained("openai/clip-vit-base-patch32")
    >>> black = np.zeros((300, 400, 3), np.uint8)
    >>> model.probabilities(black, ["a black picture", "a photo of a cat"]).shape
    (1, 2)
    """

    _SHOWN = (*PretrainedModel._SHOWN, "image_size")

    def __init__(
        self,
        model: Model,
        head: TextHead,
        tokenizer: Tokenizer,
        image_encoder: ImageEncoder,
        scale: float,
        bias: float | None,
        max_length: int,
    ) -> None:
        self._model, self._head, self._tokenizer = model, head, tokenizer
        self._image_encoder, self._scale, self._bias = image_encoder, scale, bias
        self._max_length = max_length

    @classmethod
    def from_pretrained(
        cls, model: str | PathLike[str], *, dtype: DTypeLike = "float32", weight_dtype: WeightDType = None
    ) -> "ImageTextEncoder":
        """Open a model in the files of transformers.

        Parameters
        ----------
        model : path of a directory, or name of a model
            With the files that `ImageEncoder.from_pretrained` reads, and with tokenizer.json. The ``model_type`` is
            clip, or siglip, also of SigLIP 2 for images of one size.
        dtype, weight_dtype
            As for `ImageEncoder.from_pretrained`, for both encoders.

        Raises
        ------
        FileNotFoundError, ValueError, OSError, ImportError
            As for `ImageEncoder.from_pretrained`; also without tokenizers.
        """
        function = f"{cls.__name__}.from_pretrained"
        with in_the_name_of(function):
            require_library()
            kind, stored = checked_dtypes(function, dtype, weight_dtype)
            folder = find_directory(model)
            source = FolderSource(folder)
            whole = Entries(source.path, source.config)
            whole.choice("model_type", "clip", "siglip")
            opened = open_model(source, TEXTS_OF_IMAGES)
            config = opened.config
            texts = read_sentence_config(folder, config.max_positions or 0, False)
            # Texts have one length, or see no later token, so the mask of padding is not needed.
            needed = {name: value for name, value in texts.tokenizer.items() if name != "model_input_names"}
            tokenizer = read_tokenizer(folder, config.vocab_size, texts._replace(tokenizer=needed), False)
            entries = entries_of(opened.family, whole)
            length = texts.max_seq_length
            parts = text_head_of(opened, entries, folder, tokenizer.library, texts.tokenizer, length)
            encoder = ImageEncoder._of_folder(folder, kind, stored)
            if encoder.embed_dim != parts.features:
                raise ValueError(
                    f"{source.path}: vectors of images and of texts must have the same features; "
                    f"got {encoder.embed_dim} and {parts.features}"
                )
            is_clip = config.stacks[0].is_causal
            shape = () if is_clip else (1,)
            numbers = dict.fromkeys(("logit_scale", *(() if is_clip else ("logit_bias",))), shape)
            with opened.tensors((*parts.tensor_shapes(), *numbers.items())) as tensors:
                head = TextHead(parts, tensors)
                scale, *bias = (float(tensors[name].reshape(())) for name in numbers)
                layers = opened.build(tensors, kind, stored)
            factor = float(np.exp(np.float32(scale)))
            return cls(layers, head, tokenizer, encoder, factor, bias[0] if bias else None, length)

    @property
    def embed_dim(self) -> int:
        """E, the features of a vector."""
        return self._head.config.features

    @property
    def max_length(self) -> int:
        """The largest number of tokens of a text, special tokens included; longer texts are cut."""
        return self._max_length

    @property
    def image_encoder(self) -> ImageEncoder:
        """The encoder of images, whose vectors are not normalized."""
        return self._image_encoder

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the pixels that the model reads."""
        return self._image_encoder.image_size

    @property
    def preprocessing(self) -> Preprocessing:
        """The steps from an image to the pixels that the model reads, as the files say."""
        return self._image_encoder.preprocessing

    @property
    def weight_bytes(self) -> dict[str, int]:
        """The bytes of the matrices of both encoders by their formats, the largest first."""
        found = dict(super().weight_bytes)
        for stored, count in self._image_encoder.weight_bytes.items():
            found[stored] = found.get(stored, 0) + count
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def logit_scale(self) -> float:
        """The factor of products of vectors in `logits`."""
        return self._scale

    @property
    def logit_bias(self) -> float | None:
        """The number that `logits` adds to products, in SigLIP; None in CLIP."""
        return self._bias

    def encode_images(
        self, images: "Images", *, normalize: bool = True, num_threads: int | None = None
    ) -> NDArray[np.float32]:
        """Return the vectors of images.

        Parameters
        ----------
        images : image, or N of them
            As for `ImageEncoder.encode`.
        normalize : bool, default True
            Scale vectors to length 1, as the model does for its logits. Otherwise they equal
            ``get_image_features`` of transformers.
        num_threads : int, optional
            As for `ImageEncoder.encode`.

        Returns
        -------
        vectors : float32 [N, E]
            For one image [E].

        Raises
        ------
        TypeError, ValueError, OSError
            As for `ImageEncoder.encode`.
        """
        name = f"{type(self).__name__}.encode_images"
        normalize = _core.boolean(name, "normalize", normalize)
        num_threads = threads_of_call(name, num_threads)
        is_one, _ = images_in(name, images)
        with in_the_name_of(name):
            vectors = self._image_encoder.encode(images, num_threads=num_threads)
        return self._finished(vectors[None] if is_one else vectors, is_one, normalize, num_threads)

    def encode_texts(
        self, texts: str | Iterable[str], *, normalize: bool = True, num_threads: int | None = None
    ) -> NDArray[np.float32]:
        """Return the vectors of texts.

        For CLIP the row of the token that ends a text counts. For SigLIP all texts are padded to `max_length` tokens,
        which the layers read, and the last row counts.

        Parameters
        ----------
        texts : str, or N of them
            Longer texts are cut to `max_length` tokens.
        normalize : bool, default True
            Scale vectors to length 1, as the model does for its logits. Otherwise they equal
            ``get_text_features`` of transformers.
        num_threads : int, optional
            Threads of the computation; default: `mha_native.num_threads`.

        Returns
        -------
        vectors : float32 [N, E]
            For one text [E].

        Raises
        ------
        TypeError, ValueError
            If a text is not a str, or holds half of a surrogate pair; the message says which text.
        """
        name = f"{type(self).__name__}.encode_texts"
        normalize = _core.boolean(name, "normalize", normalize)
        num_threads = threads_of_call(name, num_threads)
        is_one = isinstance(texts, str)
        given = [texts] if isinstance(texts, str) else checked_texts(name, texts)
        parts = [np.empty((0, self.embed_dim), np.float32)]
        for batch in batches(self._tokens(name, given), self._head.length_of):
            with in_the_name_of(name):
                parts.append(self._head(self._model, batch, num_threads))
        return self._finished(np.concatenate(parts), is_one, normalize, num_threads)

    def logits(self, images: "Images", texts: Iterable[str], *, num_threads: int | None = None) -> NDArray[np.float32]:
        """Return how well texts describe images: ``scale * images @ texts.T``, and a bias in SigLIP.

        Parameters
        ----------
        images : N images
            Or one image, as for `ImageEncoder.encode`.
        texts : M str
            Or one.
        num_threads : int, optional
            As for `ImageEncoder.encode`.

        Returns
        -------
        logits : float32 [N, M]
            ``logits_per_image`` of transformers.

        Raises
        ------
        TypeError, ValueError, OSError
            As for `encode_images` and `encode_texts`.
        """
        return self._logits(f"{type(self).__name__}.logits", images, texts, num_threads)

    def _logits(
        self, name: str, images: "Images", texts: Iterable[str], num_threads: int | None
    ) -> NDArray[np.float32]:
        with in_the_name_of(name):
            of_images = np.atleast_2d(self.encode_images(images, num_threads=num_threads))
            of_texts = np.atleast_2d(self.encode_texts(texts, num_threads=num_threads))
        products = np.zeros((len(of_images), len(of_texts)), np.float32)
        if products.size:  # bits do not depend on the other images and texts
            products = linear(of_images, of_texts, num_threads=num_threads)
        products *= np.float32(self._scale)
        if self._bias is not None:
            products += np.float32(self._bias)
        return products

    def probabilities(
        self, images: "Images", texts: Iterable[str], *, num_threads: int | None = None
    ) -> NDArray[np.float32]:
        """Return the probabilities that texts describe images, by the function with which the model was trained.

        Parameters
        ----------
        images, texts, num_threads
            As for `logits`.

        Returns
        -------
        probabilities : float32 [N, M]
            CLIP chooses among the texts, so the probabilities of an image sum to 1. SigLIP judges each text on its own.

        Raises
        ------
        TypeError, ValueError, OSError
            As for `encode_images` and `encode_texts`.
        """
        logits = self._logits(f"{type(self).__name__}.probabilities", images, texts, num_threads)
        if not logits.size:
            return logits
        return apply_function("softmax" if self._bias is None else "sigmoid", logits)

    def _tokens(self, name: str, texts: Iterable[str]) -> Iterator[list[int]]:
        """Yield the tokens of each text."""
        for slab in slabs(checked_each(f"{name}: texts", texts)):
            with in_the_name_of(name):
                yield from self._tokenizer.encode_batch(slab)

    @staticmethod
    def _finished(
        vectors: NDArray[np.float32], is_one: bool, normalize: bool, num_threads: int | None
    ) -> NDArray[np.float32]:
        scaled = scaled_to_length_1(vectors, num_threads) if normalize else vectors
        return scaled[0] if is_one else scaled

    def _reader(self) -> tuple[Any, bool]:
        return self._tokenizer, False

    def _converted(self, convert: Callable[[Any], Any]) -> "ImageTextEncoder":
        other = super()._converted(convert)
        other._image_encoder = self._image_encoder._converted(convert)
        return other
