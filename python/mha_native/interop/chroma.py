"""Chroma: the embedding function of a collection, which is stored with it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..functions.messages import listed
from ..functions.needed_packages import needed_package
from ._text_embedder import TextEmbedder

with needed_package(__name__, "chromadb", "chroma"):
    from chromadb.utils.embedding_functions import EmbeddingFunction, register_embedding_function

__all__ = ["MhaNativeEmbeddingFunction"]

# What Chroma calls the similarity functions of sentence-transformers. It has no Manhattan distance; l2 is its default.
_SPACES = {"cosine": "cosine", "dot": "ip", "euclidean": "l2", "manhattan": "l2"}


@register_embedding_function
class MhaNativeEmbeddingFunction(EmbeddingFunction):  # type: ignore[misc]
    """The embedding function of a collection of Chroma, by a model of sentence-transformers.

    Parameters
    ----------
    model_name : str
        A directory, or the name of a model, as for `mha_native.sentence_transformers.SentenceTransformer`.
    query_prompt, document_prompt : str, optional
        What stands before what a collection is asked for, and before its documents. Default: the prompts of the model
        for these, if it has any.
    model_kwargs : dict, optional
        Further arguments of `SentenceTransformer`, such as ``{"truncate_dim": 256}`` or
        ``{"model_kwargs": {"weight_dtype": "int8"}}``: what JSON can hold.
    encode_kwargs : dict, optional
        Of its ``encode``: ``normalize_embeddings``, ``truncate_dim``, ``show_progress_bar``; ``batch_size`` and
        ``device`` are taken and have no effect.

    Raises
    ------
    FileNotFoundError, OSError
        If the model cannot be read.
    TypeError, ValueError
        If an argument is none of these.

    Notes
    -----
    Chroma stores the arguments with a collection and calls the function again when the collection is opened, by its
    name "mha_native", which importing this module registers. Objects of one process that describe the same model share
    it. A collection measures distances as the model says, unless it is told otherwise.

    Examples
    --------
    >>> import chromadb
    >>> from mha_native.interop.chroma import MhaNativeEmbeddingFunction
    >>> function = MhaNativeEmbeddingFunction("all-MiniLM-L6-v2")
    >>> collection = chromadb.EphemeralClient().create_collection("texts", embedding_function=function)
    >>> collection.add(ids=["a", "b"], documents=["The puppy wanted food.", "Stocks fell on Tuesday."])
    >>> collection.query(query_texts=["A dog was hungry."], n_results=1)["ids"]
    [['a']]
    """

    def __init__(
        self,
        model_name: str,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        encode_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._embedder = TextEmbedder(
            type(self).__name__,
            model_name=model_name,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            model_kwargs=model_kwargs,
            encode_kwargs=encode_kwargs,
        )
        self._embedder.load()

    def __call__(self, input: list[str]) -> list[NDArray[np.float32]]:
        """The embeddings of N documents: N arrays float32 [E]."""
        return _arrays(self._embedder.documents("__call__", input))

    def embed_query(self, input: list[str]) -> list[NDArray[np.float32]]:
        """The embeddings of N texts that a collection is asked for: N arrays float32 [E]."""
        return _arrays(self._embedder.queries("embed_query", input))

    @staticmethod
    def name() -> str:
        """What Chroma registers the class as, and writes into a collection: "mha_native"."""
        return "mha_native"

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> "MhaNativeEmbeddingFunction":
        """The function that has this description."""
        MhaNativeEmbeddingFunction.validate_config(config)
        return MhaNativeEmbeddingFunction(**config)

    def get_config(self) -> dict[str, Any]:
        """The arguments, as Chroma stores them with a collection."""
        return dict(self._embedder.settings)

    @staticmethod
    def validate_config(config: dict[str, Any]) -> None:
        """TypeError or ValueError unless it is a description of such a function. No model is read."""
        name = "MhaNativeEmbeddingFunction.validate_config"
        if "model_name" not in config:
            raise ValueError(f"{name}: config must have model_name; it has {listed(map(str, config)) or 'nothing'}")
        if others := config.keys() - TextEmbedder.SETTINGS:
            raise ValueError(f"{name}: config may have {listed(TextEmbedder.SETTINGS)}; got {listed(sorted(others))}")
        TextEmbedder(name, **config)

    def default_space(self) -> str:
        """How a collection measures distances unless it is told: as the model says."""
        return _SPACES[self._embedder.load().similarity_fn_name]

    def supported_spaces(self) -> list[str]:
        """All distances of Chroma."""
        return ["cosine", "l2", "ip"]


def _arrays(embeddings: list[list[float]]) -> list[NDArray[np.float32]]:
    return [np.array(embedding, np.float32) for embedding in embeddings]
