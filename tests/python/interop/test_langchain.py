"""The embeddings of LangChain, as its users call them: in a vector store, as a retriever, described and made again."""

from __future__ import annotations

import asyncio
import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_same_bits

from mha_native.sentence_transformers import SentenceTransformer

pytest.importorskip("langchain_core")

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import ValidationError

from mha_native.interop.langchain import MhaNativeEmbeddings, MhaNativeRanker

pytestmark = pytest.mark.usefixtures("no_network")

TEXTS = ["the dog", "x y z !", "a b c d", ""]


def test_embeddings_are_those_of_the_model(prompted_model: str, expected: SentenceTransformer) -> None:
    embeddings = MhaNativeEmbeddings(model_name=prompted_model)
    assert isinstance(embeddings, Embeddings)
    assert_same_bits(np.array(embeddings.embed_documents(TEXTS), np.float32), expected.encode_document(TEXTS))
    assert_same_bits(np.array(embeddings.embed_query("dog"), np.float32), expected.encode_query("dog"))
    assert embeddings.embed_documents([]) == []


def test_asynchronous_methods_give_the_same(prompted_model: str) -> None:
    embeddings = MhaNativeEmbeddings(model_name=prompted_model)

    async def both() -> tuple[list[list[float]], list[float]]:
        return await asyncio.gather(embeddings.aembed_documents(TEXTS), embeddings.aembed_query("dog"))

    assert list(asyncio.run(both())) == [embeddings.embed_documents(TEXTS), embeddings.embed_query("dog")]


def test_a_vector_store(prompted_model: str, expected: SentenceTransformer) -> None:
    embeddings = MhaNativeEmbeddings(model=prompted_model, encode_kwargs={"normalize_embeddings": True})
    documents = [Document(page_content=text, metadata={"number": i}) for i, text in enumerate(TEXTS)]
    store = InMemoryVectorStore.from_documents(documents, embeddings)
    found = store.similarity_search_with_score("dog", k=4)
    scores = expected.encode_document(TEXTS) @ expected.encode_query("dog")  # the model scales to length 1
    assert [document.metadata["number"] for document, _ in found] == np.argsort(-scores).tolist()
    np.testing.assert_allclose([score for _, score in found], np.sort(scores)[::-1], rtol=1e-5)
    retriever = store.as_retriever(search_kwargs={"k": 1})
    assert retriever.invoke("dog") == [found[0][0]]
    assert asyncio.run(retriever.ainvoke("dog")) == [found[0][0]]


@pytest.mark.parametrize(
    "again",
    [
        lambda embeddings: MhaNativeEmbeddings(**embeddings.model_dump()),
        lambda embeddings: MhaNativeEmbeddings.model_validate_json(embeddings.model_dump_json()),
        lambda embeddings: pickle.loads(pickle.dumps(embeddings)),
        copy.deepcopy,
    ],
    ids=["dump", "json", "pickle", "copy"],
)
def test_a_description_makes_it_again(again: Any, prompted_model: str) -> None:
    arguments: dict[str, Any] = {"query_prompt": "x ", "model_kwargs": {"truncate_dim": 8}}
    embeddings = MhaNativeEmbeddings(model_name=prompted_model, **arguments)
    same = again(embeddings)
    assert same == embeddings
    assert same.model_name == prompted_model
    assert same.embed_query("dog") == embeddings.embed_query("dog")
    assert len(same.embed_query("dog")) == 8


def test_options(prompted_model: str, ranking_model: str) -> None:
    model = SentenceTransformer(prompted_model, model_kwargs={"weight_dtype": "int8"})
    found = MhaNativeEmbeddings(
        model_name=prompted_model, weight_dtype="int8", truncate_dim=8, num_threads=1
    ).embed_query("dog")
    assert_same_bits(np.array(found, np.float32), model.encode_query("dog", truncate_dim=8))
    assert MhaNativeRanker(model=ranking_model, weight_dtype="int8").model_dump()["weight_dtype"] == "int8"


def test_a_description_of_the_former_form_is_read(prompted_model: str) -> None:
    model_kwargs = {"model_kwargs": {"weight_dtype": "int8"}}
    former = {"model_name": prompted_model, "model_kwargs": model_kwargs, "query_prompt": None, "encode_kwargs": {}}
    with pytest.warns(DeprecationWarning, match=r"model_kwargs\['model_kwargs'\] is deprecated"):
        embeddings = MhaNativeEmbeddings.model_validate(former)
    expected = SentenceTransformer(prompted_model, model_kwargs={"weight_dtype": "int8"}).encode_query("dog")
    assert_same_bits(np.array(embeddings.embed_query("dog"), np.float32), expected)


def test_mistakes(prompted_model: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^MhaNativeEmbeddings"):
        MhaNativeEmbeddings(model_name=str(tmp_path / "none"))
    with pytest.raises(ValidationError, match="multi_process"):
        MhaNativeEmbeddings(model_name=prompted_model, multi_process=True)
    embeddings = MhaNativeEmbeddings(model_name=prompted_model)
    with pytest.raises(TypeError, match=r"^MhaNativeEmbeddings\.embed_documents: texts must be str; got NoneType at 0"):
        embeddings.embed_documents([None])  # type: ignore[list-item]
    with pytest.raises(ValidationError, match="frozen"):  # the model is read already
        embeddings.model_name = "another"


def test_a_ranker(ranking_model: str, ranking: Any) -> None:
    documents = [Document(page_content=text, metadata={"number": i}) for i, text in enumerate(TEXTS)]
    ranker = MhaNativeRanker(model=ranking_model, top_n=3)
    found = ranker.compress_documents(documents, "dog")
    expected = ranking("dog", TEXTS)
    assert [i for i, _ in expected] != list(range(len(TEXTS)))
    assert [(d.metadata["number"], d.metadata["relevance_score"]) for d in found] == expected[:3]
    assert [document.page_content for document in found] == [TEXTS[i] for i, _ in expected[:3]]
    assert documents[0].metadata == {"number": 0}
    assert asyncio.run(ranker.acompress_documents(documents, "dog")) == found
    assert MhaNativeRanker(**ranker.model_dump()).compress_documents(documents, "dog") == found
    assert len(MhaNativeRanker(model_name=ranking_model).compress_documents(documents, "dog")) == len(TEXTS)
    assert ranker.compress_documents([], "dog") == []


def test_mistakes_of_a_ranker(ranking_model: str) -> None:
    with pytest.raises(ValueError, match=r"MhaNativeRanker: top_n must be at least 1; got 0"):
        MhaNativeRanker(model_name=ranking_model, top_n=0)
    with pytest.raises(TypeError, match=r"^MhaNativeRanker\.compress_documents: query must be a str; got int"):
        MhaNativeRanker(model_name=ranking_model).compress_documents([Document(page_content="a")], 3)
