"""The package KeyBERT: an embedder for its keyword models."""

from __future__ import annotations

from ..functions.needed_packages import needed_package
from ._argument_docs import with_argument_docs
from ._text_embedder import TopicEmbedder

with needed_package(__name__, "keybert", "keybert"):
    from keybert.backend import BaseEmbedder

__all__ = ["Embedder"]


@with_argument_docs
class Embedder(TopicEmbedder, BaseEmbedder):
    """The ``model`` of a ``KeyBERT``: a sentence model of this library.

    {topics}

    Examples
    --------
    >>> from keybert import KeyBERT
    >>> from mha_native.interop.keybert import Embedder
    >>> keyword_model = KeyBERT(model=Embedder("all-MiniLM-L6-v2"))
    >>> keyword_model.extract_keywords("A hungry dog ate the food of the cat.", top_n=1)
    [('hungry', 0.5285)]
    """
