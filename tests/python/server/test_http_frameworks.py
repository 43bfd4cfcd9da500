"""Frameworks and gateways against a server on this machine. `.ci/run` installs them for this file alone."""

from __future__ import annotations

import gc
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("jinja2")
pytest.importorskip("httpx")

import served_models
from http_server import Running, running

from mha_native.models import CausalLM, SentenceEncoder, TextClassifier
from mha_native.server import Config

pytestmark = pytest.mark.filterwarnings("ignore")  # of packages that are not ours

TEXTS = ["the hungry dog", "a cat"]
MESSAGES: list[Any] = [{"role": "user", "content": "the"}]
QUIET = {  # no client reports to its makers, nor looks for models and prices elsewhere
    "DO_NOT_TRACK": "1",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NO_PROXY": "127.0.0.1",
}


@pytest.fixture(scope="module", autouse=True)
def foreign() -> Iterator[list[str]]:
    """Hosts other than this machine that clients have looked up: none."""
    hosts: list[str] = []
    look_up = socket.getaddrinfo

    def local(host: Any, *arguments: Any, **options: Any) -> Any:
        if host not in ("127.0.0.1", "localhost", None):
            hosts.append(host)
            raise OSError(f"a client looks for {host}")
        return look_up(host, *arguments, **options)

    constants = pytest.importorskip("huggingface_hub.constants")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        patch.setattr(constants, "HF_HUB_OFFLINE", False)  # which would refuse this machine, too
        patch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        patch.setattr(socket, "getaddrinfo", local)
        yield hosts
    assert not hosts
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # clients that nobody has closed


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return served_models.write(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def server(models: dict[str, Path]) -> Iterator[Running]:
    with running(Config(models, api_keys=("key",), max_new_tokens=12)) as found:
        yield found


@pytest.fixture(scope="module")
def embeddings(models: dict[str, Path]) -> np.ndarray[Any, Any]:
    return SentenceEncoder.from_pretrained(models["embed"]).encode(TEXTS)


@pytest.fixture(scope="module")
def scores(models: dict[str, Path]) -> list[float]:
    ranker = TextClassifier.from_pretrained(models["rank"])
    pairs: list[Any] = [("hungry", text) for text in TEXTS]
    return [float(score) for score in ranker.predict_proba(pairs, function_to_apply="sigmoid")[:, 0]]


@pytest.fixture(scope="module")
def reply(models: dict[str, Path]) -> str:
    return CausalLM.from_pretrained(models["text"]).chat(MESSAGES, max_new_tokens=8)


def same(found: Any, expected: Any) -> bool:
    return np.array_equal(np.array(found, np.float32), expected)


def test_langchain(server: Running, embeddings: np.ndarray[Any, Any], reply: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    tiktoken = pytest.importorskip("tiktoken")
    own = {"base_url": f"{server.url}/v1", "api_key": "key"}
    embedder = langchain.OpenAIEmbeddings(model="embed", check_embedding_ctx_length=False, **own)
    assert same(embedder.embed_documents(TEXTS), embeddings)
    assert same(embedder.embed_query(TEXTS[0]), embeddings[0])
    # Its default: tokens of a model of OpenAI in the place of texts. They mean other words here.
    ranks = {bytes([i]): i for i in range(256)}
    encoding = tiktoken.Encoding("bytes", pat_str=r"\w+|\W", mergeable_ranks=ranks, special_tokens={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiktoken, "encoding_for_model", lambda name: encoding)
        patch.setattr(tiktoken, "get_encoding", lambda name: encoding)
        with pytest.raises(pytest.importorskip("openai").BadRequestError, match="check_embedding_ctx_length=False"):
            langchain.OpenAIEmbeddings(model="embed", **own).embed_documents(TEXTS)
    chat = langchain.ChatOpenAI(model="text", temperature=0, max_tokens=8, stream_usage=True, **own)
    found = chat.invoke("the")
    assert (found.content, found.usage_metadata["output_tokens"]) == (reply, 8)
    chunks = list(chat.stream("the"))
    assert "".join(chunk.content for chunk in chunks) == reply
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) == 8


def test_llama_index(
    server: Running, embeddings: np.ndarray[Any, Any], reply: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedders = pytest.importorskip("llama_index.embeddings.openai_like", exc_type=ImportError)
    generators = pytest.importorskip("llama_index.llms.openai_like", exc_type=ImportError)
    ChatMessage = pytest.importorskip("llama_index.core.llms").ChatMessage
    own = {"api_base": f"{server.url}/v1", "api_key": "key"}
    embedder = embedders.OpenAILikeEmbedding(model_name="embed", **own)
    assert same(embedder.get_text_embedding_batch(TEXTS), embeddings)
    assert same(embedder.get_query_embedding(TEXTS[0]), embeddings[0])
    generator = generators.OpenAILike(model="text", is_chat_model=True, max_tokens=8, temperature=0, **own)
    messages = [ChatMessage(role="user", content="the")]
    assert generator.chat(messages).message.content == reply
    assert "".join(chunk.delta for chunk in generator.stream_chat(messages)) == reply


def test_text_embeddings_inference_of_llama_index(server: Running, embeddings: np.ndarray[Any, Any]) -> None:
    package = pytest.importorskip("llama_index.embeddings.text_embeddings_inference", exc_type=ImportError)
    own = {"base_url": server.url, "auth_token": "key", "model_name": "embed"}
    embedder = package.TextEmbeddingsInference(query_instruction="", text_instruction="", **own)
    assert same(embedder.get_text_embedding_batch(TEXTS), embeddings)


def test_hugging_face_hub(
    server: Running, models: dict[str, Path], embeddings: np.ndarray[Any, Any], reply: str
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    client = hub.InferenceClient(model=server.url, token="key", timeout=60)
    assert same(client.feature_extraction(TEXTS[0]), embeddings[:1])
    whole = client.feature_extraction(TEXTS[0], normalize=False, truncate=True, truncation_direction="right")
    encoder = SentenceEncoder.from_pretrained(models["embed"])
    assert same(whole, encoder.encode(TEXTS[:1], normalize=False))
    similar = client.sentence_similarity(TEXTS[0], other_sentences=TEXTS)
    assert np.allclose(similar, embeddings @ embeddings[0], atol=1e-6)
    labelled = hub.InferenceClient(model=f"{server.url}/predict?model=label", token="key")
    best = TextClassifier.from_pretrained(models["label"])(TEXTS[0])
    found = labelled.text_classification(TEXTS[0])
    assert found == best[0]
    with pytest.raises(hub.errors.HfHubHTTPError, match="parameters"):
        labelled.text_classification(TEXTS[0], top_k=2)
    options: dict[str, Any] = {"model": "text", "temperature": 0, "max_tokens": 8}
    assert client.chat_completion(MESSAGES, **options).choices[0].message.content == reply
    pieces = [chunk.choices[0].delta.content for chunk in client.chat_completion(MESSAGES, stream=True, **options)]
    assert "".join(filter(None, pieces)) == reply
    with pytest.raises(hub.errors.HfHubHTTPError, match="does not exist"):
        client.chat_completion(MESSAGES, max_tokens=8)  # it names no model of this server


def test_litellm(
    server: Running, embeddings: np.ndarray[Any, Any], scores: list[float], reply: str, foreign: list[str]
) -> None:
    litellm = pytest.importorskip("litellm")
    litellm.telemetry = False
    own = {"api_base": f"{server.url}/v1", "api_key": "key"}
    found = litellm.embedding("openai/embed", input=TEXTS, **own)
    assert same([entry["embedding"] for entry in found.data], embeddings)
    options: dict[str, Any] = {"messages": MESSAGES, "temperature": 0, "max_tokens": 8, **own}
    found = litellm.completion("openai/text", **options)
    assert (found.choices[0].message.content, found.usage.completion_tokens) == (reply, 8)
    chunks = list(litellm.completion("openai/text", stream=True, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == reply
    for provider in ("jina_ai", "hosted_vllm"):
        found = litellm.rerank(f"{provider}/rank", query="hungry", documents=TEXTS, **own)
        assert {entry["index"]: entry["relevance_score"] for entry in found.results} == dict(enumerate(scores))
    with pytest.raises(litellm.NotFoundError):
        litellm.embedding("openai/other", input=TEXTS, max_retries=0, **own)


def test_hugging_face_api_of_haystack(server: Running, embeddings: np.ndarray[Any, Any], scores: list[float]) -> None:
    package = "haystack_integrations.components.{}.huggingface_api"
    embedders = pytest.importorskip(package.format("embedders"), exc_type=ImportError)
    rankers = pytest.importorskip(package.format("rankers"), exc_type=ImportError)
    dataclasses = pytest.importorskip("haystack.dataclasses")
    utilities = pytest.importorskip("haystack.utils")
    key = utilities.Secret.from_token("key")
    kind = "text_embeddings_inference"
    embedder = embedders.HuggingFaceAPITextEmbedder(
        api_type=kind, api_params={"url": server.url}, token=key, normalize=True
    )
    assert same(embedder.run(text=TEXTS[0])["embedding"], embeddings[0])
    documents = [dataclasses.Document(content=text) for text in TEXTS]
    ranker = rankers.HuggingFaceTEIRanker(url=server.url, token=key)
    found = ranker.run(query="hungry", documents=documents)["documents"]
    assert {TEXTS.index(document.content): document.score for document in found} == dict(enumerate(scores))
