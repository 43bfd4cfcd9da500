"""LangChain: embeddings for its vector stores and retrievers, and a ranker of their results."""

from collections.abc import Sequence
from typing import Any

from ..functions.needed_packages import needed_package
from ._argument_docs import with_argument_docs

with needed_package(__name__, "langchain-core", "langchain"):
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.embeddings import Embeddings

    from ._pydantic_fields import EmbedderFields, RankerFields

__all__ = ["MhaNativeEmbeddings", "MhaNativeRanker"]


@with_argument_docs
class MhaNativeEmbeddings(EmbedderFields, Embeddings):
    """Embeddings of LangChain by a model of sentence-transformers, a drop-in for its HuggingFaceEmbeddings.

    Parameters
    ----------
    {fields}

    {errors}

    Notes
    -----
    A model of pydantic: ``MhaNativeEmbeddings(**embeddings.model_dump())`` is an equal object. Equal descriptions in
    one process share a model. Several threads may use an object at once; each asynchronous method computes in a thread.

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
        """Embed N documents: N lists of E numbers."""
        return self._embedder.documents("embed_documents", texts)

    def embed_query(self, text: str) -> list[float]:
        """Embed a query: E numbers."""
        return self._embedder.queries("embed_query", [text])[0]

    def embed_image(self, uris: list[str]) -> list[list[float]]:
        """Embed the images in N files, by a model of images: N lists of E numbers.

        Vector stores such as Chroma of LangChain call this method for images.
        """
        return self._embedder.images("embed_image", uris)


@with_argument_docs
class MhaNativeRanker(RankerFields, BaseDocumentCompressor):
    """A document compressor of LangChain: the documents that fit a query, the best first, by a cross encoder.

    Parameters
    ----------
    {model_name}
    top_n : int, optional
        Keep this many documents. Default: all.
    {ranker}

    {errors}

    Examples
    --------
    >>> from langchain_core.documents import Document
    >>> from mha_native.interop.langchain import MhaNativeRanker
    >>> ranker = MhaNativeRanker(model_name="cross-encoder/ms-marco-MiniLM-L6-v2", top_n=1)
    >>> documents = [Document("Children swim for free."), Document("Bulky waste is collected on Mondays.")]
    >>> [list(document.metadata) for document in ranker.compress_documents(documents, "an old couch")]
    [['relevance_score']]
    """

    def compress_documents(self, documents: Sequence[Document], query: str, callbacks: Any = None) -> list[Document]:
        """Return copies of the best documents, the best first, with their ``relevance_score`` in the metadata."""
        found = self._ranker.ranked("compress_documents", query, [document.page_content for document in documents])
        return [
            documents[i].model_copy(update={"metadata": {**documents[i].metadata, "relevance_score": score}})
            for i, score in found
        ]
