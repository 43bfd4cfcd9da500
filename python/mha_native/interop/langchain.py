"""LangChain: embeddings for its vector stores and retrievers, and an order of what these find."""

from collections.abc import Sequence
from typing import Any

from ..functions.needed_packages import needed_package

with needed_package(__name__, "langchain-core", "langchain"):
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.embeddings import Embeddings

    from ._described_fields import EmbedderFields, RankerFields

__all__ = ["MhaNativeEmbeddings", "MhaNativeRanker"]


class MhaNativeEmbeddings(EmbedderFields, Embeddings):  # type: ignore[misc]
    """Embeddings of LangChain by a model of sentence-transformers, in the place of its HuggingFaceEmbeddings.

    Parameters
    ----------
    model_name : str
        A directory, or the name of a model, as for `mha_native.sentence_transformers.SentenceTransformer`. ``model`` is
        another name of it.
    query_prompt, document_prompt : str, optional
        What stands before a query, and before a document. Default: the prompts of the model for these, if it has any.
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
    A model of pydantic: ``MhaNativeEmbeddings(**embeddings.model_dump())`` is the same again. Objects of one process
    that describe the same model share it. May be used from several threads at once; the asynchronous methods compute
    in one.

    Examples
    --------
    >>> from langchain_core.vectorstores import InMemoryVectorStore
    >>> from mha_native.interop.langchain import MhaNativeEmbeddings
    >>> store = InMemoryVectorStore(MhaNativeEmbeddings(model_name="all-MiniLM-L6-v2"))
    >>> ids = store.add_texts(["The puppy wanted food.", "Stocks fell on Tuesday."])
    >>> store.similarity_search("A dog was hungry.", k=1)[0].page_content
    'The puppy wanted food.'
    """

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """The embeddings of N documents: N lists of E numbers."""
        return self._embedder.documents("embed_documents", texts)

    def embed_query(self, text: str) -> list[float]:
        """The embedding of a query: E numbers."""
        return self._embedder.queries("embed_query", [text])[0]


class MhaNativeRanker(RankerFields, BaseDocumentCompressor):  # type: ignore[misc]
    """A document compressor of LangChain: the documents that fit a query, the best first, by a cross encoder.

    Parameters
    ----------
    model_name : str
        A directory, or the name of a model, as for `mha_native.sentence_transformers.CrossEncoder`. ``model`` is
        another name of it.
    top_n : int, optional
        Most documents that are left. Default: all.
    model_kwargs : dict, optional
        Further arguments of `CrossEncoder`: what JSON can hold.

    Raises
    ------
    FileNotFoundError, OSError
        If the model cannot be read.
    TypeError, ValueError
        If an argument is none of these.

    Examples
    --------
    >>> from langchain_core.documents import Document
    >>> from mha_native.interop.langchain import MhaNativeRanker
    >>> ranker = MhaNativeRanker(model_name="ms-marco-MiniLM-L6-v2", top_n=1)
    >>> documents = [Document("Children swim for free."), Document("Bulky waste is collected on Mondays.")]
    >>> [list(document.metadata) for document in ranker.compress_documents(documents, "an old couch")]
    [['relevance_score']]
    """

    def compress_documents(
        self,
        documents: Sequence[Document],
        query: str,
        callbacks: Any = None,
    ) -> list[Document]:
        """Copies of the best of N documents, the best first, with their ``relevance_score`` in the metadata."""
        found = self._ranked("compress_documents", query, [document.page_content for document in documents])
        return [
            documents[i].model_copy(update={"metadata": {**documents[i].metadata, "relevance_score": score}})
            for i, score in found
        ]
