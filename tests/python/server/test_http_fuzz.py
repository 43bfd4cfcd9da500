"""Requests of every kind, valid and nearly so: each is answered, and the server lives."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("jinja2")
pytest.importorskip("httpx")

import httpx
import served_models
from http_server import Running, running, until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from matrix import matrix, nightly

from mha_native.server import Config, application

WORDS = st.text('adehot é\u0301\u200d\U0001f600\x00[]{}"\\', min_size=1, max_size=24)
NUMBERS = st.integers(-3, 12) | st.sampled_from([2**31, -(2**63), 2**64, 10**40, 1e308, -0.0, 1.5]) | st.floats()
ODD = (
    st.none() | st.booleans() | NUMBERS | WORDS | st.text(max_size=12) | st.sampled_from(["\ud800", "<|end|>", "[SEP]"])
)
JUNK = st.recursive(
    ODD, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=8
)
FLAGS = st.booleans() | st.none()
TOKENS = st.integers(1, 30)


def some(items: SearchStrategy[Any], most: int = 4) -> SearchStrategy[Any]:
    return st.lists(items, min_size=1, max_size=most)


TEXTS = WORDS | st.sampled_from(["the dog", "a " * 60])
INPUTS = TEXTS | some(TEXTS) | some(TOKENS) | some(some(TOKENS))
CUT = {"truncate": FLAGS, "truncation_direction": st.sampled_from(["right", "Right"])}
PARTS = some(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}))
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
SENTENCES = st.fixed_dictionaries({"source_sentence": TEXTS, "sentences": some(TEXTS, 3)})
DOCUMENTS = some(TEXTS | st.fixed_dictionaries({"text": TEXTS}))
GENERATED: dict[str, SearchStrategy[Any]] = {
    "model": st.sampled_from(["text", "default"]),
    "max_tokens": st.integers(1, 6) | st.none(),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.01, 1),
    "top_k": st.integers(-1, 40),
    "min_p": st.floats(0, 1),
    "n": st.integers(1, 3),
    "seed": st.integers(0, 2**31),
    "stop": WORDS | some(WORDS),
    "stop_token_ids": some(TOKENS),
    "logit_bias": st.dictionaries(TOKENS.map(str), st.floats(-100, 100), max_size=3),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.1, 2),
    "ignore_eos": FLAGS,
    "stream": FLAGS,
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    "user": WORDS,
    "tools": st.just([]),
    "response_format": st.just({"type": "text"}),
}
# Fields that a request needs, and others that it may have, with valid values.
Fields = dict[str, SearchStrategy[Any]]
EMBEDDINGS: tuple[Fields, Fields] = (
    {"input": INPUTS},
    {
        "model": st.just("embed"),
        "encoding_format": st.sampled_from(["float", "base64"]),
        "dimensions": st.integers(1, 24),
        "truncate": st.booleans(),
        "normalize": FLAGS,
    },
)
RERANK: tuple[Fields, Fields] = (
    {"query": TEXTS, "documents": DOCUMENTS},
    {"model": st.just("rank"), "top_n": st.integers(1, 9), "return_documents": FLAGS},
)
OF_KIND: tuple[Fields, Fields] = ({"inputs": INPUTS | SENTENCES}, {"truncate": FLAGS})
FIELDS: dict[str, tuple[Fields, Fields]] = {
    "/v1/embeddings": EMBEDDINGS,
    "/embeddings": EMBEDDINGS,
    "/v1/completions": ({"prompt": INPUTS}, GENERATED | {"logprobs": st.integers(0, 5), "echo": st.just(False)}),
    "/v1/chat/completions": (
        {"messages": some(st.fixed_dictionaries({"role": ROLES, "content": TEXTS | PARTS}))},
        GENERATED | {"logprobs": FLAGS},
    ),
    "/v1/rerank": RERANK,
    "/v2/rerank": RERANK,
    "/rerank": (
        {"query": TEXTS, "texts": some(TEXTS)},
        {"raw_scores": st.booleans(), "return_text": st.booleans(), **CUT},
    ),
    "/embed": ({"inputs": INPUTS}, {"normalize": st.booleans(), "dimensions": st.integers(1, 24), **CUT}),
    "/predict?model=label": (
        {"inputs": TEXTS | st.tuples(TEXTS, TEXTS) | some(some(TEXTS, 2))},
        {"raw_scores": st.booleans(), **CUT},
    ),
    "/embed_all": ({"inputs": INPUTS}, CUT),
    "/embed_sparse": ({"inputs": INPUTS}, CUT),  # which no model here does
    "/decode": ({"ids": some(TOKENS) | some(some(TOKENS))}, {"skip_special_tokens": st.booleans()}),
    "/": OF_KIND,
    "/invocations": OF_KIND,
    "/admin/models/more": ({"path": st.just("/nowhere")}, {"kind": st.just("embedding")}),
    "/similarity": ({"inputs": SENTENCES}, {"parameters": st.fixed_dictionaries(CUT) | st.none()}),
    "/tokenize": ({"inputs": TEXTS | some(TEXTS)}, {"add_special_tokens": st.booleans()}),
}
CHANGES = ["cut", "bytes", "gzip", "twice", "deep", "other"]


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes, dict[str, bytes]]:
    """A path, a body and headers. Half of the bodies are valid; some have a wrong value, or bytes that are no JSON."""
    path = draw(st.sampled_from([*FIELDS]))
    needed, others = FIELDS[path]
    names = draw(st.lists(st.sampled_from([*others]), max_size=4, unique=True))
    body = {name: draw(values) for name, values in (needed | {name: others[name] for name in names}).items()}
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        body[draw(st.sampled_from([*needed, *others]))] = draw(JUNK)
    data = json.dumps(body, allow_nan=True).encode()  # NaN, and halves of surrogate pairs as escapes
    headers = {"authorization": "Bearer admin"}
    headers |= {"content-type": draw(st.sampled_from(["application/json", "text/plain", "multipart/form-data", "é/ü"]))}
    change = draw(st.sampled_from([*[""] * 12, *CHANGES]))
    if change == "cut":
        data = data[: draw(st.integers(0, len(data)))]
    elif change == "bytes":
        place = draw(st.integers(0, len(data)))
        data = data[:place] + draw(st.binary(min_size=1, max_size=3)) + data[place:]
    elif change == "gzip":
        data, headers["content-encoding"] = gzip.compress(data, mtime=0), "gzip"
    elif change == "twice":
        data = data[:-1] + b"," + data[1:]
    elif change == "deep":
        depth = draw(st.sampled_from([10, 999, 3000]))
        data = data[:-1] + b', "deep": ' + b"[" * depth + b"]" * depth + b"}"
    elif change == "other":
        data = json.dumps(draw(JUNK), allow_nan=True).encode()
    return path, data, {name: value.encode() for name, value in headers.items()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    models: dict[str, Path] = served_models.write(tmp_path_factory.mktemp("models"))
    with running(
        Config(models, max_inputs=4, max_new_tokens=4, max_body_bytes=20_000, token_inputs=True, admin_key="admin")
    ) as found:
        yield found


def check(path: str, data: bytes, found: httpx.Response) -> None:
    """Raise AssertionError for an answer that is neither a result nor an error in the shape of the path."""
    told = (path, data[:400], found.status_code, found.text[:300])
    if found.status_code == 200:
        if found.headers["content-type"].startswith("text/event-stream"):
            *_, done, end = found.text.split("\n\n")
            assert (done, end) == ("data: [DONE]", ""), told
            return
        values = [found.json()]
        while values:  # no NaN: the text of it is no JSON, and null is no number
            value = values.pop()
            assert not isinstance(value, float) or math.isfinite(value), told
            values += value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
        return
    assert 400 <= found.status_code < 500, told
    error = found.json()["error"]
    if isinstance(error, str):
        assert not path.startswith(("/v1", "/v2", "/embeddings", "/admin")), told
        assert set(found.json()) == {"error", "error_type"}, told
        message = error
    else:
        assert {"message", "type", "param", "code"} <= set(error), told
        message = error["message"]
    assert message, told
    for word in ("Traceback", "/python/", "mha_native", "Batcher", "msgspec"):
        assert word not in message, told


def test_no_endpoint_is_left_out() -> None:
    paths = {path.partition("?")[0].replace("more", "{name:path}") for path in FIELDS}
    posts = [endpoint for endpoint in application._ENDPOINTS if endpoint.method == "POST"]
    assert {endpoint.path for endpoint in posts if endpoint.file is None} == paths  # forms: test_http_audio.py


@matrix(count=nightly((400, 20_000), quick=(400,)))
def test_every_request_is_answered(server: Running, count: int) -> None:
    # The usual run has the same requests each time, and a nightly run has others.
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), derandomize=count <= 400)
    @given(requests())
    def run(asked: tuple[str, bytes, dict[str, bytes]]) -> None:
        path, data, headers = asked
        check(path, data, server.client.post(path, content=data, headers=headers))

    run()
    assert server.client.post("/embed", json={"inputs": "the dog"}).status_code == 200
    engines = server.service.engines.values()
    # The last one ends after its answer.
    until(lambda: not server.application.calls and [engine.queued() for engine in engines] == [(0, 0)] * 4)
