"""Embeddings for the plugs of all packages."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..functions.messages import in_the_name_of, listed, shown
from ..functions.progress import fill_rows, is_wanted
from ..layers._constructor_arguments import checked_size
from ..models import SentenceEncoder
from ..models.images.sources import PlacedImage
from ..models.text.inputs import checked_texts
from ..models.text.prompts import DOCUMENT_PROMPTS, QUERY_PROMPTS
from ..sentence_transformers import SentenceTransformer
from ..sentence_transformers._arguments import check_device
from ..sentence_transformers._images import ImageModel
from ._shared_model import SharedModel, check_dict, check_prompts

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

    from ..layers._constructor_arguments import WeightDType

Model = str | PathLike[str] | SentenceEncoder

# Arguments of `SentenceTransformer.encode`, other than prompts, that keep the form of the result.
_ENCODE_KWARGS = frozenset({"batch_size", "device", "normalize_embeddings", "show_progress_bar", "truncate_dim"})

_logger = logging.getLogger(__name__)


class FormatOptions(TypedDict, total=False):
    """Keywords of `SentenceEncoder.from_pretrained`."""

    dtype: DTypeLike | None
    weight_dtype: WeightDType


class EmbedderOptions(FormatOptions, total=False):
    """Options that every embedder has."""

    truncate_dim: int | None
    normalize: bool | None
    num_threads: int | None


class PromptOptions(EmbedderOptions, total=False):
    """Options of embedders that do not distinguish queries and documents."""

    prompt_name: str | None
    prompt: str | None


class TextEmbedder(SharedModel):
    """A `SentenceTransformer`, or a `SentenceEncoder` that is open already, and the options of its calls.

    Pickles contain an `encoder`, which replaces `model_name`. ``encode_query`` and ``encode_document`` choose the
    default prompts of queries and documents. `encode_kwargs` are arguments of these methods; options have priority.
    `plain_prompt` has the ``prompt_name`` and ``prompt`` of `embeddings`.
    """

    KIND = SentenceTransformer
    SETTINGS = (
        *("model_name", "query_prompt", "document_prompt", "model_kwargs", "encode_kwargs"),
        *sorted(EmbedderOptions.__optional_keys__),
    )

    def __init__(
        self,
        owner: str,
        *,
        model_name: str = "",
        encoder: SentenceEncoder | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        encode_kwargs: Mapping[str, Any] | None = None,
        plain_prompt: Mapping[str, str] | None = None,
        **options: Unpack[EmbedderOptions],
    ) -> None:
        if unknown := options.keys() - EmbedderOptions.__optional_keys__:
            raise TypeError(f"{owner}: got an unexpected keyword argument {shown(min(unknown))}")
        settings: dict[str, Any] = {"query_prompt": query_prompt, "document_prompt": document_prompt}
        check_prompts(owner, settings)
        check_dict(owner, "encode_kwargs", encode_kwargs)
        encoding = dict(encode_kwargs or {})
        if others := encoding.keys() - _ENCODE_KWARGS:
            known = listed(sorted(_ENCODE_KWARGS))
            raise ValueError(f"{owner}: encode_kwargs may have {known}; got {listed(sorted(map(str, others)))}")
        checked_size(owner, "encode_kwargs['batch_size']", encoding.get("batch_size", 1))
        check_device(owner, encoding.get("device"), "encode_kwargs['device']")
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        settings |= {"encode_kwargs": encoding, **given}
        if plain_prompt is not None:
            settings["plain_prompt"] = dict(plain_prompt)
        super().__init__(owner, model_name=model_name, model_kwargs=model_kwargs, **settings)
        if encoder is not None and self._formats:
            name, value = next(iter(self._formats.items()))
            raise ValueError(f"{owner}: {name} must be None for a SentenceEncoder, which has one; got {shown(value)}")
        self._model = encoder
        self._options: dict[str, Any] = {"truncate_dim": encoding.get("truncate_dim")}
        if encoding.get("normalize_embeddings"):
            self._options["normalize"] = True
        self._options |= {name: value for name, value in given.items() if name not in FormatOptions.__optional_keys__}

    def __reduce__(self) -> tuple[Any, ...]:
        made, (kind, owner, settings) = super().__reduce__()
        encoder = self._model if isinstance(self._model, SentenceEncoder) else None
        return made, (kind, owner, settings | ({} if encoder is None else {"encoder": encoder}))

    @property
    def num_features(self) -> int:
        """E, the features of an embedding."""
        with in_the_name_of(self._owner):
            size: int = self.embeddings([]).shape[1]
        return size

    def queries(self, method: str, texts: Sequence[str]) -> list[list[float]]:
        """Return the embeddings [N, E] of queries. `method` is the user's, for messages."""
        return self._lists(method, texts, self.settings["query_prompt"], QUERY_PROMPTS)

    def documents(self, method: str, texts: Sequence[str]) -> list[list[float]]:
        """Return the embeddings [N, E] of documents. `method` is the user's, for messages."""
        return self._lists(method, texts, self.settings["document_prompt"], DOCUMENT_PROMPTS)

    def images(self, method: str, images: Iterable[Any]) -> list[list[float]]:
        """Return the embeddings [N, E] of images: paths, file objects, arrays [H, W, C] or PIL images."""
        model = self.load()
        with in_the_name_of(f"{self._owner}.{method}"):
            encoder = model._encoder if isinstance(model, SentenceTransformer) else model
            if not isinstance(encoder, ImageModel):
                raise ValueError(f"{method}: the model must be one of images; {self.settings['model_name']} is not")
            placed: list[PlacedImage | str] = [PlacedImage(i, image) for i, image in enumerate(images)]
            found: list[list[float]] = encoder.encode(placed, **self._options).tolist()
        return found

    def embeddings(self, texts: Any, shows_progress: bool = False, **prompt: Any) -> NDArray[np.float32]:
        """Return the embeddings [N, E] of N texts: a list, an array of one axis, or a column of a data frame."""
        given = list(checked_texts("TextEmbedder.embeddings", texts))
        options = self._options | (prompt or self.settings.get("plain_prompt", {}))
        if not (shows_progress and given):
            return self._encoder.encode(given, **options)
        rows = np.empty((len(given), self.num_features), np.float32)
        fill_rows(rows, self._encoder.encode_batches(given, **options), "texts", True)
        return rows

    @property
    def _encoder(self) -> SentenceEncoder:
        model = self.load()
        return model if isinstance(model, SentenceEncoder) else model._encoder

    def _lists(
        self, method: str, texts: Sequence[str], prompt: str | None, names: tuple[str, ...]
    ) -> list[list[float]]:
        shows = is_wanted(self.settings["encode_kwargs"].get("show_progress_bar", False), _logger)
        with in_the_name_of(f"{self._owner}.{method}"):
            if prompt is None:
                prompt = self.load()._first_prompt(method, names)
            found: list[list[float]] = self.embeddings(list(texts), shows, prompt=prompt).tolist()
        return found


def opened(owner: str, model: Model, **options: Unpack[PromptOptions]) -> TextEmbedder:
    """Return an embedder with an open model, from a path, a name or a SentenceEncoder."""
    others: Any = dict(options)
    prompt = {name: value for name in ("prompt_name", "prompt") if (value := others.pop(name, None)) is not None}
    if not isinstance(model, str | PathLike | SentenceEncoder):
        raise TypeError(f"{owner}: model must be a path; got {shown(model)}")
    if isinstance(model, PathLike):
        model = os.path.join(os.curdir, model)  # a name without a folder would be searched for in the cache
    source: Any = {"encoder" if isinstance(model, SentenceEncoder) else "model_name": model}
    embedder = TextEmbedder(owner, plain_prompt=prompt, **source, **others)
    with in_the_name_of(owner, model_name="model"):
        _ = embedder.num_features  # reads the model, and checks the options
    return embedder


class TopicEmbedder:
    """The methods that BERTopic and KeyBERT call, before the ``BaseEmbedder`` of each among the bases of a class."""

    embedding_model: TextEmbedder

    def __init__(self, model: Model, **options: Unpack[PromptOptions]) -> None:
        embedder = opened("Embedder", model, **options)
        super().__init__(embedding_model=embedder)  # type: ignore[call-arg]  # of BaseEmbedder, which comes next

    def embed(self, documents: Any, verbose: bool = False) -> NDArray[np.float32]:
        """Return the embeddings [N, E] of N documents or words, under a progress bar if `verbose`."""
        with in_the_name_of("Embedder.embed", texts="documents"):
            return self.embedding_model.embeddings(documents, verbose)
