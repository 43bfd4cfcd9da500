"""Embedders and rankers as models of pydantic, for LangChain and LlamaIndex."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from ._sparse_embedder import SparseEmbedder
from ._text_embedder import TextEmbedder
from ._text_ranker import TextRanker


class _Fields(BaseModel):
    """The arguments of a `SharedModel` as frozen fields. The constructor reads the model, to report its errors."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, protected_namespaces=())

    model_name: str = Field(alias="model", frozen=True)
    model_kwargs: dict[str, Any] = Field(default_factory=dict, frozen=True)
    dtype: str | None = Field(default=None, frozen=True)
    weight_dtype: str | None = Field(default=None, frozen=True)


class EmbedderFields(_Fields):
    """The arguments of a `TextEmbedder`."""

    query_prompt: str | None = Field(default=None, frozen=True)
    document_prompt: str | None = Field(default=None, frozen=True)
    truncate_dim: int | None = Field(default=None, frozen=True)
    normalize: bool | None = Field(default=None, frozen=True)
    num_threads: int | None = Field(default=None, frozen=True)
    encode_kwargs: dict[str, Any] = Field(default_factory=dict, frozen=True)

    _embedder: TextEmbedder = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Read the model."""
        super().model_post_init(context)
        arguments = {name: getattr(self, name) for name in EmbedderFields.model_fields}
        self._embedder = TextEmbedder(type(self).__name__, **arguments)
        self._embedder.load()


class SparseFields(_Fields):
    """The arguments of a `SparseEmbedder`."""

    query_prompt: str | None = Field(default=None, frozen=True)
    document_prompt: str | None = Field(default=None, frozen=True)
    max_active_dims: int | None = Field(default=None, frozen=True)
    num_threads: int | None = Field(default=None, frozen=True)

    _embedder: SparseEmbedder = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Read the model."""
        super().model_post_init(context)
        arguments = {name: getattr(self, name) for name in SparseFields.model_fields}
        self._embedder = SparseEmbedder(type(self).__name__, **arguments)
        self._embedder.load()


class RankerFields(_Fields):
    """The arguments of a `TextRanker`."""

    top_n: int | None = Field(default=None, frozen=True)

    _ranker: TextRanker = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Read the model."""
        super().model_post_init(context)
        arguments = {name: getattr(self, name) for name in RankerFields.model_fields}
        self._ranker = TextRanker(type(self).__name__, **arguments)
        self._ranker.load()
