"""Documents in the order in which they fit a query, as plugs of several packages need them."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..functions.messages import in_the_name_of
from ..functions.scalars import checked_integer
from ..sentence_transformers import CrossEncoder
from ._described_model import DescribedModel


class TextRanker(DescribedModel):
    """A `CrossEncoder`, and how many documents it leaves.

    Parameters
    ----------
    owner, model_name, model_kwargs
        As for `DescribedModel`.
    top_n : int, optional
        Most documents that are left. Default: all.
    """

    KIND = CrossEncoder
    SETTINGS = ("model_name", "top_n", "model_kwargs")

    def __init__(
        self, owner: str, *, model_name: str, top_n: int | None = None, model_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        if top_n is not None:
            top_n = checked_integer(owner, "top_n", top_n, 1)
        super().__init__(owner, model_name=model_name, model_kwargs=model_kwargs, top_n=top_n)

    def ranked(self, method: str, query: str, texts: Sequence[str]) -> list[tuple[int, float]]:
        """The best of N texts: their numbers from 0, each with its score, the best first. `method` is the user's."""
        with in_the_name_of(f"{self._owner}.{method}"):
            found = self.load().rank(query, list(texts), self.settings["top_n"], show_progress_bar=False)
        return [(entry["corpus_id"], entry["score"]) for entry in found]
