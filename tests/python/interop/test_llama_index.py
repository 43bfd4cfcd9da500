"""The embeddings of LlamaIndex, as its users call them: in an index, in ingestion, described and made again."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_same_bits

from mha_native.sentence_transformers import SentenceTransformer

pytest.importorskip("llama_index.core")

from llama_index.core import Document, StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.schema import NodeWithScore, TextNode
from pydantic import ValidationError

from mha_native.interop.llama_index import MhaNativeEmbedding, MhaNativeRanker

pytestmark = pytest.mark.usefixtures("no_network")

TEXTS = ["the dog", "x y z !", "a b c d"]


def _float32(embeddings: Any) -> Any:
    return np.array(embeddings, np.float32)


@pytest.mark.parametrize("size", [256, 2])
def test_embeddings_are_those_of_the_model(size: int, prompted_model: str, expected: SentenceTransformer) -> None:
    embedding = MhaNativeEmbedding(model_name=prompted_model, embed_batch_size=size)
    documents = expected.encode_document(TEXTS)
    assert_same_bits(_float32(embedding.get_text_embedding_batch(TEXTS)), documents)
    assert_same_bits(_float32(embedding.get_text_embedding(TEXTS[1])), documents[1])
    assert_same_bits(_float32(embedding.get_query_embedding("dog")), expected.encode_query("dog"))


def test_asynchronous_methods_give_the_same(prompted_model: str) -> None:
    embedding = MhaNativeEmbedding(model_name=prompted_model)

    async def calls() -> list[Any]:
        return [
            await embedding.aget_query_embedding("dog"),
            await embedding.aget_text_embedding("dog"),
            await embedding.aget_text_embedding_batch(TEXTS),
        ]

    assert asyncio.run(calls()) == [
        embedding.get_query_embedding("dog"),
        embedding.get_text_embedding("dog"),
        embedding.get_text_embedding_batch(TEXTS),
    ]


def test_an_index(prompted_model: str, expected: SentenceTransformer, tmp_path: Path) -> None:
    embedding = MhaNativeEmbedding(model_name=prompted_model)
    documents = [Document(text=text, id_=str(i)) for i, text in enumerate(TEXTS)]
    index = VectorStoreIndex.from_documents(documents, embed_model=embedding)
    found = index.as_retriever(similarity_top_k=3).retrieve("dog")
    scores = expected.encode_document(TEXTS) @ expected.encode_query("dog")  # the model scales to length 1
    assert [node.node.ref_doc_id for node in found] == [str(i) for i in np.argsort(-scores)]
    np.testing.assert_allclose([node.score for node in found], np.sort(scores)[::-1], rtol=1e-5)
    index.storage_context.persist(str(tmp_path / "index"))
    stored = StorageContext.from_defaults(persist_dir=str(tmp_path / "index"))
    opened: Any = load_index_from_storage(stored, embed_model=embedding)
    again = opened.as_retriever(similarity_top_k=3).retrieve("dog")
    assert [(node.text, node.score) for node in again] == [(node.text, node.score) for node in found]


def test_it_is_a_step_of_ingestion(prompted_model: str) -> None:
    embedding = MhaNativeEmbedding(model_name=prompted_model)
    nodes = embedding([TextNode(text=text) for text in TEXTS])
    assert [node.embedding for node in nodes] == embedding.get_text_embedding_batch(TEXTS)


@pytest.mark.parametrize(
    "again",
    [
        lambda embedding: MhaNativeEmbedding.from_dict(embedding.to_dict()),
        lambda embedding: MhaNativeEmbedding.from_json(embedding.to_json()),
        lambda embedding: pickle.loads(pickle.dumps(embedding)),
    ],
    ids=["dict", "json", "pickle"],
)
def test_a_description_makes_it_again(again: Any, prompted_model: str) -> None:
    arguments: dict[str, Any] = {"query_prompt": "x ", "model_kwargs": {"truncate_dim": 8}, "embed_batch_size": 7}
    embedding = MhaNativeEmbedding(model_name=prompted_model, **arguments)
    assert embedding.to_dict()["class_name"] == "MhaNativeEmbedding"
    same = again(embedding)
    assert same.to_dict() == embedding.to_dict()
    assert same.get_query_embedding("dog") == embedding.get_query_embedding("dog")
    assert len(same.get_query_embedding("dog")) == 8


def test_options(prompted_model: str, ranking_model: str) -> None:
    model = SentenceTransformer(prompted_model, model_kwargs={"weight_dtype": "int8"})
    found = MhaNativeEmbedding(
        model_name=prompted_model, weight_dtype="int8", truncate_dim=8, num_threads=1
    ).get_query_embedding("dog")
    assert_same_bits(np.array(found, np.float32), model.encode_query("dog", truncate_dim=8))
    assert MhaNativeRanker(model=ranking_model, weight_dtype="int8").model_dump()["weight_dtype"] == "int8"


def test_a_description_of_the_former_form_is_read(prompted_model: str) -> None:
    model_kwargs = {"model_kwargs": {"weight_dtype": "int8"}}
    former = {"model_name": prompted_model, "model_kwargs": model_kwargs, "query_prompt": None, "encode_kwargs": {}}
    with pytest.warns(DeprecationWarning, match=r"model_kwargs\['model_kwargs'\] is deprecated"):
        embeddings = MhaNativeEmbedding.from_dict(former | {"class_name": "MhaNativeEmbedding"})
    expected = SentenceTransformer(prompted_model, model_kwargs={"weight_dtype": "int8"}).encode_query("dog")
    assert_same_bits(np.array(embeddings.get_query_embedding("dog"), np.float32), expected)


def test_mistakes(prompted_model: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^MhaNativeEmbedding"):
        MhaNativeEmbedding(model_name=str(tmp_path / "none"))
    with pytest.raises(ValidationError, match="query_instruction"):
        MhaNativeEmbedding(model_name=prompted_model, query_instruction="x ")
    with pytest.raises(ValidationError, match="embed_batch_size"):
        MhaNativeEmbedding(model_name=prompted_model, embed_batch_size=0)


def test_a_ranker(ranking_model: str, ranking: Any) -> None:
    nodes = [NodeWithScore(node=TextNode(text=text, id_=str(i)), score=0.5) for i, text in enumerate(TEXTS)]
    ranker = MhaNativeRanker(model=ranking_model, top_n=2)
    found = ranker.postprocess_nodes(nodes, query_str="dog")
    assert [(int(node.node.node_id), node.score) for node in found] == ranking("dog", TEXTS)[:2]
    assert [node.score for node in nodes] == [0.5] * len(TEXTS)
    assert asyncio.run(ranker.apostprocess_nodes(nodes, query_str="dog")) == found
    assert MhaNativeRanker.from_dict(ranker.to_dict()).postprocess_nodes(nodes, query_str="dog") == found
    with pytest.raises(ValueError, match=r"^MhaNativeRanker\.postprocess_nodes: needs query_bundle or query_str"):
        ranker.postprocess_nodes(nodes)


def test_a_ranker_reads_metadata_as_embeddings_do(ranking_model: str, ranking: Any) -> None:
    metadata = {"title": "cat", "page": 1}
    nodes = [
        NodeWithScore(node=TextNode(text=text, metadata=metadata, excluded_embed_metadata_keys=["page"]))
        for text in TEXTS
    ]
    found = MhaNativeRanker(model_name=ranking_model).postprocess_nodes(nodes, query_str="dog")
    assert [node.score for node in found] == [
        score for _, score in ranking("dog", [f"title: cat\n\n{t}" for t in TEXTS])
    ]
