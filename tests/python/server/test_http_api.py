"""Embeddings, rankings, labels and the state of a server, over HTTP."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("httpx")

import httpx
import tiny_bert
import tiny_classifiers
from http_server import SECONDS, Running, running, until
from prometheus_client import Histogram

from mha_native.models import SentenceEncoder, TextClassifier
from mha_native.server import Config, app, calls
from mha_native.server.metrics import _Values
from mha_native.serving import _encode_queue

WORDS = ("a", "dog", "the", "cat", "hungry", "blue", "é", "food", "fresh")
GIVEN = {"float": lambda given: np.array(given, np.float32), "base64": lambda given: _decoded(given)}


def _decoded(text: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(text, validate=True), "<f4")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("models")
    return {
        "embed": tiny_bert.write(home / "embed"),
        "rank": tiny_classifiers.write(home / "rank", labels=1),
        "label": tiny_classifiers.write(home / "label", labels=3),
    }


@pytest.fixture(scope="module")
def server(models: dict[str, Path]) -> Iterator[Running]:
    with running(Config(models, max_body_bytes=20_000, max_inputs=8, max_waiting=2)) as found:
        yield found


@pytest.fixture(scope="module")
def encoder(models: dict[str, Path]) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(models["embed"])


class Gate:
    """Batches that wait until the gate is open."""

    def __init__(self) -> None:
        self.is_open, self.entered = threading.Event(), threading.Event()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    found, results_of = Gate(), _encode_queue.results_of

    def waiting(*arguments: Any) -> Any:
        found.entered.set()
        assert found.is_open.wait(SECONDS)
        return results_of(*arguments)

    monkeypatch.setattr(_encode_queue, "results_of", waiting)
    yield found
    found.is_open.set()


def test_embeddings_have_the_bits_of_encode_alone(server: Running, encoder: SentenceEncoder) -> None:
    rng = np.random.default_rng(5)
    lists = [[" ".join(rng.choice(WORDS, rng.integers(1, 30))) for _ in range(rng.integers(1, 6))] for _ in range(60)]
    client = httpx.Client(base_url=server.url, timeout=SECONDS, trust_env=False)

    def asked(texts: list[str]) -> dict[str, Any]:
        while (
            found := client.post("/v1/embeddings", json={"input": texts, "encoding_format": "base64"})
        ).status_code == 429:
            time.sleep(0.01)
        return found.json()

    with client, ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(asked, lists))
    for texts, answer in zip(lists, answers, strict=True):
        assert [entry["index"] for entry in answer["data"]] == list(range(len(texts)))
        for text, entry in zip(texts, answer["data"], strict=True):
            assert _decoded(entry["embedding"]).tobytes() == encoder.encode(text).tobytes()
        count = int(encoder.count_tokens(texts).sum())
        assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
        assert (answer["object"], answer["model"]) == ("list", "embed")


def test_forms_of_embeddings(server: Running, encoder: SentenceEncoder) -> None:
    text, expected = "the hungry dog", encoder.encode("the hungry dog")
    one = server.client.post("/v1/embeddings", json={"input": text, "model": "embed", "user": "somebody"})
    assert np.array_equal(np.array(one.json()["data"][0]["embedding"], np.float32), expected)
    assert one.headers["x-compute-tokens"] == str(encoder.count_tokens(text))
    fewer = server.client.post("/embeddings", json={"input": [text], "dimensions": 3, "encoding_format": "base64"})
    assert np.array_equal(
        _decoded(fewer.json()["data"][0]["embedding"]), encoder.encode(text, truncate_dim=3, normalize=True)
    )
    for path in ("/embed", "/", "/invocations"):
        found = server.client.post(path, json={"inputs": [text, "a"], "normalize": False})
        assert np.array_equal(np.array(found.json(), np.float32), encoder.encode([text, "a"], normalize=False))
    content = f'{{"inputs": "{text}"}}'
    plain = server.client.post("/embed?model=embed", content=content, headers={"content-type": "text/plain"})
    assert np.array_equal(np.array(plain.json(), np.float32), [encoder.encode(text, normalize=True)])
    asked = {"inputs": {"source_sentence": text, "sentences": ["a dog", text]}}
    similar = np.array(server.client.post("/similarity", json=asked).json())
    assert np.allclose(similar, encoder.encode(["a dog", text], normalize=True) @ expected, atol=1e-6)


def test_rankings_and_labels(server: Running, models: dict[str, Path]) -> None:
    documents = ["a dog", "the cat", "food", "a dog"]
    pairs: list[Any] = [("hungry", text) for text in documents]
    ranker, classifier = (TextClassifier.from_pretrained(models[name]) for name in ("rank", "label"))
    scores = ranker.predict_proba(pairs, function_to_apply="sigmoid")[:, 0]
    logits = ranker.predict_proba(pairs, function_to_apply="none")[:, 0]
    order = np.argsort(-scores, kind="stable").tolist()
    given = {"query": "hungry", "documents": [*documents[:3], {"text": documents[3]}]}
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        found = server.client.post(path, json=given | {"return_documents": True, "top_n": 3}).json()
        assert [entry["index"] for entry in found["results"]] == order[:3]
        assert [entry["relevance_score"] for entry in found["results"]] == scores[order[:3]].tolist()
        assert [entry["document"] for entry in found["results"]] == [{"text": documents[i]} for i in order[:3]]
        assert (
            found["usage"]["total_tokens"]
            == ranker.count_tokens(pairs).sum()
            == found["meta"]["tokens"]["input_tokens"]
        )
    assert "document" not in server.client.post("/v2/rerank", json=given | {"top_n": 99}).json()["results"][3]
    raw = server.client.post("/rerank", json={"query": "hungry", "texts": documents, "raw_scores": True}).json()
    assert raw == [{"index": i, "score": float(logits[i])} for i in order]
    for inputs, texts in (
        ("a dog", ["a dog"]),
        (["a dog", "cat"], [("a dog", "cat")]),
        ([["a"], ["a", "b"]], ["a", ("a", "b")]),
    ):
        found = server.client.post("/predict?model=label", json={"inputs": inputs}).json()
        expected = [[dict(entry) for entry in row] for row in classifier(texts, top_k=None)]
        assert found == (expected if isinstance(inputs[0], list) else expected[0])


# Fields that both APIs refuse: the path, the body, the status, and words of the message.
REFUSED: list[tuple[str, Any, int, str]] = [
    ("/v1/embeddings", b"", 400, "JSON"),
    ("/v1/embeddings", b"{", 400, "JSON"),
    ("/v1/embeddings", b'{"input": "\xff"}', 400, "JSON"),
    ("/v1/embeddings", b'{"input": NaN}', 400, "JSON"),
    ("/v1/embeddings", b'{"input": ' + b"[" * 9000, 400, "JSON"),
    ("/v1/embeddings", b'{"input": "\\ud800"}', 400, "JSON"),
    ("/v1/embeddings", [], 400, "object"),
    ("/v1/embeddings", {}, 400, "input"),
    ("/v1/embeddings", {"input": 5}, 400, "input"),
    ("/v1/embeddings", {"input": []}, 400, "input"),
    ("/v1/embeddings", {"input": ""}, 400, "empty"),
    ("/v1/embeddings", {"input": ["a", None]}, 400, "input[1]"),
    ("/v1/embeddings", {"input": ["a"] * 9}, 400, "at most 8"),
    ("/v1/embeddings", {"input": [1, 2]}, 400, "check_embedding_ctx_length=False"),
    ("/v1/embeddings", {"input": [[1, 2]]}, 400, "check_embedding_ctx_length=False"),
    ("/v1/embeddings", {"input": "a", "dimensions": 0}, 400, "dimensions"),
    ("/v1/embeddings", {"input": "a", "dimensions": 10**6}, 400, "dimensions"),
    ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, 400, "encoding_format"),
    ("/v1/embeddings", {"input": "a", "prompt_name": "missing"}, 400, "prompt"),
    ("/v1/embeddings", {"input": "a " * 900, "truncate": False}, 400, "truncation"),
    ("/v1/embeddings", {"input": "a", "model": "other"}, 404, "does not exist"),
    ("/v1/embeddings", {"input": "a", "model": "rank"}, 400, "reranker"),
    ("/v1/rerank", {"query": "a", "documents": []}, 400, "documents"),
    ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, 400, "top_n"),
    ("/v1/rerank", {"query": "a", "documents": [{"title": "a"}]}, 400, "documents[0]"),
    ("/v2/rerank", {"query": "a", "documents": ["a"], "max_tokens_per_doc": 9}, 400, "max_tokens_per_doc"),
    ("/embed", {"inputs": 5}, 422, "inputs"),
    ("/embed", {"inputs": []}, 400, "inputs"),
    ("/embed", {"inputs": ["a"], "truncation_direction": "Left"}, 422, "truncation_direction"),
    ("/embed?model=rank", {"inputs": ["a"]}, 424, "reranker"),
    ("/embed?model=other", {"inputs": ["a"]}, 424, "does not exist"),
    ("/rerank", {"query": "a", "texts": ["a"] * 9}, 422, "at most 8"),
    ("/rerank", {"query": "a", "texts": ["a " * 900], "truncate": False}, 422, "truncation"),
    ("/predict", {"inputs": [["a", "b", "c"]]}, 422, "pair"),
    ("/tokenize", {"inputs": ["a", ""]}, 400, "empty"),
]


def test_refused_bodies(server: Running) -> None:
    for path, body, status, words in REFUSED:
        raw = {"content": body} if isinstance(body, bytes) else {"json": body}
        found = server.client.post(path, **raw)  # type: ignore[arg-type]
        assert found.status_code == status, (path, body, found.text)
        error = found.json()["error"]
        message = error if isinstance(error, str) else error["message"]
        assert words in message, (path, body, message)
        assert "Batcher" not in message
        if isinstance(error, str):
            assert set(found.json()) == {"error", "error_type"}
        else:
            assert set(error) == {"message", "type", "param", "code"}
            assert error["type"] == "invalid_request_error"


def test_fields_without_effect_are_logged_once(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [record.args[0] for record in caplog.records if "has no effect" in record.msg]  # type: ignore[index,misc]

    body = {"input": "a", "dimension": 3, "model": "embed"}
    monkeypatch.setattr(calls, "_told", set())
    assert server.client.post("/v1/embeddings", json=body).status_code == 200
    assert told() == []  # the level of the log
    caplog.set_level(logging.DEBUG, "mha_native.server")
    for more in ({}, {"dimension": 4, "x\n": 5}):
        assert server.client.post("/v1/embeddings", json=body | more).status_code == 200
    assert told() == ["'dimension'", "'x\\n'"]
    many = {f"field{i}": i for i in range(200)}
    assert server.client.post("/v1/embeddings", json=body | many).status_code == 200
    assert len(told()) == 100


def test_state_of_the_server(server: Running, encoder: SentenceEncoder) -> None:
    get = server.client.get
    assert {get(path).status_code for path in ("/", "/health", "/ping", "/ready", "/v2/health/ready")} == {200}
    listed = {model["id"]: model for model in get("/v1/models").json()["data"]}
    assert {name: model["kind"] for name, model in listed.items()} == {
        "embed": "embedding", "rank": "reranker", "label": "classifier"
    }  # fmt: skip
    assert listed["embed"]["dimensions"] == encoder.embed_dim
    assert get("/v1/models/embed").json() == listed["embed"]
    assert get("/v1/models/none").status_code == 404
    assert get("/info").json()["max_client_batch_size"] == 8
    assert set(get("/info?model=label").json()["model_type"]["classifier"]) == {"id2label", "label2id"}
    tokens, expected = server.client.post("/tokenize", json={"inputs": "a dog"}).json()[0], encoder.tokens_of("a dog")
    assert [token["id"] for token in tokens] == expected.ids.tolist()
    assert ["a dog"[token["start"] : token["stop"]] for token in tokens if not token["special"]] == ["a", "dog"]
    assert (missing := get("/v1/none")).status_code == 404
    assert missing.json()["error"]["code"] == "not_found"
    assert (wrong := get("/v1/embeddings")).status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert get("/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert get("/health", headers={"x-request-id": "a b"}).headers["x-request-id"] != "a b"
    assert server.client.post("/embed", json={"inputs": "a"}).status_code == 200
    assert server.client.post("/embed", json={"inputs": ["a"] * 9}).status_code == 422
    assert server.client.post("/embed?model=rank", json={"inputs": "a"}).status_code == 424
    text = get("/metrics").text
    for name in (
        'te_request_failure{err="batch_size"}',
        'te_request_failure{err="model_type"}',
        'te_batch_next_size_bucket{le="2.0"}',
        'te_batch_next_tokens_bucket{le="16.0"}',
        "te_embed_tokenization_duration_count",
        "te_predict_inference_duration_bucket",
        'mha_native_model_loaded{kind="reranker",model="rank",weight_dtype="float32"} 1.0',
        "te_request_count{",
        "te_queue_size 0.0",
        "mha_native_http_requests_total{",
        "process_resident_memory",
    ):
        assert name in text
    assert "/v1/none" not in text  # a path of a client is no label


def test_values_that_are_counted_together_have_the_histogram_of_prometheus() -> None:
    bounds = (0.125, 0.25, 2.0, 1e6)
    values = [*bounds, 0.0, 0.375, 1e7, 2.0**-30, 2.0625]  # whose sums are exact in any order
    expected, found = Histogram("a", "b", buckets=bounds, registry=None), _Values("a", "b", bounds)
    for part in (values, [], values[::2]):
        found.add(part)
        for value in part:
            expected.observe(value)
    samples = [[each[:3] for metric in one.collect() for each in metric.samples] for one in (found, expected)]
    assert samples[0][:-1] == samples[1][:-1]
    assert samples[0][-1][:2] == samples[1][-1][:2] == ("a_created", {})


def test_bodies_over_the_limit(server: Running) -> None:
    large = b'{"input": "%s"}' % (b"a" * 3_000_000)
    assert server.client.post("/v1/embeddings", content=large).status_code == 413
    chunks = (large[i : i + 50_000] for i in range(0, len(large), 50_000))
    assert server.client.post("/v1/embeddings", content=chunks).status_code == 413
    assert server.client.post("/embed", content=large).json()["error_type"] == "Validation"


def test_keys_and_origins(models: dict[str, Path]) -> None:
    config = Config(
        {"embed": models["embed"]}, api_keys=("one", "two"), cors_origins=("https://a.example",), token_inputs=True
    )
    with running(config) as server:
        body = {"input": [5, 6]}  # tokens
        for given in (None, "Bearer three", "Basic one", "Bearer"):
            found = server.client.post("/v1/embeddings", json=body, headers=given and {"authorization": given})
            assert found.status_code == 401
            assert (found.headers["www-authenticate"], found.json()["error"]["code"]) == ("Bearer", "invalid_api_key")
        headers = {"authorization": "Bearer two", "origin": "https://a.example"}
        found = server.client.post("/v1/embeddings", json=body, headers=headers)
        expected = SentenceEncoder.from_pretrained(models["embed"]).encode_tokens([[5, 6]])
        assert np.array_equal(np.array(found.json()["data"][0]["embedding"], np.float32), expected[0])
        assert found.headers["access-control-allow-origin"] == "https://a.example"
        assert "x-request-id" in found.headers["access-control-expose-headers"]
        asks = {"origin": "https://a.example", "access-control-request-method": "POST"}
        allowed = server.client.options("/embed", headers=asks | {"access-control-request-headers": "x-model"})
        assert (allowed.status_code, "POST" in allowed.headers["access-control-allow-methods"]) == (200, True)
        assert server.client.options("/embed", headers=asks | {"origin": "https://b.example"}).status_code == 400
        other = server.client.get("/health", headers={"origin": "https://b.example"})
        assert (other.status_code, other.headers.get("access-control-allow-origin")) == (200, None)
        wrong = server.client.post("/v1/embeddings", json={"input": [10**9]}, headers=headers)
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "input")


def test_a_full_queue_a_timeout_and_a_client_that_leaves(
    server: Running, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = server.service.engines["embed"]
    late: Any = None
    while late is None or late.status_code == 408 or not gate.entered.is_set():  # its time was over before its work
        late = server.client.post("/v1/embeddings", json={"input": "a"}, headers={"x-request-timeout": "0.05"})
    assert (late.status_code, late.headers["x-should-retry"]) == (504, "false")
    submit = engine.batcher.submit

    def submits_slowly(*given: Any, **options: Any) -> Any:
        request = submit(*given, **options)
        time.sleep(0.1)
        return request

    with monkeypatch.context() as patch:
        patch.setattr(engine.batcher, "submit", submits_slowly)
        late = server.client.post("/v1/embeddings", json={"input": "a"}, headers={"x-request-timeout": "0.05"})
    assert (late.status_code, engine.queued()[0]) == (408, 0)  # nobody waits for it
    gone = _gone(server)
    host, port = server.url.removeprefix("http://").split(":")
    leaving = []
    for _ in range(2):  # as many as may wait
        leaving.append(socket.create_connection((host, int(port))))
        body = b'{"inputs": "a dog"}'
        leaving[-1].sendall(b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    until(lambda: engine.queued()[0] == 2)
    times = []
    for path, body, kind in (
        ("/v1/embeddings", {"input": "a"}, "queue_full"),
        ("/embed", {"inputs": "a"}, "Overloaded"),
    ) * 3:
        begin = time.monotonic()
        full = server.client.post(path, json=body)
        times.append(time.monotonic() - begin)
        assert (full.status_code, kind in full.text) == (429, True)
        assert 1 <= int(full.headers["retry-after"]) <= 60
    assert min(times) < 0.5  # other processes may take the processor for longer
    for connection in leaving:
        connection.close()
    until(lambda: engine.queued()[0] == 0)  # while the batch is still computed
    gate.is_open.set()
    assert server.client.post("/embed", json={"inputs": "a"}).status_code == 200
    assert [after - before for before, after in zip(gone, _gone(server), strict=True)] == [2, 2]


def _gone(server: Running) -> list[float]:
    """Requests whose client was gone, by two metrics."""
    metrics = server.client.get("/metrics").text
    names = ('cancelled_total{why="disconnect"}', 'http_requests_total{path="/embed",status="499"}')
    found = [re.search(f"^mha_native_{re.escape(name)} (.+)$", metrics, re.M) for name in names]
    return [0.0 if each is None else float(each[1]) for each in found]


def test_a_server_that_drains_waits_for_its_requests(models: dict[str, Path], gate: Gate) -> None:
    gate.is_open.set()
    with running(Config({"embed": models["embed"]})) as server, ThreadPoolExecutor(2) as pool:
        gate.is_open.clear()
        gate.entered.clear()
        running_one = pool.submit(server.client.post, "/v1/embeddings", json={"input": "a"})
        assert gate.entered.wait(SECONDS)
        drained = asyncio.run_coroutine_threadsafe(server.application.drain(20), server.loop)
        until(lambda: server.service.is_draining)
        for path in ("/v1/embeddings", "/embed"):
            refused = server.client.post(path, json={"input": "a"})
            assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        assert server.client.get("/ready").status_code == 503
        assert server.client.get("/health").status_code == 200
        assert not drained.done()
        gate.is_open.set()
        assert drained.result(SECONDS)
        assert running_one.result(SECONDS).status_code == 200
        server.service.is_draining = False
        gate.is_open.clear()
        gate.entered.clear()
        late = pool.submit(server.client.post, "/v1/embeddings", json={"input": "a"})
        assert gate.entered.wait(SECONDS)
        assert asyncio.run_coroutine_threadsafe(server.application.drain(0.1), server.loop).result(SECONDS) is False
        assert (late.result(SECONDS).status_code, late.result().headers["connection"]) == (503, "close")
        gate.is_open.set()


@pytest.mark.parametrize(
    ("error", "status", "word"), [(RuntimeError("/home/secret"), 500, "log"), (MemoryError(), 503, "memory")]
)
def test_errors_of_a_computation(
    server: Running, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, word: str
) -> None:
    def fail(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(_encode_queue, "results_of", fail)
        found = server.client.post("/v1/embeddings", json={"input": "a"})
        other = server.client.post("/embed", json={"inputs": "a"})
    assert (found.status_code, other.status_code, other.json()["error_type"]) == (status, 424, "Backend")
    assert word in found.json()["error"]["message"]
    assert "secret" not in found.text
    assert server.client.post("/embed", json={"inputs": "a"}).status_code == 200


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"models": {}}, "models"),
        ({"models": {"a\n": "b"}}, "models"),
        ({"max_inputs": 0}, "max_inputs"),
        ({"request_timeout": 0}, "request_timeout"),
        ({"api_keys": ("",)}, "api_keys"),
        ({"cors_origins": "https://a.example"}, "cors_origins"),
    ],
)
def test_configurations_that_are_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Config(**{"models": {"a": "b"}, **changes})
    assert callable(app(Config({"a": "b"})))
