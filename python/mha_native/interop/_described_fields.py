"""Described models as models of pydantic, which LangChain and LlamaIndex both describe their objects by."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from ._described_model import DescribedModel
from ._text_embedder import TextEmbedder
from ._text_ranker import TextRanker


class DescribedFields(BaseModel):  # type: ignore[misc]
    """The settings of a `DescribedModel` as fields, which do not change once the object is made."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, protected_namespaces=())

    DESCRIBED: ClassVar[type[DescribedModel]]

    model_name: str = Field(alias="model", frozen=True)
    model_kwargs: dict[str, Any] = Field(default_factory=dict, frozen=True)

    _described: Any = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Read the model, so that a mistake is an error of the call that makes the object."""
        super().model_post_init(context)
        settings = {name: getattr(self, name) for name in self.DESCRIBED.SETTINGS}
        self._described = self.DESCRIBED(type(self).__name__, **settings)
        self._described.load()


class EmbedderFields(DescribedFields):
    """The settings of a `TextEmbedder`."""

    DESCRIBED = TextEmbedder

    query_prompt: str | None = Field(default=None, frozen=True)
    document_prompt: str | None = Field(default=None, frozen=True)
    encode_kwargs: dict[str, Any] = Field(default_factory=dict, frozen=True)

    @property
    def _embedder(self) -> TextEmbedder:
        return self._described  # type: ignore[no-any-return]


class RankerFields(DescribedFields):
    """The settings of a `TextRanker`."""

    DESCRIBED = TextRanker

    top_n: int | None = Field(default=None, frozen=True)

    def _ranked(self, method: str, query: str, texts: list[str]) -> list[tuple[int, float]]:
        return self._described.ranked(method, query, texts)  # type: ignore[no-any-return]
