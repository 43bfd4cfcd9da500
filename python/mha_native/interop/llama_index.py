"""LlamaIndex: embeddings for its indexes and pipelines of ingestion, and an order of what is found."""

import asyncio

from ..functions.needed_packages import needed_package

with needed_package(__name__, "llama-index-core", "llama-index"):
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
    from pydantic import Field

    from ._described_fields import EmbedderFields, RankerFields

__all__ = ["MhaNativeEmbedding", "MhaNativeRanker"]


class MhaNativeEmbedding(EmbedderFields, BaseEmbedding):  # type: ignore[misc]
    """Embeddings of LlamaIndex by a model of sentence-transformers, in the place of its HuggingFaceEmbedding.

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
    embed_batch_size : int, default 256
        How many texts LlamaIndex hands over at once. They are packed one after another, so that many cost no more than
        their tokens do.
    callback_manager, num_workers, embeddings_cache, rate_limiter
        Of every embedding of LlamaIndex.

    Raises
    ------
    FileNotFoundError, OSError
        If the model cannot be read.
    TypeError, ValueError
        If an argument is none of these.

    Notes
    -----
    ``to_dict`` and ``from_dict`` give the same object again. Objects of one process that describe the same model share
    it. May be used from several threads at once; the asynchronous methods compute in one.

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

    embed_batch_size: int = Field(default=256, gt=0, le=2048)  # the bounds are those of LlamaIndex

    @classmethod
    def class_name(cls) -> str:
        """What LlamaIndex writes of the class into a description."""
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


class MhaNativeRanker(RankerFields, BaseNodePostprocessor):  # type: ignore[misc]
    """A postprocessor of LlamaIndex: the nodes that fit a query, the best first, by a cross encoder.

    Parameters
    ----------
    model_name : str
        A directory, or the name of a model, as for `mha_native.sentence_transformers.CrossEncoder`. ``model`` is
        another name of it.
    top_n : int, optional
        Most nodes that are left. Default: all.
    model_kwargs : dict, optional
        Further arguments of `CrossEncoder`: what JSON can hold.
    callback_manager
        Of every postprocessor of LlamaIndex.

    Raises
    ------
    FileNotFoundError, OSError
        If the model cannot be read.
    TypeError, ValueError
        If an argument is none of these.

    Notes
    -----
    The text of a node is that which it has for embeddings, with those fields of the metadata that are not excluded
    there.

    Examples
    --------
    >>> from llama_index.core.schema import NodeWithScore, TextNode
    >>> from mha_native.interop.llama_index import MhaNativeRanker
    >>> ranker = MhaNativeRanker(model_name="ms-marco-MiniLM-L6-v2", top_n=1)
    >>> texts = ["Children swim for free.", "Bulky waste is collected on Mondays."]
    >>> nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]
    >>> len(ranker.postprocess_nodes(nodes, query_str="an old couch"))
    1
    """

    @classmethod
    def class_name(cls) -> str:
        """What LlamaIndex writes of the class into a description."""
        return "MhaNativeRanker"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("MhaNativeRanker.postprocess_nodes: needs query_bundle or query_str; got neither")
        texts = [node.node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        found = self._ranked("postprocess_nodes", query_bundle.query_str, texts)
        return [NodeWithScore(node=nodes[i].node, score=score) for i, score in found]
