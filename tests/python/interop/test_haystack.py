"""The components of Haystack: in pipelines that embed, store, find and rank, and that go through YAML."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_same_bits

from mha_native.sentence_transformers import SentenceTransformer

pytest.importorskip("haystack")

from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.components.writers import DocumentWriter
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.document_stores.types import DuplicatePolicy

from mha_native.interop.haystack import MhaNativeDocumentEmbedder, MhaNativeRanker, MhaNativeTextEmbedder

pytestmark = pytest.mark.usefixtures("no_network")

TEXTS = ["the dog", "x y z !", "a b c d"]


def _documents() -> list[Document]:
    return [Document(id=str(i), content=text, meta={"title": "cat", "page": i}) for i, text in enumerate(TEXTS)]


def test_embeddings_are_those_of_the_model(prompted_model: str, expected: SentenceTransformer) -> None:
    text = MhaNativeTextEmbedder(prompted_model).run("dog")["embedding"]
    assert_same_bits(np.array(text, np.float32), expected.encode_query("dog"))
    given = _documents()
    found = MhaNativeDocumentEmbedder(prompted_model).run(given)["documents"]
    embeddings = np.array([document.embedding for document in found], np.float32)
    assert_same_bits(embeddings, expected.encode_document(TEXTS))
    assert [document.meta for document in found] == [document.meta for document in given]
    assert all(document.embedding is None for document in given)
    assert MhaNativeDocumentEmbedder(prompted_model).run([]) == {"documents": []}


def test_fields_of_the_metadata_are_embedded(prompted_model: str, expected: SentenceTransformer) -> None:
    embedder = MhaNativeDocumentEmbedder(
        prompted_model, prompt="z ", meta_fields_to_embed=["title", "none", "page"], embedding_separator=" ! "
    )
    found = embedder.run([*_documents(), Document(content=None, meta={"title": "dog"})])["documents"]
    texts = [f"z cat ! {i} ! {text}" for i, text in enumerate(TEXTS)] + ["z dog ! "]
    assert_same_bits(
        np.array([document.embedding for document in found], np.float32), expected.encode(texts, prompt="")
    )


def _pipelines(model: str, store: InMemoryDocumentStore) -> tuple[Pipeline, Pipeline]:
    """One that stores documents, and one that finds them."""
    storing, finding = Pipeline(), Pipeline()
    storing.add_component("embedder", MhaNativeDocumentEmbedder(model, meta_fields_to_embed=["title"]))
    storing.add_component("writer", DocumentWriter(store, DuplicatePolicy.OVERWRITE))
    storing.connect("embedder.documents", "writer.documents")
    finding.add_component("embedder", MhaNativeTextEmbedder(model, encode_kwargs={"normalize_embeddings": True}))
    finding.add_component("retriever", InMemoryEmbeddingRetriever(store))
    finding.connect("embedder.embedding", "retriever.query_embedding")
    return storing, finding


def test_pipelines(prompted_model: str, expected: SentenceTransformer) -> None:
    storing, finding = _pipelines(prompted_model, InMemoryDocumentStore(embedding_similarity_function="dot_product"))
    assert storing.run({"embedder": {"documents": _documents()}}) == {"writer": {"documents_written": 3}}
    found = finding.run({"embedder": {"text": "dog"}})["retriever"]["documents"]
    texts = [f"cat\n{text}" for text in TEXTS]
    scores = expected.encode_document(texts) @ expected.encode_query("dog")
    assert [document.id for document in found] == [str(i) for i in np.argsort(-scores)]
    again = asyncio.run(finding.run_async({"embedder": {"text": "dog"}}))["retriever"]["documents"]
    assert again == found


def _outputs(storing: Pipeline, finding: Pipeline) -> Any:
    stored = storing.run({"embedder": {"documents": _documents()}}, include_outputs_from={"embedder"})
    found = finding.run({"embedder": {"text": "dog"}}, include_outputs_from={"embedder"})
    return stored["embedder"]["documents"], found["embedder"]["embedding"]


def test_pipelines_go_through_yaml(prompted_model: str) -> None:
    given = _pipelines(prompted_model, InMemoryDocumentStore())
    modules = [MhaNativeTextEmbedder.__module__]  # others than Haystack's own are read if the caller trusts them
    read = [Pipeline.loads(pipeline.dumps(), allowed_modules=modules) for pipeline in given]
    assert [pipeline.to_dict() for pipeline in read] == [pipeline.to_dict() for pipeline in given]
    assert _outputs(*read) == _outputs(*given)


@pytest.mark.parametrize("kind", [MhaNativeTextEmbedder, MhaNativeDocumentEmbedder, MhaNativeRanker])
def test_the_model_is_read_by_warm_up(kind: Any, tmp_path: Path) -> None:
    embedder = kind(str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match=rf"^{kind.__name__}"):
        embedder.warm_up()


def test_a_ranker_in_a_pipeline(ranking_model: str, ranking: Any) -> None:
    pipeline = Pipeline()
    pipeline.add_component("ranker", MhaNativeRanker(ranking_model, top_k=2, meta_fields_to_embed=["title"]))
    inputs = {"ranker": {"query": "dog", "documents": _documents()}}
    found = pipeline.run(inputs)["ranker"]["documents"]
    expected = ranking("dog", [f"cat\n{text}" for text in TEXTS])
    assert [(int(document.id), document.score) for document in found] == expected[:2]
    read = Pipeline.loads(pipeline.dumps(), allowed_modules=[MhaNativeRanker.__module__])
    assert read.run(inputs)["ranker"]["documents"] == found


def test_options(prompted_model: str, ranking_model: str) -> None:
    model = SentenceTransformer(prompted_model, model_kwargs={"weight_dtype": "int8"})
    text = MhaNativeTextEmbedder(prompted_model, weight_dtype="int8", truncate_dim=8)
    assert_same_bits(np.array(text.run("dog")["embedding"], np.float32), model.encode_query("dog", truncate_dim=8))
    components = (
        text,
        MhaNativeDocumentEmbedder(prompted_model, dtype="float64"),
        MhaNativeRanker(ranking_model, weight_dtype="int8"),
    )
    for component in components:
        data = component.to_dict()
        assert type(component).from_dict(data).to_dict() == data
    assert data["init_parameters"]["weight_dtype"] == "int8"


def test_a_file_of_the_former_form_is_read(prompted_model: str) -> None:
    model_kwargs = {"model_kwargs": {"weight_dtype": "int8"}}
    parameters = {"model": prompted_model, "prompt": None, "model_kwargs": model_kwargs, "encode_kwargs": None}
    data = {"type": "mha_native.interop.haystack.MhaNativeTextEmbedder", "init_parameters": parameters}
    with pytest.warns(DeprecationWarning, match=r"model_kwargs\['model_kwargs'\] is deprecated"):
        embedder = MhaNativeTextEmbedder.from_dict(data)
    expected = SentenceTransformer(prompted_model, model_kwargs={"weight_dtype": "int8"}).encode_query("dog")
    assert_same_bits(np.array(embedder.run("dog")["embedding"], np.float32), expected)
    assert embedder.to_dict() == data


def test_mistakes(prompted_model: str) -> None:
    with pytest.raises(TypeError, match=r"^MhaNativeDocumentEmbedder\.run: documents must be a list of Document"):
        MhaNativeDocumentEmbedder(prompted_model).run("dog")
    with pytest.raises(TypeError, match=r"^MhaNativeTextEmbedder\.run: "):
        MhaNativeTextEmbedder(prompted_model).run(3)
    with pytest.raises(TypeError, match="meta_fields_to_embed must be a list of str; got 'title'"):
        MhaNativeDocumentEmbedder(prompted_model, meta_fields_to_embed="title")
    with pytest.raises(TypeError, match=r"^MhaNativeTextEmbedder: model must be a str; got 3"):
        MhaNativeTextEmbedder(3)
    with pytest.raises(TypeError, match=r"^MhaNativeDocumentEmbedder: prompt must be a str or None; got 3"):
        MhaNativeDocumentEmbedder(prompted_model, prompt=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'truncate_dim'"):
        MhaNativeRanker(prompted_model, truncate_dim=3)
    with pytest.raises(ValueError, match=r"^MhaNativeRanker.* top_k "):
        MhaNativeRanker(prompted_model, top_k=0)
