"""Clients that many programs use, against a server on this machine."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("jinja2")
pytest.importorskip("httpx")

import httpx
import served_models
from http_server import Running, running, until
from recordings import recording

from mha_native.models import CausalLM, SentenceEncoder, TextClassifier
from mha_native.server import Config
from mha_native.serving import QueueFull
from mha_native.speech import WhisperModel

TEXTS = ["the hungry dog", "a cat"]
MESSAGES: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the"}]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return served_models.write(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def server(models: dict[str, Path]) -> Iterator[Running]:
    with running(Config(models, api_keys=("key",), max_new_tokens=12, max_body_bytes=50_000)) as found:
        yield found


@pytest.fixture(scope="module")
def embeddings(models: dict[str, Path]) -> np.ndarray[Any, Any]:
    return SentenceEncoder.from_pretrained(models["embed"]).encode(TEXTS)


@pytest.fixture(scope="module")
def text(models: dict[str, Path]) -> CausalLM:
    return CausalLM.from_pretrained(models["text"])


def floats(found: Any) -> np.ndarray[Any, Any]:
    return np.array([entry.embedding for entry in found.data], np.float32)


def test_embeddings_of_openai(server: Running, models: dict[str, Path], embeddings: np.ndarray[Any, Any]) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="key") as client:
        assert [model.id for model in client.models.list()] == ["embed", "rank", "label", "text"]
        assert client.models.retrieve("embed").owned_by == "mha_native"
        for options in ({}, {"encoding_format": "float"}, {"extra_body": {"prompt_name": None}}):
            found = client.embeddings.create(model="embed", input=TEXTS, **options)
            assert np.array_equal(floats(found), embeddings)
        raw = client.embeddings.with_raw_response.create(model="embed", input=TEXTS)
        assert '"embedding":"' in raw.text  # base64, without a word of the caller
        found = client.embeddings.create(model="embed", input=TEXTS, dimensions=7)
        expected = SentenceEncoder.from_pretrained(models["embed"]).encode(TEXTS, truncate_dim=7, normalize=True)
        assert np.array_equal(floats(found), expected)

    async def several() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="key") as client:
            asked = [client.embeddings.create(model="embed", input=text) for text in TEXTS * 8]
            return [floats(found)[0] for found in await asyncio.gather(*asked)]

    assert np.array_equal(asyncio.run(several()), [*embeddings] * 8)


def test_the_first_program_of_the_document(server: Running, models: dict[str, Path]) -> None:
    pytest.importorskip("openai")
    document = (Path(__file__).resolve().parents[3] / "docs" / "serve.md").read_text(encoding="utf-8")
    *statements, call = re.findall(r"^```python\n(.*?)\n```", document, re.M | re.S)[0].split("\n")
    changes = {"http://localhost:8080": server.url, '"none"': '"key"', '"minilm"': '"embed"'}
    names: dict[str, Any] = {}
    for old, new in changes.items():
        assert old in "\n".join([*statements, call])
        statements, call = [line.replace(old, new) for line in statements], call.replace(old, new)
    exec("\n".join(statements), names)
    with names["client"]:
        found = eval(call, names)
    assert np.array_equal(
        floats(found)[0], SentenceEncoder.from_pretrained(models["embed"]).encode("A dog was hungry.")
    )


def test_errors_and_retries_of_openai(
    server: Running, embeddings: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    openai = pytest.importorskip("openai")
    batcher = server.service.engines["embed"].batcher
    submit, refused = batcher.submit, 0

    def full_once(*arguments: Any, **options: Any) -> Any:
        nonlocal refused
        if refused == 0:
            refused += 1
            raise QueueFull("the queue is full")
        return submit(*arguments, **options)

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="key") as client:
        once = client.with_options(max_retries=0)
        asked: list[tuple[dict[str, Any], str, int, str | None, str | None]] = [
            ({"model": "other", "input": "a"}, "NotFoundError", 404, "model", "model_not_found"),
            ({"model": "rank", "input": "a"}, "BadRequestError", 400, "model", None),
            ({"model": "embed", "input": []}, "BadRequestError", 400, "input", None),
            ({"model": "embed", "input": [5, 6]}, "BadRequestError", 400, "input", None),
            ({"model": "embed", "input": "a", "dimensions": 99}, "BadRequestError", 400, "dimensions", None),
            ({"model": "embed", "input": "a" * 60_000}, "APIStatusError", 413, None, "request_too_large"),
            ({"model": "embed", "input": TEXTS, "extra_headers": {"x-request-timeout": "1e-9"}},
             "APIStatusError", 408, None, "timeout"),
        ]  # fmt: skip
        for options, kind, status, param, code in asked:
            with pytest.raises(getattr(openai, kind)) as caught:
                once.embeddings.create(**options)
            error = caught.value
            assert (error.status_code, error.param, error.code) == (status, param, code), options
            assert error.request_id == error.response.headers["x-request-id"]
        with pytest.raises(openai.AuthenticationError) as caught:
            client.with_options(api_key="wrong").embeddings.create(model="embed", input="a")
        assert caught.value.code == "invalid_api_key"

        monkeypatch.setattr(batcher, "submit", full_once)
        with pytest.raises(openai.RateLimitError) as caught:
            once.embeddings.create(model="embed", input=TEXTS)
        assert (caught.value.code, caught.value.response.headers["retry-after"]) == ("queue_full", "1")
        refused = 0
        assert np.array_equal(floats(client.embeddings.create(model="embed", input=TEXTS)), embeddings)
        assert refused == 1


def test_texts_of_openai(server: Running, text: CausalLM) -> None:
    openai = pytest.importorskip("openai")
    expected = text.chat(MESSAGES, max_new_tokens=8)
    options: dict[str, Any] = {"model": "text", "messages": MESSAGES, "temperature": 0, "max_completion_tokens": 8}

    def joined(chunks: list[Any]) -> str:
        return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="key") as client:
        create = client.chat.completions.create
        found = create(**options, logprobs=True, top_logprobs=2, n=2)
        assert [choice.message.content for choice in found.choices] == [expected] * 2
        for entry in found.choices[1].logprobs.content:
            assert entry.logprob == entry.top_logprobs[0].logprob
            assert (entry.token, entry.bytes) == (entry.top_logprobs[0].token, entry.top_logprobs[0].bytes)
        assert found.usage.completion_tokens == 16 == found.usage.total_tokens - found.usage.prompt_tokens
        chunks = list(create(**options, stream=True, stream_options={"include_usage": True}))
        assert joined(chunks) == expected
        assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 8)
        assert {(chunk.id, chunk.created) for chunk in chunks} == {(chunks[0].id, chunks[0].created)}
        assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-2:] == [None, "length"]

        drawn = {"temperature": 1, "seed": 11}
        first, again = (create(**options | drawn).choices[0].message.content for _ in range(2))
        assert first == again == text.chat(MESSAGES, max_new_tokens=8, temperature=1.0, seed=11)
        cut = create(**options, stop=[expected[3:5]]).choices[0]
        assert (cut.message.content, cut.finish_reason) == (expected[: expected.index(expected[3:5])], "stop")
        found = client.completions.create(model="text", prompt="the apple", temperature=0, max_tokens=5, logprobs=1)
        assert found.choices[0].text == text.generate("the apple", max_new_tokens=5)
        assert len(found.choices[0].logprobs.token_logprobs) == 5
        with pytest.raises(openai.BadRequestError, match="tools"):
            create(**options, tools=[{"type": "function", "function": {"name": "f"}}])
        with pytest.raises(openai.BadRequestError, match="response_format"):
            create(**options, response_format={"type": "json_object"})
        with create(**options | {"max_completion_tokens": 300}, stream=True) as stream:
            next(iter(stream))  # and leaves

    async def several() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="key") as client:
            streams = [await client.chat.completions.create(**options, stream=True) for _ in range(3)]
            found = []
            for stream in streams:
                found.append(joined([chunk async for chunk in stream]))
            return found

    assert asyncio.run(several()) == [expected] * 3
    until(lambda: server.service.engines["text"].queued() == (0, 0))  # also the text of the client that left


def test_cohere(server: Running, models: dict[str, Path]) -> None:
    cohere = pytest.importorskip("cohere.client_v2", exc_type=ImportError)
    errors = pytest.importorskip("cohere.errors", exc_type=ImportError)
    with httpx.Client() as transport:
        client = cohere.ClientV2(api_key="key", base_url=server.url, httpx_client=transport)
        found = client.rerank(model="rank", query="hungry", documents=TEXTS, top_n=2)
        with pytest.raises(errors.NotFoundError, match="does not exist"):
            client.rerank(model="other", query="hungry", documents=TEXTS)
        with pytest.raises(errors.BadRequestError, match="max_tokens_per_doc"):
            client.rerank(model="rank", query="hungry", documents=TEXTS, max_tokens_per_doc=9)
    ranker = TextClassifier.from_pretrained(models["rank"])
    scores = ranker.predict_proba([("hungry", text) for text in TEXTS], function_to_apply="sigmoid")[:, 0]
    assert {entry.index: entry.relevance_score for entry in found.results} == dict(enumerate(scores.tolist()))
    assert found.meta.tokens.input_tokens == ranker.count_tokens([("hungry", text) for text in TEXTS]).sum()


@pytest.mark.filterwarnings("ignore")  # its clients cannot be closed
def test_haystack(
    server: Running, embeddings: np.ndarray[Any, Any], text: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedders = pytest.importorskip("haystack.components.embedders")
    chat = pytest.importorskip("haystack.components.generators.chat")
    dataclasses = pytest.importorskip("haystack.dataclasses")
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    base = {"api_base_url": f"{server.url}/v1"}
    found = embedders.OpenAITextEmbedder(model="embed", **base).run(text=TEXTS[0])["embedding"]
    assert np.array_equal(np.array(found, np.float32), embeddings[0])
    documents = [dataclasses.Document(content=text) for text in TEXTS]
    found = embedders.OpenAIDocumentEmbedder(model="embed", progress_bar=False, **base).run(documents)["documents"]
    assert np.array_equal(np.array([document.embedding for document in found], np.float32), embeddings)
    pieces: list[str] = []
    options = {"temperature": 0, "max_completion_tokens": 8}
    generator = chat.OpenAIChatGenerator(
        model="text", generation_kwargs=options, streaming_callback=lambda chunk: pieces.append(chunk.content), **base
    )
    (reply,) = generator.run([dataclasses.ChatMessage.from_user("the")])["replies"]
    expected = text.chat([{"role": "user", "content": "the"}], max_new_tokens=8)
    assert reply.text == "".join(pieces) == expected
    del generator
    gc.collect()


@pytest.fixture(scope="module")
def speech(speech_model_directory: Path) -> Iterator[Running]:
    with running(Config({"whisper-1": speech_model_directory}, api_keys=("key",))) as found:
        yield found


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    soundfile = pytest.importorskip("soundfile")
    path = tmp_path_factory.mktemp("talk") / "talk.flac"
    soundfile.write(path, recording("sentence"), 16_000)
    return path


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # of translations, since openai 3.57
def test_transcripts_of_openai(speech: Running, speech_model_directory: Path, talk: Path) -> None:
    openai = pytest.importorskip("openai")
    segments, info = WhisperModel(speech_model_directory).transcribe(talk, word_timestamps=True)
    expected = list(segments)
    text = "".join(segment.text for segment in expected).strip()
    words = [(word.word.strip(), word.start, word.end) for segment in expected for word in segment.words or ()]
    assert "ancient mariner" in text

    with openai.OpenAI(base_url=f"{speech.url}/v1", api_key="key") as client, open(talk, "rb") as file:
        create = client.audio.transcriptions.create
        found = create(model="whisper-1", file=file)
        assert (found.text, found.usage.seconds) == (text, 4)
        assert create(model="whisper-1", file=file, response_format="text") == f"{text}\n"
        assert create(model="whisper-1", file=talk, response_format="vtt").startswith("WEBVTT")
        verbose = create(
            model="whisper-1",
            file=talk.read_bytes(),
            language="en",
            response_format="verbose_json",
            timestamp_granularities=["word", "segment"],
        )
        assert [(word.word, word.start, word.end) for word in verbose.words] == words
        assert [segment.text for segment in verbose.segments] == [segment.text for segment in expected]
        assert (verbose.duration, verbose.language) == (info.duration, "english")
        events = [*create(model="whisper-1", file=talk, stream=True)]
        assert [event.type for event in events] == ["transcript.text.delta"] * len(expected) + ["transcript.text.done"]
        assert "".join(event.delta for event in events[:-1]) == events[-1].text == text
        once = client.with_options(max_retries=0).audio
        for call, param in (
            (lambda: once.translations.create(model="whisper-1", file=talk), "model"),
            (lambda: once.transcriptions.create(model="whisper-1", file=b"no sound"), "file"),
            (lambda: once.transcriptions.create(model="whisper-1", file=talk, include=["logprobs"]), "include"),
            (lambda: once.transcriptions.create(model="whisper-1", file=talk, language="de"), "language"),
        ):
            with pytest.raises(openai.BadRequestError) as raised:
                call()
            assert raised.value.param == param

    async def several() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{speech.url}/v1", api_key="key") as client:
            asked = [client.audio.transcriptions.create(model="whisper-1", file=talk) for _ in range(2)]
            return [found.text for found in await asyncio.gather(*asked)]

    assert asyncio.run(several()) == [text, text]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_sends_a_recording(speech: Running, talk: Path) -> None:
    command = ["curl", "-sS", "--noproxy", "*", f"{speech.url}/v1/audio/transcriptions", "-F", f"file=@{talk}"]
    command += ["-H", "Authorization: Bearer key", "-F", "model=whisper-1", "-F", "response_format=srt"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "00:00:00,000 --> " in found
    assert "ancient mariner" in found


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl(server: Running, embeddings: np.ndarray[Any, Any], text: CausalLM) -> None:
    def curl(path: str, body: dict[str, Any], *options: str) -> str:
        # Its own content type is the one of a form; the body is JSON all the same.
        command = ["curl", "-sS", "--noproxy", "*", f"{server.url}{path}", "-H", "Authorization: Bearer key"]
        return subprocess.run(
            [*command, "-d", json.dumps(body), *options], check=True, capture_output=True, text=True
        ).stdout

    found = json.loads(curl("/v1/embeddings", {"input": TEXTS}))
    assert np.array_equal(np.array([entry["embedding"] for entry in found["data"]], np.float32), embeddings)
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 8, "stream": True}
    *lines, done = curl("/v1/chat/completions", body, "-N", "--http1.1").split("\n\n")[:-1]
    assert done == "data: [DONE]"
    deltas = [json.loads(line.removeprefix("data: "))["choices"][0]["delta"] for line in lines]
    assert "".join(delta.get("content", "") for delta in deltas) == text.chat(MESSAGES, max_new_tokens=8)
    assert curl("/v1/embeddings", {"input": 5}, "-o", "/dev/null", "-w", "%{http_code}") == "400"
