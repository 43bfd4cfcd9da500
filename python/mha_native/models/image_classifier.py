"""Labels of images by a pretrained encoder of images."""

from collections.abc import Iterator
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..functions.messages import in_the_name_of
from ..layers._constructor_arguments import WeightDType, checked_dtypes, checked_size
from .architecture.model import Model
from .files.hub_cache import find_directory
from .heads.images import LabelHead, label_head_of, task_of
from .heads.labels import Labels, apply_function, best_labels, read_labels
from .image_encoder import ReadsImages, open_images
from .images.preprocessing import Preprocessing

if TYPE_CHECKING:
    from .images.preprocessing import Images


class ImageClassifier(ReadsImages):
    """Labels of images: an encoder of images with the head of a classifier.

    Use `from_pretrained` to open a model.

    Parameters
    ----------
    model, head, labels, preprocessing
        The parts that `from_pretrained` reads.

    See Also
    --------
    from_pretrained : Open a model.
    ImageTextEncoder : Labels that you choose yourself, without training.

    Notes
    -----
    As for `ImageEncoder`.

    Examples
    --------
    >>> import numpy as np
    >>> from mha_native.models import ImageClassifier
    >>> model = ImageClassifier.from_pretrained("google/vit-base-patch16-224")
    >>> best = model.classify(np.zeros((300, 400, 3), np.uint8), top_k=3)
    >>> len(best)
    3
    """

    _SHOWN = ("num_labels", *ReadsImages._SHOWN)

    def __init__(self, model: Model, head: LabelHead, labels: Labels, preprocessing: Preprocessing) -> None:
        super().__init__(model, preprocessing)
        self._head, self._labels = head, labels

    @classmethod
    def from_pretrained(
        cls, model: str | PathLike[str], *, dtype: DTypeLike = "float32", weight_dtype: WeightDType = None
    ) -> "ImageClassifier":
        """Open a classifier in the files of transformers, whose class there is ...ForImageClassification.

        Parameters
        ----------
        model : path of a directory, or name of a model
            With the files that `ImageEncoder.from_pretrained` reads. In config.json, ``id2label`` has the labels, and
            ``problem_type`` chooses the function from logits to scores. The head is the one of the family; DeiT with a
            teacher averages the logits of its two heads.
        dtype, weight_dtype
            As for `ImageEncoder.from_pretrained`; the head is computed in float32.

        Raises
        ------
        FileNotFoundError, ValueError, OSError, ImportError
            As for `ImageEncoder.from_pretrained`.
        """
        function = f"{cls.__name__}.from_pretrained"
        with in_the_name_of(function):
            kind, stored = checked_dtypes(function, dtype, weight_dtype)
            folder = find_directory(model)
            opened, _, preprocessing = open_images(folder)
            labels = read_labels(folder / "config.json", task_of(opened.source.config))
            config = label_head_of(opened, len(labels.names))
            with opened.tensors(config.tensor_shapes()) as tensors:
                head = LabelHead(config, tensors)
                return cls(opened.build(tensors, kind, stored), head, labels, preprocessing)

    @property
    def labels(self) -> tuple[str, ...]:
        """The L labels, in the order of ``id2label`` of config.json."""
        return self._labels.names

    @property
    def num_labels(self) -> int:
        """L, the number of labels."""
        return len(self.labels)

    def classify(self, images: "Images", top_k: int | None = 5, *, num_threads: int | None = None) -> list[Any]:
        """Return the labels of images with their scores.

        Parameters
        ----------
        images : image, or N of them
            As for `ImageEncoder.encode`.
        top_k : int, default 5
            Number of labels for each image, the best first; None for all of them.
        num_threads : int, optional
            As for `ImageEncoder.encode`.

        Returns
        -------
        labels : list of N lists of dict
            ``{"label": str, "score": float}``, as for `TextClassifier`; for one image one list.

        Raises
        ------
        TypeError, ValueError, OSError
            As for `ImageEncoder.encode`.
        """
        name = f"{type(self).__name__}.classify"
        count = None if top_k is None else checked_size(name, "top_k", top_k)
        scores = self._all(name, images, num_threads, (self.num_labels,), self._score_block)
        results = [best_labels(self.labels, row, count) for row in np.atleast_2d(scores)]
        return results[0] if scores.ndim == 1 else results

    def predict_proba(self, images: "Images", *, num_threads: int | None = None) -> NDArray[np.float32]:
        """Return the scores of images for all labels.

        Parameters
        ----------
        images, num_threads
            As for `ImageEncoder.encode`.

        Returns
        -------
        scores : float32 [N, L]
            In the order of `labels`; for one image [L]. Probabilities, unless ``problem_type`` is "regression".

        Raises
        ------
        TypeError, ValueError, OSError
            As for `ImageEncoder.encode`.
        """
        name = f"{type(self).__name__}.predict_proba"
        return self._all(name, images, num_threads, (self.num_labels,), self._score_block)

    def predict_proba_batches(
        self, images: "Images", *, num_threads: int | None = None
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the scores of `predict_proba` in order, some at a time: for more images than fit in memory.

        Parameters
        ----------
        images, num_threads
            As for `ImageEncoder.encode_batches`.

        Yields
        ------
        scores : float32 [n, L]
            The scores of the next n images. All images before a wrong one come before its error.
        """
        name = f"{type(self).__name__}.predict_proba_batches"
        return self._batches(name, images, num_threads, self._score_block)

    def _score_block(self, pixels: NDArray[np.float32], num_threads: int | None) -> NDArray[np.float32]:
        """Return the scores [N, L] of pixels [N, C, height, width]."""
        logits = self._head(self._model.image_rows(pixels, num_threads), num_threads)
        return apply_function(self._labels.function, logits)
