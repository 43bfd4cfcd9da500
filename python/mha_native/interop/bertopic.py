"""The package BERTopic, whose topics are found among the embeddings of a sentence model of this library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..functions.needed_packages import needed_package
from ._embedding_model import Model, TopicEmbedder

with needed_package(__name__, "bertopic", "bertopic"):
    from bertopic.backend import BaseEmbedder

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

    from ._embedding_model import EmbeddingOptions

__all__ = ["Embedder"]


class Embedder(TopicEmbedder, BaseEmbedder):  # type: ignore[misc, unused-ignore]
    """What ``BERTopic`` takes as its ``embedding_model``: a sentence model of this library.

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
        Without tokenizers. The module itself needs bertopic: ``pip install "mha_native[bertopic]"``.

    Notes
    -----
    A topic model that is saved by pickle has the name or path of the model, not its weights; these are read again. One
    that is saved as safetensors has a name that was given as a str, which BERTopic opens by sentence-transformers,
    unless ``BERTopic.load(folder, embedding_model=Embedder(...))`` says otherwise.

    Examples
    --------
    >>> from bertopic import BERTopic
    >>> from mha_native.interop.bertopic import Embedder
    >>> topic_model = BERTopic(embedding_model=Embedder("all-MiniLM-L6-v2"))
    """

    def __init__(self, model: Model, **options: Unpack[EmbeddingOptions]) -> None:
        super().__init__(model, **options)
        if isinstance(model, str):
            self._hf_model = model  # where BERTopic looks for what to save
