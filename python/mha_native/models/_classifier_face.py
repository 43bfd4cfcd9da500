"""What the public classes of classifiers have in common."""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from .. import _core
from .heads.classifier import Classifier

Face = TypeVar("Face", bound="ClassifierFace")


class ClassifierFace:
    """The properties of a classifier."""

    def __init__(self, classifier: Classifier) -> None:
        self._classifier = classifier

    def astype(self: Face, dtype: DTypeLike) -> Face:
        """The same model in another dtype, every weight rounded once; its head stays in float32.

        Parameters
        ----------
        dtype : {"float32", "bfloat16", "float16", "float64"}
        """
        return type(self)(self._classifier.astype(dtype, f"{type(self).__name__}.astype"))

    @property
    def labels(self) -> tuple[str, ...]:
        """The L labels, as ``id2label`` of config.json has them."""
        return self._classifier.labels.names

    @property
    def max_seq_length(self) -> int:
        """The most tokens that go through the layers for a text, special tokens included."""
        return self._classifier.config.max_seq_length

    @property
    def dtype(self) -> np.dtype[Any]:
        """What the transformer is computed in."""
        return self._classifier.model.dtype

    @property
    def weight_dtype(self) -> str:
        """What the weights of the layers are stored as."""
        return self._classifier.model.weight_dtype

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(num_labels={len(self.labels)}, max_seq_length={self.max_seq_length}, "
            f"dtype={_core.dtype_name(self.dtype)!r}, weight_dtype={self.weight_dtype!r})"
        )
