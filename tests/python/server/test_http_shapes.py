"""The shapes of requests and answers: those that clients of Text Embeddings Inference and OpenAI are written for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("jinja2")
pytest.importorskip("httpx")
pytest.importorskip("jsonschema")

import jsonschema
import served_models
from http_server import Running, running

from mha_native.server import Config

Schema = dict[str, Any]


def array(items: Schema, **rules: Any) -> Schema:
    return {"type": "array", "items": items, **rules}


def record(optional: dict[str, Schema] | None = None, **required: Schema) -> Schema:
    """Fields, and no others: a name that is misspelled is an error."""
    properties = required | (optional or {})
    return {"type": "object", "required": [*required], "properties": properties, "additionalProperties": False}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "number"}, {"type": "boolean"}
COUNT = {"type": "integer", "minimum": 0}
LABELS = record(
    id2label={"type": "object", "additionalProperties": TEXT},
    label2id={"type": "object", "additionalProperties": COUNT},
)
PREDICTIONS = array(record(score=NUMBER, label=TEXT), minItems=1)

# The answers of Text Embeddings Inference 1.7: the fields of docs/openapi.json in its repository. A model kind has
# one key of its own.
TEI: dict[str, Schema] = {
    "/decode": array(TEXT),
    "/embed": array(array(NUMBER)),
    "/embed_all": array(array(array(NUMBER))),
    "/predict": {"oneOf": [PREDICTIONS, array(PREDICTIONS)]},
    "/rerank": array(record({"text": nullable(TEXT)}, index=COUNT, score=NUMBER)),
    "/similarity": array(NUMBER),
    "/tokenize": array(
        array(record({"start": nullable(COUNT), "stop": nullable(COUNT)}, id=COUNT, text=TEXT, special=FLAG))
    ),
    "/info": record(
        {
            "docker_label": nullable(TEXT),
            "max_batch_requests": nullable(COUNT),
            "model_sha": nullable(TEXT),
            "sha": nullable(TEXT),
        },
        auto_truncate=FLAG,
        max_batch_tokens=COUNT,
        max_client_batch_size=COUNT,
        max_concurrent_requests=COUNT,
        max_input_length=COUNT,
        model_dtype=TEXT,
        model_id=TEXT,
        model_type={
            "oneOf": [record(embedding=record(pooling=TEXT)), record(classifier=LABELS), record(reranker=LABELS)]
        },
        tokenization_workers=COUNT,
        version=TEXT,
    ),
}
TEI_ERROR = record(
    error=TEXT,
    error_type={"enum": ["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]},
)

# Requests that these schemas allow, with null wherever they do.
TEI_ASKED: list[tuple[str, Any]] = [
    ("/embed", {"inputs": "a dog"}),
    ("/embed", {"inputs": ["a", "dog"], "normalize": False, "prompt_name": None, "truncate": None}),
    ("/embed", {"inputs": ["a"], "truncate": True, "truncation_direction": "Right"}),
    ("/embed_all", {"inputs": ["a", "dog"], "prompt_name": None, "truncate": None}),
    ("/decode", {"ids": [5, 6]}),
    ("/decode", {"ids": [[5], [6]], "skip_special_tokens": False}),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["a", "dog"]}, "parameters": None}),
    (
        "/similarity",
        {
            "inputs": {"source_sentence": "a", "sentences": ["a"]},
            "parameters": {"truncation_direction": "Right", "prompt_name": None, "truncate": None},
        },
    ),
    ("/predict", {"inputs": "a"}),
    ("/predict", {"inputs": ["a", "dog"], "raw_scores": True, "truncate": None}),
    ("/predict", {"inputs": [["a"], ["a", "dog"]]}),
    ("/predict?model=rank", {"inputs": [["a", "dog"]]}),
    ("/rerank", {"query": "a", "texts": ["dog", "a"], "truncate": None}),
    ("/rerank", {"query": "a", "texts": ["dog"], "raw_scores": True, "return_text": True}),
    ("/tokenize", {"inputs": "a dog", "prompt_name": None}),
    ("/tokenize", {"inputs": ["a", "dog"], "add_special_tokens": False}),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    models: dict[str, Path] = served_models.write(tmp_path_factory.mktemp("models"))
    with running(Config(models, max_inputs=4)) as found:
        yield found


def test_answers_of_text_embeddings_inference(server: Running) -> None:
    for path, body in TEI_ASKED:
        found = server.client.post(path, json=body)
        assert found.status_code == 200, (path, body, found.text)
        jsonschema.validate(found.json(), TEI[path.partition("?")[0]])
    for name in ("embed", "rank", "label"):
        jsonschema.validate(server.client.get(f"/info?model={name}").json(), TEI["/info"])
    assert server.client.get("/info").json()["model_type"] == {"embedding": {"pooling": "mean"}}
    for path in TEI:
        for body in (b"{", {}, {"inputs": 5, "query": "", "texts": ["a"]}):
            raw = {"content": body} if isinstance(body, bytes) else {"json": body}
            found = server.client.post(path, **raw)  # type: ignore[arg-type]
            assert 400 <= found.status_code < 500, (path, body)
            jsonschema.validate(found.json(), TEI_ERROR)


def test_answers_of_openai(server: Running) -> None:
    types = pytest.importorskip("openai.types")
    chat = pytest.importorskip("openai.types.chat")
    messages = [{"role": "user", "content": "the"}]
    asked: list[tuple[Any, str, dict[str, Any]]] = [
        (types.CreateEmbeddingResponse, "/v1/embeddings", {"input": ["a", "dog"]}),
        (types.Completion, "/v1/completions", {"prompt": ["a", "the"], "max_tokens": 3, "n": 2}),
        (types.Completion, "/v1/completions", {"prompt": "a", "max_tokens": 3, "logprobs": 3}),
        (chat.ChatCompletion, "/v1/chat/completions", {"messages": messages, "max_tokens": 3}),
        (
            chat.ChatCompletion,
            "/v1/chat/completions",
            {"messages": messages, "max_tokens": 3, "logprobs": True, "top_logprobs": 2},
        ),
    ]
    for kind, path, body in asked:
        found = server.client.post(path, json=body)
        _is_exactly(kind.model_validate_json(found.text, strict=True))
    listed = server.client.get("/v1/models").json()
    for model in listed["data"]:
        types.Model.model_validate(model, strict=True)
    streams: list[tuple[Any, str, dict[str, Any]]] = [
        (types.Completion, "/v1/completions", {"prompt": "a", "max_tokens": 3, "logprobs": 1}),
        (chat.ChatCompletionChunk, "/v1/chat/completions", {"messages": messages, "max_tokens": 3, "logprobs": True}),
    ]
    for kind, path, body in streams:
        found = server.client.post(path, json=body | {"stream": True, "stream_options": {"include_usage": True}})
        *events, done, end = found.text.split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        for event in events:
            data = event.removeprefix("data: ")
            if kind is types.Completion:  # whose class lacks the null that OpenAI sends before the end
                data = data.replace('"finish_reason":null', '"finish_reason":"stop"')
            _is_exactly(kind.model_validate_json(data, strict=True))


def _is_exactly(value: Any, name: str = "") -> None:
    """Raise AssertionError for a field that the class of a value does not declare."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            _is_exactly(item, f"{name}[{i}]")
    elif hasattr(type(value), "model_fields"):
        assert not value.model_extra, (name, value.model_extra)
        for field in type(value).model_fields:
            _is_exactly(getattr(value, field), f"{name}.{field}")
