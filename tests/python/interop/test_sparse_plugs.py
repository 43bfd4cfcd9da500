"""Sparse embeddings in the interfaces of Chroma, Haystack, LlamaIndex, LangChain and Qdrant: those of the model."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from mha_native.models import SparseEmbeddings, SparseEncoder

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

import tiny_sparse

from mha_native.interop._sparse_embedder import SparseEmbedder, rows_of
from mha_native.interop.qdrant import MhaNativeSparseEmbedding, SparseVector

pytestmark = pytest.mark.usefixtures("no_network")

TEXTS = ["the dog", "", "a b c d"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose queries are looked up, with the prompt "the " before them."""
    return str(tiny_sparse.write_files(tmp_path_factory.mktemp("sparse")))


@pytest.fixture(scope="module")
def model(folder: str) -> SparseEncoder:
    return SparseEncoder.from_pretrained(folder)


def _rows(found: SparseEmbeddings) -> list[tuple[list[int], list[float]]]:
    rows = rows_of(found)
    assert any(indices for indices, _ in rows)
    return rows


def test_qdrant(folder: str, model: SparseEncoder) -> None:
    embedding = MhaNativeSparseEmbedding(folder, max_active_dims=3)
    found = list(embedding.embed(iter(TEXTS)))
    expected = model.encode_document(TEXTS, max_active_dims=3)
    assert [(x.indices.tolist(), x.values.tolist()) for x in found] == _rows(expected)
    assert found[0].as_object() == dict(zip(("indices", "values"), rows_of(expected)[0], strict=True))
    (query,) = embedding.query_embed("dog")
    assert query.as_dict() == dict(zip(*_rows(model.encode_query(["dog"]))[0], strict=True))
    assert isinstance(query, SparseVector)
    assert list(embedding.embed([])) == []
    with pytest.raises(TypeError, match=r"^MhaNativeSparseEmbedding\.embed: texts must be str; got int at 300"):
        list(embedding.embed([*["a"] * 300, 3]))  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"^MhaNativeSparseEmbedding\.query_embed: texts must be texts in an order"):
        list(embedding.query_embed(3))  # type: ignore[arg-type]
    for arguments, message in (
        ({"query_prompt": 3}, "query_prompt must be a str or None; got 3"),
        ({"truncate_dim": 3}, "got an unexpected keyword argument 'truncate_dim'"),
        ({"max_active_dims": {1}}, "arguments must be values of JSON"),
    ):
        with pytest.raises(TypeError, match=f"^MhaNativeSparseEmbedding: {message}"):
            MhaNativeSparseEmbedding(folder, **arguments)  # type: ignore[arg-type]


def test_prompts_and_copies(folder: str, model: SparseEncoder) -> None:
    embedder = SparseEmbedder("Plug", model_name=folder, query_prompt="a ", document_prompt="b ", weight_dtype="int8")
    for given in (embedder, pickle.loads(pickle.dumps(embedder))):
        assert _rows(given.queries("f", ["dog"])) == _rows(model.encode_query(["dog"], prompt="a "))
    int8 = SparseEncoder.from_pretrained(folder, weight_dtype="int8")
    assert _rows(embedder.documents("f", TEXTS)) == _rows(int8.encode_document(TEXTS, prompt="b "))
    assert SparseEmbedder("Plug", model_name=folder).load() is SparseEmbedder("Plug", model_name=folder).load()


def test_chroma(folder: str, model: SparseEncoder) -> None:
    pytest.importorskip("chromadb")
    from chromadb.utils.embedding_functions import sparse_known_embedding_functions

    from mha_native.interop.chroma import MhaNativeSparseEmbeddingFunction

    assert sparse_known_embedding_functions["mha_native_sparse"] is MhaNativeSparseEmbeddingFunction
    first = MhaNativeSparseEmbeddingFunction(folder, query_prompt="a ", max_active_dims=2)
    for function in (first, MhaNativeSparseEmbeddingFunction.build_from_config(first.get_config())):
        found = [(vector.indices, vector.values) for vector in function(TEXTS)]
        assert found == _rows(model.encode_document(TEXTS, max_active_dims=2))
        found = [(vector.indices, vector.values) for vector in function.embed_query(["dog"])]
        assert found == _rows(model.encode_query(["dog"], prompt="a ", max_active_dims=2))
    with pytest.raises(ValueError, match=r"^MhaNativeSparse.*\.validate_config: config may have .*; got normalize"):
        MhaNativeSparseEmbeddingFunction.validate_config({"model_name": folder, "normalize": True})


def test_haystack(folder: str, model: SparseEncoder) -> None:
    pytest.importorskip("haystack")
    from haystack import Document, Pipeline

    from mha_native.interop.haystack import MhaNativeSparseDocumentEmbedder, MhaNativeSparseTextEmbedder

    pipeline = Pipeline()
    pipeline.add_component("query", MhaNativeSparseTextEmbedder(folder, max_active_dims=2))
    pipeline.add_component("documents", MhaNativeSparseDocumentEmbedder(folder, meta_fields_to_embed=["title"]))
    given = [Document(content=text, meta={"title": "cat"}) for text in TEXTS]
    inputs = {"query": {"text": "dog"}, "documents": {"documents": given}}
    read = Pipeline.loads(pipeline.dumps(), allowed_modules=[MhaNativeSparseTextEmbedder.__module__])
    for each in (pipeline, read):
        found = each.run(inputs)
        query = found["query"]["sparse_embedding"]
        assert [(query.indices, query.values)] == _rows(model.encode_query(["dog"], max_active_dims=2))
        vectors = [document.sparse_embedding for document in found["documents"]["documents"]]
        expected = _rows(model.encode_document([f"cat\n{text}" for text in TEXTS]))
        assert [(vector.indices, vector.values) for vector in vectors] == expected
    assert all(document.sparse_embedding is None for document in given)


def test_llama_index(folder: str, model: SparseEncoder) -> None:
    pytest.importorskip("llama_index.core")
    from mha_native.interop.llama_index import MhaNativeSparseEmbedding as Embedding

    embedding: Any = Embedding(model_name=folder, max_active_dims=3)
    documents = _rows(model.encode_document(TEXTS, max_active_dims=3))
    query = _rows(model.encode_query(["dog"], max_active_dims=3))
    assert embedding.get_text_embedding_batch(TEXTS) == [dict(zip(*row, strict=True)) for row in documents]
    assert embedding.get_query_embedding("dog") == dict(zip(*query[0], strict=True))
    assert asyncio.run(embedding.aget_query_embedding("dog")) == embedding.get_query_embedding("dog")
    assert list(zip(*embedding.sparse_doc_fn(TEXTS), strict=True)) == documents
    assert list(zip(*embedding.sparse_query_fn(["dog"]), strict=True)) == query


def test_langchain_qdrant(folder: str, model: SparseEncoder) -> None:
    pytest.importorskip("langchain_qdrant")
    from mha_native.interop.langchain_qdrant import MhaNativeSparseEmbeddings

    embeddings = MhaNativeSparseEmbeddings(model_name=folder, max_active_dims=3)
    embeddings = MhaNativeSparseEmbeddings(**embeddings.model_dump())
    found = [(vector.indices, vector.values) for vector in embeddings.embed_documents(TEXTS)]
    assert found == _rows(model.encode_document(TEXTS, max_active_dims=3))
    query = asyncio.run(embeddings.aembed_query("dog"))
    assert [(query.indices, query.values)] == _rows(model.encode_query(["dog"], max_active_dims=3))
