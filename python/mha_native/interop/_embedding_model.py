"""Embeddings for plugs: a sentence model and how it is called, which go through pickle as they were given."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..functions.messages import in_the_name_of, shown
from ..functions.progress import fill_rows
from ..models import SentenceEncoder
from ..models.text.inputs import checked_texts

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

    from ..layers._constructor_arguments import WeightDType

Model = str | PathLike[str] | SentenceEncoder


class EncodeOptions(TypedDict, total=False):
    """Keywords of `SentenceEncoder.encode`."""

    prompt_name: str | None
    prompt: str | None
    truncate_dim: int | None
    normalize: bool | None
    num_threads: int | None


class EmbeddingOptions(EncodeOptions, total=False):
    """Keywords of `EmbeddingModel`."""

    dtype: DTypeLike
    weight_dtype: WeightDType


class EmbeddingModel:
    """A sentence model, opened once, and the keywords that each call has.

    A model that was given by name or path is not taken along by pickle: it is opened again by the same name or path,
    when it is first called. So workers that are given one read its files themselves.

    Parameters
    ----------
    model : path, name of a model, or SentenceEncoder
        As `SentenceEncoder.from_pretrained` takes it, or what that returned.
    dtype, weight_dtype
        As for `SentenceEncoder.from_pretrained`; a SentenceEncoder has its own. None: the default.
    **options
        As for `SentenceEncoder.encode`.

    Raises
    ------
    TypeError, ValueError, OSError, ImportError
        As `SentenceEncoder.from_pretrained` and `SentenceEncoder.encode`.
    """

    def __init__(
        self,
        model: Model,
        *,
        dtype: DTypeLike | None = None,
        weight_dtype: WeightDType = None,
        **options: Unpack[EncodeOptions],
    ) -> None:
        formats = {"dtype": dtype, "weight_dtype": weight_dtype}
        self._formats: dict[str, Any] = {name: value for name, value in formats.items() if value is not None}
        if isinstance(model, SentenceEncoder) and self._formats:
            name, value = next(iter(self._formats.items()))
            raise ValueError(
                f"EmbeddingModel: {name} must be None for a SentenceEncoder, which has one; got {shown(value)}"
            )
        self._model = model
        self._options = options
        self._encoder: SentenceEncoder | None = None
        self.num_features: int = self._opened().encode([], **options).shape[1]  # which checks the options, too

    def embeddings(self, texts: Any, shows_progress: bool = False) -> NDArray[np.float32]:
        """The embeddings [N, E] of N texts.

        Parameters
        ----------
        texts : N of str
            In anything that has an order: a list, an array of one axis, a column of a data frame.
        shows_progress : bool
            On standard error.
        """
        given = list(checked_texts("EmbeddingModel.embeddings", texts))
        rows = np.empty((len(given), self.num_features), np.float32)
        batches = self._opened().encode_batches(given, **self._options)
        return fill_rows(rows, batches, "texts", shows_progress and bool(given))

    def _opened(self) -> SentenceEncoder:
        if self._encoder is None:
            if isinstance(self._model, SentenceEncoder):
                self._encoder = self._model
            else:
                self._encoder = SentenceEncoder.from_pretrained(self._model, **self._formats)
        return self._encoder

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_encoder": None}


class TopicEmbedder:
    """What BERTopic and KeyBERT call, before the ``BaseEmbedder`` of each among the bases of a class."""

    def __init__(self, model: Model, **options: Unpack[EmbeddingOptions]) -> None:
        with in_the_name_of("Embedder"):
            super().__init__(embedding_model=EmbeddingModel(model, **options))  # type: ignore[call-arg]

    def embed(self, documents: Any, verbose: bool = False) -> NDArray[np.float32]:
        """The embeddings [N, E] of N documents or words; with a progress bar if `verbose`."""
        with in_the_name_of("Embedder.embed", texts="documents"):
            found: NDArray[np.float32] = self.embedding_model.embeddings(documents, verbose)  # type: ignore[attr-defined]
        return found
