"""Clients that many programs use, against a server on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("httpx")

import httpx
import tiny_bert
import tiny_classifiers
from http_server import Running, running

from mha_native.models import SentenceEncoder, TextClassifier
from mha_native.server import Config

TEXTS = ["the hungry dog", "a cat"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("models")
    return {"embed": tiny_bert.write(home / "embed"), "rank": tiny_classifiers.write(home / "rank", labels=1)}


@pytest.fixture(scope="module")
def server(models: dict[str, Path]) -> Iterator[Running]:
    with running(Config(models, api_keys=("key",))) as found:
        yield found


def test_openai(server: Running, models: dict[str, Path]) -> None:
    openai = pytest.importorskip("openai")
    expected = SentenceEncoder.from_pretrained(models["embed"]).encode(TEXTS)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="key") as client:
        assert [model.id for model in client.models.list()] == ["embed", "rank"]
        for options in ({}, {"encoding_format": "float"}):
            found = client.embeddings.create(model="embed", input=TEXTS, **options)
            assert np.array_equal(np.array([entry.embedding for entry in found.data], np.float32), expected)
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.embeddings.create(model="other", input="a")
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong") as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.embeddings.create(model="embed", input="a")

    async def several() -> list[list[float]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="key") as client:
            asked = [client.embeddings.create(model="embed", input=text) for text in TEXTS]
            return [found.data[0].embedding for found in await asyncio.gather(*asked)]

    assert np.array_equal(np.array(asyncio.run(several()), np.float32), expected)


def test_cohere(server: Running, models: dict[str, Path]) -> None:
    cohere = pytest.importorskip("cohere.client_v2", exc_type=ImportError)
    with httpx.Client() as transport:
        client = cohere.ClientV2(api_key="key", base_url=server.url, httpx_client=transport)
        found = client.rerank(model="rank", query="hungry", documents=TEXTS, top_n=2)
    ranker = TextClassifier.from_pretrained(models["rank"])
    scores = ranker.predict_proba([("hungry", text) for text in TEXTS], function_to_apply="sigmoid")[:, 0]
    assert {entry.index: entry.relevance_score for entry in found.results} == dict(enumerate(scores.tolist()))


def test_haystack(server: Running, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    embedders = pytest.importorskip("haystack.components.embedders")
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    embedder = embedders.OpenAITextEmbedder(model="embed", api_base_url=f"{server.url}/v1")
    found = embedder.run(text=TEXTS[0])["embedding"]
    expected = SentenceEncoder.from_pretrained(models["embed"]).encode(TEXTS[0])
    assert np.array_equal(np.array(found, np.float32), expected)
