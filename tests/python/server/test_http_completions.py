"""Texts of language models over HTTP: whole and in pieces, their options, and clients that leave."""

from __future__ import annotations

import itertools
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("jinja2")
pytest.importorskip("httpx")

import tiny_language_model
from http_server import SECONDS, Running, running, until

from mha_native.models import CausalLM
from mha_native.server import Config
from mha_native.serving._paged_caches import PagedCaches

MESSAGES = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "the"}]},
]
SAME = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the"}]
PROMPT = "the apple"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_language_model.write(tmp_path_factory.mktemp("model") / "tiny", n_positions=400)


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Running]:
    with running(Config({"tiny": directory}, max_new_tokens=12)) as found:
        yield found


@pytest.fixture(scope="module")
def model(directory: Path) -> CausalLM:
    return CausalLM.from_pretrained(directory)


def events(server: Running, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with server.client.stream("POST", path, json=body | {"stream": True}) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_completions_are_those_of_the_model(server: Running, model: CausalLM) -> None:
    body: dict[str, Any] = {"prompt": [PROMPT, "a"], "seed": 3, "n": 2, "max_tokens": 9, "logprobs": 2, "top_k": 20}
    found = server.client.post("/v1/completions", json=body).json()
    options: dict[str, Any] = {"temperature": 1.0, "top_k": 20, "max_new_tokens": 9, "logprobs": 2}
    expected = [model.complete(prompt, seed=3 + i, **options) for prompt in (PROMPT, "a") for i in range(2)]
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    for choice, one in zip(found["choices"], expected, strict=True):
        assert (choice["text"], choice["finish_reason"]) == (one.text, one.finish_reason)
        assert choice["logprobs"]["token_logprobs"] == [each.logprob for each in one.logprobs]
        assert choice["logprobs"]["text_offset"][0] == 0
    prompts = len(model.generator.prompts("", "", PROMPT)[1][0]) + len(model.generator.prompts("", "", "a")[1][0])
    new = sum(len(one.tokens) for one in expected)
    usage = found["usage"]
    assert [usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]] == [prompts, new, prompts + new]
    whole = {choice["index"]: choice["text"] for choice in found["choices"]}
    chunks = events(server, "/v1/completions", body)
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    for i, text in whole.items():
        own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == i]
        assert "".join(choice["text"] for choice in own) == text
        assert [choice["finish_reason"] is not None for choice in own] == [False] * (len(own) - 1) + [True]
        logprobs = [value for choice in own for value in choice["logprobs"]["token_logprobs"]]
        assert logprobs == found["choices"][i]["logprobs"]["token_logprobs"]
    greedy = {"prompt": PROMPT, "temperature": 0, "max_tokens": 9}
    text = model.generate(PROMPT, max_new_tokens=9)
    assert server.client.post("/v1/completions", json=greedy).json()["choices"][0]["text"] == text
    stop = text[2:4]
    cut = server.client.post("/v1/completions", json=greedy | {"stop": stop}).json()["choices"][0]
    assert (cut["text"], cut["finish_reason"]) == (text[: text.index(stop)], "stop")


def test_prompts_that_are_echoed(server: Running, model: CausalLM) -> None:
    options: dict[str, Any] = {"max_new_tokens": 3, "logprobs": 1, "prompt_logprobs": 1}
    tokens = model.generator.prompts("", "", PROMPT)[1][0]
    body = {"temperature": 0, "max_tokens": 3, "logprobs": 1, "echo": True}
    for prompt in (PROMPT, tokens):
        expected = model.complete(prompt, **options)
        (found,) = server.client.post("/v1/completions", json=body | {"prompt": prompt}).json()["choices"]
        assert found["text"] == PROMPT + expected.text
        logprobs = found["logprobs"]["token_logprobs"]
        assert logprobs[0] is found["logprobs"]["top_logprobs"][0] is None
        both = (*expected.prompt_logprobs[1:], *expected.logprobs)
        assert logprobs[1:] == [each.logprob for each in both]
        assert [len(each) for each in found["logprobs"]["top_logprobs"][1:]] == [1] * len(both)
        # Programs that judge models ask for the prompt alone.
        alone = server.client.post("/v1/completions", json=body | {"prompt": prompt, "max_tokens": 0}).json()
        assert alone["choices"][0]["logprobs"]["token_logprobs"] == logprobs[: len(tokens)]
        assert (alone["choices"][0]["text"], alone["usage"]["completion_tokens"]) == (PROMPT, 0)


def _counts(metrics: str) -> dict[str, float]:
    found = re.findall(r'vllm:(\w+)_count\{model_name="tiny"\} (\S+)', metrics)
    return {name: float(count) for name, count in found}


def test_conversations_are_those_of_the_model(server: Running, model: CausalLM) -> None:
    before = _counts(server.client.get("/metrics").text)
    text = model.chat(SAME, max_new_tokens=12)  # the most of this server
    body = {"messages": MESSAGES, "temperature": 0, "response_format": {"type": "text"}, "tools": []}
    found = server.client.post("/v1/chat/completions", json=body | {"logprobs": True, "top_logprobs": 2}).json()
    (choice,) = found["choices"]
    assert choice["message"]["content"] == text
    assert choice["finish_reason"] == "length"
    entries = choice["logprobs"]["content"]
    assert len(entries) == 12 == found["usage"]["completion_tokens"]
    assert all(entry["logprob"] == entry["top_logprobs"][0]["logprob"] for entry in entries)
    first, *pieces, last, usage = events(
        server, "/v1/chat/completions", body | {"stream_options": {"include_usage": True}}
    )
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(piece["choices"][0]["delta"]["content"] for piece in pieces) == text
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "length")
    assert (usage["choices"], usage["usage"]["completion_tokens"], first["usage"]) == ([], 12, None)
    text = server.client.get("/metrics").text
    assert 'vllm:request_success_total{finished_reason="length",model_name="tiny"}' in text
    free = 'vllm:kv_cache_usage_perc{model_name="tiny"} 0.0'
    until(lambda: free in server.client.get("/metrics").text)  # the step of the last token ends after the answer
    after = _counts(text)
    new = {name: after[name] - before.get(name, 0) for name in after}
    assert (new["request_prefill_time_seconds"], new["request_generation_tokens"]) == (2, 2)
    assert new["inter_token_latency_seconds"] >= 22  # of two texts of 12 tokens


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/completions", {}, "prompt"),
    ("/v1/completions", {"prompt": []}, "prompt"),
    ("/v1/completions", {"prompt": [None]}, "prompt[0]"),
    ("/v1/completions", {"prompt": [10**9]}, "prompt"),
    ("/v1/completions", {"prompt": "a", "echo": True, "stream": True}, "echo"),
    ("/v1/completions", {"prompt": [10**9], "echo": True}, "prompt"),
    ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
    ("/v1/completions", {"prompt": "a", "best_of": 2}, "best_of"),
    ("/v1/completions", {"prompt": "a", "logprobs": 6}, "logprobs"),
    ("/v1/completions", {"prompt": "a", "n": 9}, "n: must"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 0}, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "temperature": -1}, "temperature"),
    ("/v1/completions", {"prompt": "a", "top_p": 0}, "top_p"),
    ("/v1/completions", {"prompt": "a", "seed": -1}, "seed"),
    ("/v1/completions", {"prompt": "a", "stop": ["a"] * 5}, "stop"),
    ("/v1/completions", {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
    ("/v1/completions", {"prompt": "b" * 3000}, "positions"),
    ("/v1/chat/completions", {}, "messages"),
    ("/v1/chat/completions", {"messages": []}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "other", "content": "a"}]}, "role"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": None}]}, "content"),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "text are supported",
    ),
    ("/v1/chat/completions", {"messages": SAME, "tools": [{"type": "function"}]}, "tools"),
    ("/v1/chat/completions", {"messages": SAME, "response_format": {"type": "json_object"}}, "response_format"),
    ("/v1/chat/completions", {"messages": SAME, "chat_template": "{{ 1 }}"}, "chat_template"),
    ("/v1/chat/completions", {"messages": SAME, "top_logprobs": 2}, "top_logprobs"),
    ("/v1/embeddings", {"input": "a"}, "no model of the kind"),
]


def test_refused_requests(server: Running) -> None:
    for path, body, words in REFUSED:
        found = server.client.post(path, json=body)
        assert found.status_code == 400, (path, body, found.text)
        assert words in found.json()["error"]["message"], (body, found.text)
    long = server.client.post("/v1/completions", json={"prompt": "b" * 3000}).json()
    assert long["error"]["code"] == "context_length_exceeded"
    statistics = server.service.engines["tiny"].batcher.statistics
    assert (statistics.running, statistics.waiting) == (0, 0)


def _post(server: Running, body: dict[str, Any]) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    data = json.dumps(body).encode()
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
    return connection


def test_a_client_that_leaves_frees_its_pages(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    batcher = server.service.engines["tiny"].batcher
    read, entered, is_open = PagedCaches.read, threading.Semaphore(0), threading.Semaphore(0)

    def waiting(*arguments: Any) -> Any:
        entered.release()
        assert is_open.acquire(timeout=SECONDS)
        return read(*arguments)

    monkeypatch.setattr(PagedCaches, "read", waiting)
    prompt = "b" * 390  # more than the tokens of a step
    for body, steps in (
        ({"prompt": prompt, "max_tokens": 9}, 0),  # while its prompt is read
        ({"prompt": "a", "max_tokens": 300, "ignore_eos": True, "stream": True}, 3),  # in the stream
        ({"prompt": "a", "max_tokens": 300, "ignore_eos": True}, 3),
    ):
        connection = _post(server, body)
        for _ in range(steps):
            is_open.release()
        for _ in range(steps + 1):
            assert entered.acquire(timeout=SECONDS)
        before = batcher.statistics.steps
        connection.close()
        calls = server.application.calls
        until(lambda: all(call.why_stopped == "disconnect" for call in list(calls)))  # noqa: B023
        is_open.release()
        until(lambda: batcher.statistics.running == 0 and not batcher.statistics.used_pages)
        assert batcher.statistics.steps - before <= 2
    until(lambda: not server.application.calls)


def test_streams_at_the_end_of_the_server(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, is_open, steps = PagedCaches.read, threading.Event(), itertools.count()

    def waiting(*arguments: Any) -> Any:
        assert next(steps) < 3 or is_open.wait(SECONDS)
        time.sleep(0.001)  # 390 tokens take longer than the timeout below
        return read(*arguments)

    with running(Config({"tiny": directory})) as server:
        monkeypatch.setattr(PagedCaches, "read", waiting)
        body = {"prompt": "a", "max_tokens": 390, "ignore_eos": True, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert '"text_completion"' in next(lines)
            aborted: Future[int] = Future()
            server.loop.call_soon_threadsafe(lambda: aborted.set_result(server.application.abort()))
            assert aborted.result(SECONDS) == 1
            rest = [line for line in lines if line]
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "not_ready"
        is_open.set()
        late = server.client.post(
            "/v1/completions", json=body | {"stream": False}, headers={"x-request-timeout": "0.02"}
        )
        assert late.status_code in (408, 504)


def test_openai(server: Running, model: CausalLM) -> None:
    openai = pytest.importorskip("openai")
    expected = model.chat(SAME, max_new_tokens=8)
    options = {"model": "tiny", "messages": SAME, "temperature": 0, "max_completion_tokens": 8}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="key") as client:
        found = client.chat.completions.create(**options, logprobs=True, top_logprobs=1, n=2, seed=5)
        assert [choice.message.content for choice in found.choices] == [expected] * 2
        assert len(found.choices[1].logprobs.content) == 8
        pieces = [piece.choices[0].delta.content for piece in client.chat.completions.create(**options, stream=True)]
        assert "".join(filter(None, pieces)) == expected
        text = client.completions.create(model="tiny", prompt=PROMPT, temperature=0, max_tokens=5).choices[0].text
        assert text == model.generate(PROMPT, max_new_tokens=5)
        with pytest.raises(openai.BadRequestError, match="tools"):
            client.chat.completions.create(**options, tools=[{"type": "function", "function": {"name": "f"}}])
