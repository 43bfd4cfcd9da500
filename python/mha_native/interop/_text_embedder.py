"""Embeddings of queries and documents, as plugs of several packages need them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..functions.messages import in_the_name_of, listed, shown
from ..sentence_transformers import SentenceTransformer
from ._described_model import DescribedModel, check_dict

# What `encode` may be told besides prompts. Its other arguments change the form of the result, which packages
# prescribe.
_ENCODE_KWARGS = frozenset({"batch_size", "device", "normalize_embeddings", "show_progress_bar", "truncate_dim"})


class TextEmbedder(DescribedModel):
    """A `SentenceTransformer`, and how it is called.

    Parameters
    ----------
    owner, model_name, model_kwargs
        As for `DescribedModel`.
    query_prompt, document_prompt : str, optional
        What stands before a query, and before a document. Default: the prompts of the model, as ``encode_query`` and
        ``encode_document`` choose them.
    encode_kwargs : dict, optional
        Arguments of these.
    """

    KIND = SentenceTransformer
    SETTINGS = ("model_name", "query_prompt", "document_prompt", "model_kwargs", "encode_kwargs")

    def __init__(
        self,
        owner: str,
        *,
        model_name: str,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        encode_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        for name, prompt in (("query_prompt", query_prompt), ("document_prompt", document_prompt)):
            if not (prompt is None or isinstance(prompt, str)):
                raise TypeError(f"{owner}: {name} must be a str or None; got {shown(prompt)}")
        check_dict(owner, "encode_kwargs", encode_kwargs)
        encoding = dict(encode_kwargs or {})
        if others := encoding.keys() - _ENCODE_KWARGS:
            known = listed(sorted(_ENCODE_KWARGS))
            raise ValueError(f"{owner}: encode_kwargs may have {known}; got {listed(sorted(map(str, others)))}")
        super().__init__(
            owner,
            model_name=model_name,
            model_kwargs=model_kwargs,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            encode_kwargs=encoding,
        )

    def queries(self, method: str, texts: Sequence[str]) -> list[list[float]]:
        """The embeddings [N, E] of queries. `method` is the user's, for messages."""
        return self._encoded(method, self.load().encode_query, texts, self.settings["query_prompt"])

    def documents(self, method: str, texts: Sequence[str]) -> list[list[float]]:
        """The embeddings [N, E] of documents. `method` is the user's, for messages."""
        return self._encoded(method, self.load().encode_document, texts, self.settings["document_prompt"])

    def _encoded(
        self, method: str, encode: Callable[..., Any], texts: Sequence[str], prompt: str | None
    ) -> list[list[float]]:
        kwargs = {"show_progress_bar": False} | self.settings["encode_kwargs"]
        with in_the_name_of(f"{self._owner}.{method}", inputs="texts"):
            embeddings: list[list[float]] = encode(list(texts), prompt=prompt, **kwargs).tolist()
        return embeddings
