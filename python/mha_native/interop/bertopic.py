"""The package BERTopic: an embedder for topic models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..functions.needed_packages import needed_package
from ._argument_docs import with_argument_docs
from ._text_embedder import Model, TopicEmbedder

with needed_package(__name__, "bertopic", "bertopic"):
    from bertopic.backend import BaseEmbedder

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

    from ._text_embedder import PromptOptions

__all__ = ["Embedder"]


@with_argument_docs
class Embedder(TopicEmbedder, BaseEmbedder):
    """The ``embedding_model`` of a ``BERTopic``: a sentence model of this library.

    {topics}

    Notes
    -----
    A topic model that is saved by pickle has the name or path of the model, not its weights, and reads these again. A
    topic model that is saved as safetensors has a name that was given as a str, which BERTopic opens by
    sentence-transformers, unless you call ``BERTopic.load(folder, embedding_model=Embedder(...))``.

    Examples
    --------
    >>> from bertopic import BERTopic
    >>> from mha_native.interop.bertopic import Embedder
    >>> topic_model = BERTopic(embedding_model=Embedder("all-MiniLM-L6-v2"))
    """

    def __init__(self, model: Model, **options: Unpack[PromptOptions]) -> None:
        super().__init__(model, **options)
        if isinstance(model, str):
            self._hf_model = model  # BERTopic saves this name
