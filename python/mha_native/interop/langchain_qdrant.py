"""LangChain's vector store of Qdrant: sparse embeddings for its sparse and hybrid searches."""

from ..functions.needed_packages import needed_package
from ._argument_docs import with_argument_docs

with needed_package(__name__, "langchain-qdrant", "langchain"):
    from langchain_qdrant.sparse_embeddings import SparseEmbeddings, SparseVector

    from ._pydantic_fields import SparseFields
    from ._sparse_embedder import rows_of

__all__ = ["MhaNativeSparseEmbeddings"]


@with_argument_docs
class MhaNativeSparseEmbeddings(SparseFields, SparseEmbeddings):
    """Sparse embeddings for QdrantVectorStore of LangChain, by a model of SPLADE.

    Parameters
    ----------
    {sparse_fields}

    {errors}

    Notes
    -----
    A model of pydantic, as `mha_native.interop.langchain.MhaNativeEmbeddings` is one.

    Examples
    --------
    >>> from mha_native.interop.langchain_qdrant import MhaNativeSparseEmbeddings
    >>> embeddings = MhaNativeSparseEmbeddings(model_name="naver/splade-v3", max_active_dims=32)
    >>> len(embeddings.embed_query("an old couch").indices) <= 32
    True
    """

    def embed_documents(self, texts: list[str]) -> list[SparseVector]:
        """Embed N documents."""
        rows = rows_of(self._embedder.documents("embed_documents", texts))
        return [SparseVector(indices=indices, values=values) for indices, values in rows]

    def embed_query(self, text: str) -> SparseVector:
        """Embed a query."""
        ((indices, values),) = rows_of(self._embedder.queries("embed_query", [text]))
        return SparseVector(indices=indices, values=values)
