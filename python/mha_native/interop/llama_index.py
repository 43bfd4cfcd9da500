"""LlamaIndex: embeddings for its indexes and ingestion pipelines, and a ranker of nodes."""

import asyncio

from ..functions.needed_packages import needed_package
from ._argument_docs import with_argument_docs

with needed_package(__name__, "llama-index-core", "llama-index"):
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.base.embeddings.base_sparse import BaseSparseEmbedding
    from llama_index.core.embeddings.multi_modal_base import MultiModalEmbedding
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import ImageType, MetadataMode, NodeWithScore, QueryBundle
    from pydantic import Field

    from ._pydantic_fields import EmbedderFields, RankerFields, SparseFields
    from ._sparse_embedder import rows_of

__all__ = ["MhaNativeEmbedding", "MhaNativeMultiModalEmbedding", "MhaNativeRanker", "MhaNativeSparseEmbedding"]


@with_argument_docs
class MhaNativeEmbedding(EmbedderFields, BaseEmbedding):
    """Embeddings of LlamaIndex by a model of sentence-transformers, a drop-in for its HuggingFaceEmbedding.

    Parameters
    ----------
    {fields}
    embed_batch_size : int, default 256
        The number of texts that LlamaIndex embeds in one call. They are packed one after another without padding.
    callback_manager, num_workers, embeddings_cache, rate_limiter
        Arguments of every embedding of LlamaIndex.

    {errors}

    Notes
    -----
    ``to_dict`` and ``from_dict`` give an equal object. Equal descriptions in one process share a model. Several threads
    may use an object at once; each asynchronous method computes in a thread.

    Examples
    --------
    >>> from llama_index.core import Document, VectorStoreIndex
    >>> from mha_native.interop.llama_index import MhaNativeEmbedding
    >>> documents = [Document(text="The puppy wanted food."), Document(text="Stocks fell on Tuesday.")]
    >>> embedding = MhaNativeEmbedding(model_name="all-MiniLM-L6-v2")
    >>> index = VectorStoreIndex.from_documents(documents, embed_model=embedding)
    >>> index.as_retriever(similarity_top_k=1).retrieve("A dog was hungry.")[0].text
    'The puppy wanted food.'
    """

    embed_batch_size: int = Field(default=256, gt=0, le=2048)  # the bounds of LlamaIndex

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex writes into a description."""
        return "MhaNativeEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._embedder.queries("get_query_embedding", [query])[0]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._embedder.documents("get_text_embedding", [text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._embedder.documents("get_text_embedding_batch", texts)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)


@with_argument_docs
class MhaNativeMultiModalEmbedding(MhaNativeEmbedding, MultiModalEmbedding):
    """Embeddings of LlamaIndex for texts and images in one space, by a model such as CLIP.

    Parameters
    ----------
    {fields}
    embed_batch_size, callback_manager, num_workers, embeddings_cache, rate_limiter
        As for `MhaNativeEmbedding`.

    {errors}

    Examples
    --------
    >>> from mha_native.interop.llama_index import MhaNativeMultiModalEmbedding
    >>> embedding = MhaNativeMultiModalEmbedding(model_name="clip-ViT-B-32")  # doctest: +SKIP
    >>> len(embedding.get_image_embedding("couch.jpg"))  # doctest: +SKIP
    512
    """

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex writes into a description."""
        return "MhaNativeMultiModalEmbedding"

    def _get_image_embedding(self, img_file_path: ImageType) -> list[float]:
        return self._embedder.images("get_image_embedding", [img_file_path])[0]

    def _get_image_embeddings(self, img_file_paths: list[ImageType]) -> list[list[float]]:
        return self._embedder.images("get_image_embedding_batch", img_file_paths)

    async def _aget_image_embedding(self, img_file_path: ImageType) -> list[float]:
        return await asyncio.to_thread(self._get_image_embedding, img_file_path)

    async def _aget_image_embeddings(self, img_file_paths: list[ImageType]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_image_embeddings, img_file_paths)


@with_argument_docs
class MhaNativeSparseEmbedding(SparseFields, BaseSparseEmbedding):
    """Sparse embeddings of LlamaIndex by a model of SPLADE.

    Parameters
    ----------
    {sparse_fields}
    embed_batch_size : int, default 256
        The number of texts that LlamaIndex embeds in one call.
    num_workers : int, optional
        An argument of every embedding of LlamaIndex.

    {errors}

    Notes
    -----
    An embedding is a dict from tokens of the vocabulary to their numbers. A vector store that takes functions from
    texts to sparse vectors, such as Qdrant of LlamaIndex, takes the attributes `sparse_doc_fn` and `sparse_query_fn`.

    Examples
    --------
    >>> from mha_native.interop.llama_index import MhaNativeSparseEmbedding
    >>> embedding = MhaNativeSparseEmbedding(model_name="naver/splade-v3")
    >>> 0 < len(embedding.get_query_embedding("an old couch")) < 31_000
    True
    """

    embed_batch_size: int = Field(default=256, gt=0, le=2048)

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex writes into a description."""
        return "MhaNativeSparseEmbedding"

    def sparse_doc_fn(self, texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
        """Return the indices and the values of N documents."""
        rows = rows_of(self._embedder.documents("sparse_doc_fn", texts))
        return [indices for indices, _ in rows], [values for _, values in rows]

    def sparse_query_fn(self, texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
        """Return the indices and the values of N queries."""
        rows = rows_of(self._embedder.queries("sparse_query_fn", texts))
        return [indices for indices, _ in rows], [values for _, values in rows]

    def _get_query_embedding(self, query: str) -> dict[int, float]:
        (row,) = rows_of(self._embedder.queries("get_query_embedding", [query]))
        return dict(zip(*row, strict=True))

    def _get_text_embedding(self, text: str) -> dict[int, float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[dict[int, float]]:
        found = self._embedder.documents("get_text_embedding_batch", texts)
        return [dict(zip(*row, strict=True)) for row in rows_of(found)]

    async def _aget_query_embedding(self, query: str) -> dict[int, float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> dict[int, float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[dict[int, float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)


@with_argument_docs
class MhaNativeRanker(RankerFields, BaseNodePostprocessor):
    """A postprocessor of LlamaIndex: the nodes that fit a query, the best first, by a cross encoder.

    Parameters
    ----------
    {model_name}
    top_n : int, optional
        Keep this many nodes. Default: all.
    {ranker}
    callback_manager
        An argument of every postprocessor of LlamaIndex.

    {errors}

    Notes
    -----
    The text of a node includes the same fields of the metadata as its embedding.

    Examples
    --------
    >>> from llama_index.core.schema import NodeWithScore, TextNode
    >>> from mha_native.interop.llama_index import MhaNativeRanker
    >>> ranker = MhaNativeRanker(model_name="cross-encoder/ms-marco-MiniLM-L6-v2", top_n=1)
    >>> texts = ["Children swim for free.", "Bulky waste is collected on Mondays."]
    >>> nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]
    >>> len(ranker.postprocess_nodes(nodes, query_str="an old couch"))
    1
    """

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex writes into a description."""
        return "MhaNativeRanker"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("MhaNativeRanker.postprocess_nodes: needs query_bundle or query_str; got neither")
        texts = [node.node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        found = self._ranker.ranked("postprocess_nodes", query_bundle.query_str, texts)
        return [NodeWithScore(node=nodes[i].node, score=score) for i, score in found]
