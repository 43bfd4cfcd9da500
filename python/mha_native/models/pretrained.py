"""The base class of pretrained models: their sizes and dtypes, and how they are converted."""

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from .. import _core
from ..functions.dtypes import checked_dtype
from ..layers._constructor_arguments import WeightDType, checked_weight_dtype
from .text.tokens_of_texts import ReadsTexts

Model = TypeVar("Model", bound="PretrainedLayers")


class PretrainedLayers:
    """Sizes and dtypes of a model that `from_pretrained` has read.

    Subclasses set `_model`, the computation, and list in `_SHOWN` the sizes that `repr` shows.
    """

    _model: Any
    _SHOWN: tuple[str, ...] = ("embed_dim", "num_layers", "num_heads")

    @property
    def embed_dim(self) -> int:
        """E, the features of a row."""
        return int(self._model.config.embed_dim)

    @property
    def num_layers(self) -> int:
        """Number of layers, in each stack."""
        return len(self._model.config.stacks[0].blocks)

    @property
    def num_heads(self) -> int:
        """H, the attention heads of a layer; 0 in a model without layers."""
        blocks = self._model.config.stacks[0].blocks
        return int(blocks[0].num_heads) if blocks else 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the computation."""
        dtype: np.dtype[Any] = self._model.dtype
        return dtype

    @property
    def weight_dtype(self) -> str:
        """The format of the matrices of the layers, by name; "mixed" if there are several."""
        return str(self._model.weight_dtype)

    @property
    def weight_bytes(self) -> dict[str, int]:
        """The bytes of the matrices by their formats, the largest first: of layers, word tables and head."""
        found: dict[str, int] = self._model.weight_bytes()
        return found

    def astype(self: Model, dtype: DTypeLike) -> Model:
        """Return the same model in another dtype, with every weight rounded once.

        Parameters
        ----------
        dtype : {"float32", "bfloat16", "float16", "float64"}
        """
        kind = checked_dtype(f"{type(self).__name__}.astype", dtype)
        return self._converted(lambda model: model.astype(kind))

    def quantize(self: Model, weight_dtype: WeightDType) -> Model:
        """Return the same model with the matrices of its layers in another format.

        Parameters
        ----------
        weight_dtype : str
            As for `MultiHeadAttention.quantize`. The model must be in float32.
        """
        function = f"{type(self).__name__}.quantize"
        stored = checked_weight_dtype(function, weight_dtype, self.dtype)
        return self._converted(lambda model: model.quantize(stored))

    def _converted(self: Model, convert: Callable[[Any], Any]) -> Model:
        """Return a copy whose computation, or each of them, is converted."""
        return self._with_model(convert(self._model))

    def _with_model(self: Model, model: Any) -> Model:
        """Return a copy that computes with `model`."""
        other = copy.copy(self)
        other._model = model
        return other

    def __repr__(self) -> str:
        sizes = "".join(f"{name}={getattr(self, name)}, " for name in self._SHOWN)
        return (
            f"{type(self).__name__}({sizes}dtype={_core.dtype_name(self.dtype)!r}, weight_dtype={self.weight_dtype!r})"
        )


class PretrainedModel(PretrainedLayers, ReadsTexts):
    """Sizes and dtypes of a model that reads texts."""

    _SHOWN = (*PretrainedLayers._SHOWN, "vocab_size", "max_length")

    @property
    def embed_dim(self) -> int:
        """E, the features of a token."""
        return super().embed_dim

    @property
    def vocab_size(self) -> int:
        """V, the number of tokens."""
        return int(self._model.config.vocab_size)

    @property
    def max_length(self) -> int:
        """The largest number of tokens of a text, special tokens and, where text is generated, new tokens included."""
        return int(self._model.config.max_positions)
