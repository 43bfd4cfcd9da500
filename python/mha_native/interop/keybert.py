"""The package KeyBERT, which finds keywords by the embeddings of a sentence model of this library."""

from __future__ import annotations

from ..functions.needed_packages import needed_package
from ._embedding_model import TopicEmbedder

with needed_package(__name__, "keybert", "keybert"):
    from keybert.backend import BaseEmbedder

__all__ = ["Embedder"]


class Embedder(TopicEmbedder, BaseEmbedder):  # type: ignore[misc, unused-ignore]
    """What ``KeyBERT`` takes as its ``model``: a sentence model of this library.

    Parameters
    ----------
    model : path, name of a model, or SentenceEncoder
        As `mha_native.models.SentenceEncoder.from_pretrained` takes it, or what that returned.
    **options
        ``dtype`` and ``weight_dtype`` of `from_pretrained`, and ``prompt_name``, ``prompt``, ``truncate_dim``,
        ``normalize`` and ``num_threads`` of `encode`.

    Raises
    ------
    TypeError, ValueError, OSError
        If the model cannot be read, or an option is not what it may be.
    ImportError
        Without tokenizers. The module itself needs keybert: ``pip install "mha_native[keybert]"``.

    Examples
    --------
    >>> from keybert import KeyBERT
    >>> from mha_native.interop.keybert import Embedder
    >>> keyword_model = KeyBERT(model=Embedder("all-MiniLM-L6-v2"))
    >>> keyword_model.extract_keywords("A hungry dog ate the food of the cat.", top_n=1)
    [('hungry', 0.5285)]
    """
