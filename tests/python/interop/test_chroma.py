"""The embedding function of Chroma: in a collection, and in one that is opened again with what it was made with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_same_bits

from mha_native.sentence_transformers import SentenceTransformer

pytest.importorskip("chromadb")

import chromadb
from chromadb.utils.embedding_functions import config_to_embedding_function

from mha_native.interop.chroma import MhaNativeEmbeddingFunction

pytestmark = pytest.mark.usefixtures("no_network")

TEXTS = ["the dog", "x y z !", "a b c d"]
IDS = ["0", "1", "2"]


def _distances(model: SentenceTransformer) -> Any:
    return 1 - model.encode_document(TEXTS) @ model.encode_query("dog")  # the model scales to length 1


def test_embeddings_are_those_of_the_model(prompted_model: str, expected: SentenceTransformer) -> None:
    function = MhaNativeEmbeddingFunction(prompted_model)
    for found, theirs in (
        (function(TEXTS), expected.encode_document(TEXTS)),
        (function.embed_query(TEXTS), expected.encode_query(TEXTS)),
    ):
        assert isinstance(found, list)
        assert_same_bits(np.stack(found), theirs)


def test_a_collection(prompted_model: str, expected: SentenceTransformer) -> None:
    client = chromadb.EphemeralClient()  # one for the process: examples of documents make collections in it, too
    name = "a-collection-of-a-test"
    collection: Any = client.create_collection(name, embedding_function=MhaNativeEmbeddingFunction(prompted_model))
    try:
        collection.add(ids=IDS, documents=TEXTS)
        found = collection.query(query_texts=["dog"], n_results=3)
        assert found["ids"] == [[str(i) for i in np.argsort(_distances(expected))]]
        np.testing.assert_allclose(found["distances"][0], np.sort(_distances(expected)), atol=1e-6)
    finally:
        client.delete_collection(name)


def test_a_persistent_collection_opens_with_it(prompted_model: str, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"query_prompt": "x ", "document_prompt": "", "model_kwargs": {"truncate_dim": 8}}
    function = MhaNativeEmbeddingFunction(prompted_model, **arguments)
    client = chromadb.PersistentClient(tmp_path / "chroma")
    collection: Any = client.create_collection("texts", embedding_function=function)
    collection.add(ids=IDS, documents=TEXTS)
    found = collection.query(query_texts=["dog"], n_results=3)
    del client, collection
    chromadb.api.client.SharedSystemClient.clear_system_cache()
    opened: Any = chromadb.PersistentClient(tmp_path / "chroma").get_collection("texts")
    assert opened.configuration["embedding_function"].get_config() == function.get_config()
    assert opened.query(query_texts=["dog"], n_results=3)["distances"] == found["distances"]
    opened.add(ids=["3"], documents=["dog !"])
    assert opened.get(ids=["3"], include=["embeddings"])["embeddings"].shape == (1, 8)


def test_a_description_makes_it_again(prompted_model: str) -> None:
    function = MhaNativeEmbeddingFunction(prompted_model, encode_kwargs={"normalize_embeddings": True})
    config = function.get_config()
    MhaNativeEmbeddingFunction.validate_config(config)
    again = config_to_embedding_function({"name": "mha_native", "config": config})
    assert isinstance(again, MhaNativeEmbeddingFunction)
    assert again.get_config() == config
    assert not again.is_legacy()


def test_options(prompted_model: str) -> None:
    function = MhaNativeEmbeddingFunction(prompted_model, weight_dtype="int8", truncate_dim=8)
    model = SentenceTransformer(prompted_model, model_kwargs={"weight_dtype": "int8"})
    assert_same_bits(np.stack(function(TEXTS)), model.encode_document(TEXTS, truncate_dim=8))
    config = function.get_config()
    assert (config["weight_dtype"], config["truncate_dim"]) == ("int8", 8)
    assert MhaNativeEmbeddingFunction.build_from_config(config).get_config() == config


def test_a_stored_description_of_the_former_form_is_read(prompted_model: str) -> None:
    model_kwargs = {"model_kwargs": {"weight_dtype": "int8"}}
    config = {"model_name": prompted_model, "query_prompt": None, "document_prompt": "", "encode_kwargs": {}}
    with pytest.warns(DeprecationWarning, match=r"model_kwargs\['model_kwargs'\] is deprecated"):
        function = MhaNativeEmbeddingFunction.build_from_config(config | {"model_kwargs": model_kwargs})
    model = SentenceTransformer(prompted_model, model_kwargs={"weight_dtype": "int8"})
    assert_same_bits(np.stack(function(TEXTS)), model.encode(TEXTS, prompt=""))
    assert function.get_config() == config | {"model_kwargs": model_kwargs}


@pytest.mark.parametrize(
    ("name", "space"), [("cosine", "cosine"), ("dot", "ip"), ("euclidean", "l2"), ("manhattan", "l2")]
)
def test_distances_are_as_the_model_says(name: str, space: str, prompted_model: str) -> None:
    function = MhaNativeEmbeddingFunction(prompted_model, model_kwargs={"similarity_fn_name": name})
    assert function.default_space() == space
    assert space in function.supported_spaces()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "config must have model_name; it has nothing"),
        ({"model": "x"}, "config must have model_name; it has model"),
        ({"model_name": "x", "device": "cpu"}, "config may have model_name.*; got device"),
        ({"model_name": "x", "encode_kwargs": {"precision": "int8"}}, "encode_kwargs may have"),
    ],
)
def test_a_wrong_description_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^MhaNativeEmbeddingFunction\.validate_config: {message}"):
        MhaNativeEmbeddingFunction.build_from_config(config)


def test_a_missing_model(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^MhaNativeEmbeddingFunction"):
        MhaNativeEmbeddingFunction(str(tmp_path / "none"))
