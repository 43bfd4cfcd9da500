"""Sparse embeddings for the plugs of all packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..functions.messages import in_the_name_of, shown
from ..models import SparseEmbeddings
from ..models.text.inputs import checked_texts
from ..sentence_transformers import SparseEncoder
from ._shared_model import SharedModel, check_prompts
from ._text_embedder import FormatOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on


class SparseOptions(FormatOptions, total=False):
    """Options that every sparse embedder has."""

    max_active_dims: int | None
    num_threads: int | None


class SparseEmbedder(SharedModel):
    """A `SparseEncoder`, and the options of its calls, as `TextEmbedder` is one of dense embeddings."""

    KIND = SparseEncoder
    SETTINGS = (
        *("model_name", "query_prompt", "document_prompt", "model_kwargs"),
        *sorted(SparseOptions.__optional_keys__),
    )

    def __init__(
        self,
        owner: str,
        *,
        model_name: str,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[SparseOptions],
    ) -> None:
        if unknown := options.keys() - SparseOptions.__optional_keys__:
            raise TypeError(f"{owner}: got an unexpected keyword argument {shown(min(unknown))}")
        prompts = {"query_prompt": query_prompt, "document_prompt": document_prompt}
        check_prompts(owner, prompts)
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        super().__init__(owner, model_name=model_name, model_kwargs=model_kwargs, **prompts, **given)
        self._options = {name: value for name, value in given.items() if name not in FormatOptions.__optional_keys__}

    def queries(self, method: str, texts: Sequence[str]) -> SparseEmbeddings:
        """Return the embeddings of queries. `method` is the user's, for messages."""
        return self._embeddings(method, "encode_query", texts, self.settings["query_prompt"])

    def documents(self, method: str, texts: Sequence[str]) -> SparseEmbeddings:
        """Return the embeddings of documents. `method` is the user's, for messages."""
        return self._embeddings(method, "encode_document", texts, self.settings["document_prompt"])

    def _embeddings(self, method: str, encode: str, texts: Sequence[str], prompt: str | None) -> SparseEmbeddings:
        with in_the_name_of(f"{self._owner}.{method}"):
            given = list(checked_texts(method, texts))
            found: SparseEmbeddings = getattr(self.load()._encoder, encode)(given, prompt=prompt, **self._options)
        return found


class SparseFunction:
    """The constructor of classes that read a sparse model at once."""

    def __init__(
        self,
        model_name: str,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[SparseOptions],
    ) -> None:
        prompts = {"query_prompt": query_prompt, "document_prompt": document_prompt}
        name = type(self).__name__
        self._embedder = SparseEmbedder(name, model_name=model_name, model_kwargs=model_kwargs, **prompts, **options)
        self._embedder.load()


def rows_of(embeddings: SparseEmbeddings) -> list[tuple[list[int], list[float]]]:
    """Return the indices, ascending, and the values of each text."""
    rows = (embeddings.row(i) for i in range(embeddings.num_texts))
    return [(indices.tolist(), values.tolist()) for indices, values in rows]
