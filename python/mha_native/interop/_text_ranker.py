"""Rankings of documents for the plugs of all packages."""

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import DTypeLike

from ..functions.messages import in_the_name_of
from ..functions.scalars import checked_integer
from ..layers._constructor_arguments import WeightDType
from ..sentence_transformers import CrossEncoder
from ._shared_model import SharedModel


class TextRanker(SharedModel):
    """A `CrossEncoder`, and `top_n`, the number of documents that it keeps. Default: all."""

    KIND = CrossEncoder

    def __init__(
        self,
        owner: str,
        *,
        model_name: str,
        top_n: int | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        dtype: DTypeLike | None = None,
        weight_dtype: WeightDType = None,
    ) -> None:
        if top_n is not None:
            top_n = checked_integer(owner, "top_n", top_n, 1)
        formats = {"dtype": dtype, "weight_dtype": weight_dtype}
        super().__init__(owner, model_name=model_name, top_n=top_n, model_kwargs=model_kwargs, **formats)

    def ranked(self, method: str, query: str, texts: Sequence[str]) -> list[tuple[int, float]]:
        """Return index and score of the best of N texts, the best first. `method` is the user's, for messages."""
        with in_the_name_of(f"{self._owner}.{method}"):
            found = self.load().rank(query, list(texts), self.settings["top_n"], show_progress_bar=False)
        return [(entry["corpus_id"], entry["score"]) for entry in found]
