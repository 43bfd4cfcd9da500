"""Rankings of documents for the plugs of all packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..functions.messages import in_the_name_of
from ..functions.scalars import checked_integer
from ..sentence_transformers import CrossEncoder
from ._shared_model import SharedModel

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

    from ._text_embedder import FormatOptions


class TextRanker(SharedModel):
    """A `CrossEncoder`, and the number of documents that it keeps.

    Parameters
    ----------
    owner, model_name, model_kwargs, dtype, weight_dtype
        As for `SharedModel`.
    top_n : int, optional
        Keep this many documents. Default: all.
    """

    KIND = CrossEncoder

    def __init__(
        self,
        owner: str,
        *,
        model_name: str,
        top_n: int | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        **formats: Unpack[FormatOptions],
    ) -> None:
        if top_n is not None:
            top_n = checked_integer(owner, "top_n", top_n, 1)
        super().__init__(owner, model_name=model_name, top_n=top_n, model_kwargs=model_kwargs, **formats)

    def ranked(self, method: str, query: str, texts: Sequence[str]) -> list[tuple[int, float]]:
        """Return index and score of the best of N texts, the best first. `method` is the user's, for messages."""
        with in_the_name_of(f"{self._owner}.{method}"):
            found = self.load().rank(query, list(texts), self.settings["top_n"], show_progress_bar=False)
        return [(entry["corpus_id"], entry["score"]) for entry in found]
