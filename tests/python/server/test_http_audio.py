"""Transcripts and translations over HTTP: those of the library, in every format; forms of every kind; and limits."""

from __future__ import annotations

import asyncio
import io
import json
import random
import socket
import tempfile
import threading
import time
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("soundfile")
pytest.importorskip("soxr")
pytest.importorskip("httpx")

import httpx
import tiny_bert
import tiny_multi_vector
import tiny_whisper
from http_server import SECONDS as LONG
from http_server import Running, running, until
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from matrix import matrix, nightly

from mha_native.server import Config, Model
from mha_native.server.audio import LANGUAGES
from mha_native.speech import WhisperModel
from mha_native.speech._transcribe import Transcriber
from mha_native.speech._writers import WRITERS, Layout

TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
GRANULARITIES = "timestamp_granularities[]"
SECONDS = 1.3  # of the recording: four windows of the tiny model


def wav(seconds: float = SECONDS, rate: int = 22_050) -> bytes:
    """Noise in a file, with a rate that is resampled."""
    samples = np.random.default_rng(3).integers(-9000, 9000, round(seconds * rate), np.int16)
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    return data.getvalue()


DATA = wav()

# Texts of random weights are improbable. They are words here, and each window is a segment.
WORDS: dict[str, Any] = {
    **{"no_speech_threshold": None, "beam_size": 2, "without_timestamps": True},
    "suppress_tokens": range(6, tiny_whisper.SIZE),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("models")
    found = {"many": tiny_whisper.write(home / "many"), "english": tiny_whisper.write(home / "english")}
    place = found["english"] / "generation_config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"is_multilingual": False}))
    return {**found, "embed": tiny_bert.write(home / "embed")}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of temporary files."""
    found, before = tmp_path_factory.mktemp("temporary"), tempfile.tempdir
    tempfile.tempdir = str(found)
    yield found
    tempfile.tempdir = before


@pytest.fixture(scope="module")
def server(models: dict[str, Path], place: Path) -> Iterator[Running]:
    config = Config(models, max_audio_bytes=300_000, max_audio_seconds=4, max_recordings=3)
    with running(config) as found:
        yield found


@pytest.fixture(scope="module")
def whisper(models: dict[str, Path]) -> WhisperModel:
    return WhisperModel(models["many"])


@pytest.fixture(autouse=True)
def nothing_is_left(server: Running, place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(WhisperModel, "transcribe", partialmethod(WhisperModel.transcribe, **WORDS))
    yield
    until(lambda: not [*place.iterdir()] and not server.service.num_recordings)


class Gate:
    """Windows that wait until the gate lets them through."""

    def __init__(self) -> None:
        self.passes, self.entered = threading.Semaphore(0), threading.Event()
        self.seeds: list[int] = []


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    found, best_attempt = Gate(), Transcriber.best_attempt

    def waiting(self: Transcriber, encoded: Any, prompt: Any, seed: int) -> Any:
        found.seeds.append(seed)
        found.entered.set()
        assert found.passes.acquire(timeout=LONG)
        return best_attempt(self, encoded, prompt, seed)

    monkeypatch.setattr(Transcriber, "best_attempt", waiting)
    yield found
    found.passes.release(1000)


def ask(server: Running, path: str = TRANSCRIPTIONS, data: bytes = DATA, **fields: Any) -> httpx.Response:
    fields = {"model": "many", "language": "en", **fields}
    asked = {name: value for name, value in fields.items() if value is not None}
    return server.client.post(path, files={"file": ("noise.wav", data)}, data=asked)


def send_late(server: Running, seconds: float, **fields: Any) -> httpx.Response:
    """Send a recording with a timeout."""
    asked, headers = {"model": "many", "language": "en", **fields}, {"x-request-timeout": str(seconds)}
    return server.client.post(TRANSCRIPTIONS, files={"file": DATA}, data=asked, headers=headers)


def late(server: Running, **fields: Any) -> httpx.Response:
    """Send a recording with a timeout, again if the time was over before the work began."""
    while (found := send_late(server, 0.5, **fields)).status_code == 408:
        pass
    return found


def test_transcripts_are_those_of_the_library(server: Running, whisper: WhisperModel, tmp_path: Path) -> None:
    (path := tmp_path / "noise").write_bytes(DATA)
    options: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"language": None}, {"language": None}),
        ({"prompt": "red (blue", "temperature": "0.4"}, {"initial_prompt": "red (blue", "temperature": 0.4}),
    ]
    for fields, own in options:
        segments, info = whisper.transcribe(path, **{"language": "en", **own})
        expected = list(segments)
        text = "".join(segment.text for segment in expected).strip()
        usage = {"type": "duration", "seconds": 2}
        assert ask(server, **fields).json() == {"text": text, "usage": usage}
        for form, body in (("text", f"{text}\n"), ("srt", None), ("vtt", None)):
            found = ask(server, response_format=form, **fields)
            assert found.headers["content-type"] == "text/plain; charset=utf-8"
            assert found.text == (body or "".join(WRITERS[form](expected, info.language, Layout())))
        verbose = ask(server, response_format="verbose_json", **fields).json()
        assert [segment.pop("id") for segment in verbose["segments"]] == list(range(len(expected)))
        for got, segment in zip(verbose["segments"], expected, strict=True):
            assert got == {name: getattr(segment, name) for name in got}
        assert len(verbose["segments"][0]) == 9
        assert (verbose["task"], verbose["language"]) == ("transcribe", LANGUAGES[info.language])
        assert (verbose["duration"], verbose["text"], verbose["usage"]) == (info.duration, text, usage)
    assert whisper.transcribe(path)[1].language in LANGUAGES
    translated = "".join(segment.text for segment in whisper.transcribe(path, "de", "translate")[0]).strip()
    assert ask(server, TRANSLATIONS, language="de").json()["text"] == translated
    assert ask(server, TRANSLATIONS, language="de", response_format="verbose_json").json()["task"] == "translate"


def test_times_of_words(server: Running, whisper: WhisperModel) -> None:
    segments, _ = whisper.transcribe(io.BytesIO(DATA), "en", word_timestamps=True)
    expected = [(word.word.strip(), word.start, word.end) for segment in segments for word in segment.words or ()]
    for granularities, has_segments in ((["word"], False), (["word", "segment"], True)):
        found = ask(server, response_format="verbose_json", **{GRANULARITIES: granularities}).json()
        assert [(word["word"], word["start"], word["end"]) for word in found["words"]] == expected
        assert ("segments" in found) == has_segments
    found = ask(server, response_format="verbose_json", timestamp_granularities="segment").json()
    assert "words" not in found
    assert found["segments"]


def test_streams(server: Running, gate: Gate) -> None:
    gate.passes.release(1000)
    whole = ask(server).json()
    found = ask(server, stream="True")
    assert found.headers["content-type"].startswith("text/event-stream")
    *events, done, end = found.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    *deltas, last = [json.loads(event.removeprefix("data: ")) for event in events]
    assert {event["type"] for event in deltas} == {"transcript.text.delta"}
    assert len(deltas) > 1
    assert "".join(event["delta"] for event in deltas) == whole["text"]
    assert last == {"type": "transcript.text.done", **whole}
    assert ask(server, stream="1", data=b"no sound").status_code == 400


def test_the_end_of_a_stream_that_fails(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    best_attempt, count = Transcriber.best_attempt, 0

    def failing(self: Transcriber, *arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise RuntimeError("a secret of the server")
        return best_attempt(self, *arguments)

    monkeypatch.setattr(Transcriber, "best_attempt", failing)
    found = ask(server, stream="true")
    assert found.status_code == 200
    assert "DONE" not in found.text
    error = json.loads(found.text.split("\n\n")[-2].removeprefix("data: "))["error"]
    assert error["type"] == "server_error"
    assert "secret" not in error["message"]
    monkeypatch.undo()
    assert ask(server).status_code == 200


# Fields: the status, the parameter, and words of the message.
REFUSED: list[tuple[str, dict[str, Any], int, str | None, str]] = [
    (TRANSLATIONS, {"model": "english"}, 400, "model", "model of English"),
    (TRANSCRIPTIONS, {"model": "english", "language": "de"}, 400, "language", "must be a code of the model (en)"),
    (TRANSCRIPTIONS, {"model": "other"}, 404, "model", "does not exist"),
    (TRANSCRIPTIONS, {"model": "embed"}, 400, "model", "of the kind embedding"),
    (TRANSCRIPTIONS, {"model": None}, 400, "model", "name one of"),
    (TRANSCRIPTIONS, {"language": "fr"}, 400, "language", 'got "fr"'),
    (TRANSCRIPTIONS, {"temperature": "1.1"}, 400, "temperature", "from 0 to 1"),
    (TRANSCRIPTIONS, {"temperature": "nan"}, 400, "temperature", "from 0 to 1"),
    (TRANSCRIPTIONS, {"temperature": "warm"}, 400, "temperature", "float"),
    (TRANSCRIPTIONS, {"temperature": ["0", "0"]}, 400, "temperature", "once"),
    (TRANSCRIPTIONS, {"response_format": "diarized_json"}, 400, "response_format", "must be one of json, text"),
    (TRANSCRIPTIONS, {"stream": "maybe"}, 400, "stream", "bool"),
    (TRANSCRIPTIONS, {"stream": "true", "response_format": "srt"}, 400, "stream", "json or text"),
    (TRANSLATIONS, {"stream": "true"}, 400, "stream", "not supported"),
    (TRANSCRIPTIONS, {GRANULARITIES: ["word"]}, 400, "timestamp_granularities", "verbose_json"),
    (
        TRANSCRIPTIONS,
        {GRANULARITIES: ["verse"], "response_format": "verbose_json"},
        *(400, "timestamp_granularities", "verse"),
    ),
    (TRANSCRIPTIONS, {"include[]": ["logprobs"]}, 400, "include", "not supported"),
    (TRANSCRIPTIONS, {"chunking_strategy": "auto"}, 400, "chunking_strategy", "not supported"),
    (TRANSCRIPTIONS, {"known_speaker_names[]": ["Anna"]}, 400, "known_speaker_names", "not supported"),
    (TRANSCRIPTIONS, {"prompt": "red " * 20_000}, 400, "prompt", "at most 65536 bytes"),
    (TRANSCRIPTIONS, {"data": b""}, 400, "file", "is empty"),
    (TRANSCRIPTIONS, {"data": b"no sound"}, 400, "file", "no package reads the file"),
    (TRANSCRIPTIONS, {"data": wav(4.5)}, 400, "file", "at most 4 s"),
    (TRANSCRIPTIONS, {"data": bytes(400_000)}, 413, None, "at most 300000 bytes"),
]


def test_refused_fields(server: Running, place: Path) -> None:
    for path, fields, status, param, words in REFUSED:
        found = ask(server, path, **fields)
        assert found.status_code == status, (fields, found.text)
        error = found.json()["error"]
        assert error["param"] == param, (fields, error)
        assert words in error["message"], (fields, error)
        assert str(place) not in error["message"]
    assert ask(server, chunking_strategy="", unknown="field").status_code == 200


def form(*parts: bytes, end: bytes = b"--x--\r\n") -> bytes:
    return b"".join(b"--x\r\n" + part + b"\r\n" for part in parts) + end


def part(name: str, value: bytes, more: str = "", headers: str = "") -> bytes:
    return f'Content-Disposition: form-data; name="{name}"{more}\r\n{headers}\r\n'.encode() + value


FILE, MODEL = part("file", DATA, '; filename="a.wav"'), part("model", b"many")
TYPE = "multipart/form-data; boundary=x"
BROKEN: list[tuple[str | None, bytes, int, str]] = [
    (TYPE, form(FILE, FILE, MODEL), 400, "file: must come once"),
    (TYPE, form(MODEL), 400, "file: must be there"),
    (TYPE, form(), 400, "file: must be there"),
    (TYPE, form(part("file", DATA[:999].replace(b"\x00", b"a").decode("latin-1").encode()), MODEL), 400, "not a text"),
    (TYPE, form(part("audio", DATA, '; filename="a"'), MODEL), 400, "the file is file"),
    (TYPE, form(FILE, MODEL, MODEL), 400, "model: must come once"),
    (TYPE, form(FILE, MODEL, end=b""), 400, "before its last boundary"),
    (TYPE, form(FILE, MODEL)[:-300], 400, "before its last boundary"),
    (TYPE, form(FILE)[:100], 400, "before its last boundary"),
    (TYPE, b"", 400, "before its last boundary"),
    (TYPE, b"--y\r\n" + form(FILE), 400, "damaged"),
    (TYPE, b"rubbish" * 99, 400, "damaged"),
    (TYPE, form(b"Content-Disposition: attachment\r\n\r\na", FILE), 400, "Content-Disposition"),
    (TYPE, form(b"Content-Disposition: form-data\r\n\r\na", FILE), 400, "Content-Disposition"),
    (TYPE, form(b"\r\na", FILE), 400, "Content-Disposition"),
    (TYPE, form(b"a" * 9000 + b": b\r\n\r\na", FILE), 400, "damaged"),
    (TYPE, form(*[b"".join(b"a%d: b\r\n" % i for i in range(99)) + b"\r\na"], FILE), 400, "damaged"),
    (TYPE, form(FILE, part("model", b"\xff\xfe")), 400, "model: must be text in UTF-8"),
    (TYPE, form(FILE, part("model", b"bWFueQ==", "", "Content-Transfer-Encoding: base64\r\n")), 400, "Encoding"),
    (TYPE, form(*[part(f"field{i}", b"") for i in range(70)], FILE), 400, "at most 64 fields"),
    ("multipart/form-data", form(FILE, MODEL), 400, "boundary"),
    ("multipart/form-data; boundary=", form(FILE, MODEL), 400, "boundary"),
    ("multipart/form-data; boundary=" + "x" * 999, form(FILE, MODEL), 400, "damaged"),
    ("multipart/mixed; boundary=x", form(FILE, MODEL), 415, "multipart/form-data"),
    ("application/json", b'{"model": "many"}', 415, "multipart/form-data"),
    (None, form(FILE, MODEL), 415, "multipart/form-data"),
]


def test_forms_of_every_kind(server: Running) -> None:
    for content_type, body, status, words in BROKEN:
        headers = {} if content_type is None else {"content-type": content_type}
        for sent in (body, [body[i : i + 1000] for i in range(0, len(body), 1000)]):  # also without a length
            content: Any = sent if isinstance(sent, bytes) else iter(sent)
            found = server.client.post(TRANSCRIPTIONS, content=content, headers=headers)
            assert found.status_code == status, (body[:99], found.text)
            assert words in found.json()["error"]["message"], (body[:99], found.text)
    whole = form(part("language", b"en"), MODEL, FILE) + b"an epilogue"
    found = server.client.post(
        TRANSCRIPTIONS, content=whole, headers={"content-type": 'multipart/form-data; boundary="x"'}
    )
    assert found.json() == ask(server).json()
    packed = server.client.post(
        TRANSCRIPTIONS, content=whole, headers={"content-type": TYPE, "content-encoding": "gzip"}
    )
    assert packed.status_code == 415
    assert server.client.post("/v1/embeddings", content=whole, headers={"content-type": TYPE}).status_code == 415


def test_a_full_disk(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkstemp", full)
    found = ask(server)
    assert (found.status_code, found.json()["error"]["code"]) == (503, "out_of_storage")


def test_recordings_take_turns_and_have_a_limit(server: Running, gate: Gate) -> None:
    engine = server.service.engines["many"]
    with ThreadPoolExecutor(4) as pool:
        long = pool.submit(ask, server)
        assert gate.entered.wait(LONG)
        short = pool.submit(ask, server, data=wav(0.3))
        third = pool.submit(ask, server)
        until(lambda: sum(engine.queued()) == 3)
        refused = ask(server)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert engine.waiting_seconds() >= SECONDS
        embedded = server.client.post("/v1/embeddings", json={"input": "the dog"})  # which no transcript holds up
        assert embedded.status_code == 200
        names = server.client.get("/metrics").text
        assert 'mha_native_audio_requests_running{model="many"}' in names
        assert 'mha_native_audio_left_seconds{model="many"}' in names
        gate.passes.release(1000)
        assert long.result(LONG).json() == third.result(LONG).json() == ask(server).json()
        assert short.result(LONG).status_code == 200
    assert gate.seeds[: gate.seeds.index(120)].count(0) == 3  # all have begun before the last window of the first
    listed = {entry["id"]: entry for entry in server.client.get("/v1/models").json()["data"]}
    assert listed["many"]["languages"] == ["de", "en"]


@pytest.mark.parametrize("stream", ["false", "true"])
def test_a_client_that_is_gone(server: Running, gate: Gate, stream: str) -> None:
    body = form(FILE, MODEL, part("language", b"en"), part("stream", stream.encode()))
    head = f"POST {TRANSCRIPTIONS} HTTP/1.1\r\nhost: a\r\ncontent-type: {TYPE}\r\ncontent-length: {len(body)}\r\n\r\n"
    port = httpx.URL(server.url).port
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(head.encode() + body)
        assert gate.entered.wait(LONG)
        if stream == "true":
            gate.passes.release(1)
            assert client.recv(1000)
    engine = server.service.engines["many"]
    until(lambda: server.service.num_recordings == 0)
    windows = len(gate.seeds)
    gate.passes.release(1)
    until(lambda: engine.queued() == (0, 0))
    assert len(gate.seeds) <= windows + 1  # the one that had begun
    gate.passes.release(1000)
    for cut in random.Random(7).sample(range(len(head), len(head) + len(body)), 20):  # also while the body comes
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall((head.encode() + body)[:cut])
        until(lambda: server.service.num_recordings == 0)
    until(lambda: ask(server).status_code == 200)  # not before the last clients are seen to be gone


def test_a_window_is_interrupted(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended, attempts = threading.Event(), threading.Event(), Transcriber.attempts

    def endless(self: Transcriber, *arguments: Any) -> Any:
        begun.set()
        try:
            while True:
                attempts(self, *arguments)
        finally:
            ended.set()

    monkeypatch.setattr(Transcriber, "attempts", endless)
    while not begun.is_set():
        assert late(server).status_code == 504
    assert ended.wait(LONG)
    monkeypatch.setattr(Transcriber, "attempts", attempts)
    assert ask(server).status_code == 200


def test_timeouts(server: Running, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = server.service.engines["many"]
    for fields in ({}, {"stream": "true"}):
        found = late(server, **fields)
        assert (found.status_code, found.json()["error"]["code"]) == (504, "timeout")
        gate.passes.release(1)
    until(lambda: engine.queued() == (0, 0))
    submit = engine.submit

    def submits_slowly(*given: Any) -> Any:
        request = submit(*given)
        time.sleep(0.2)
        return request

    monkeypatch.setattr(engine, "submit", submits_slowly)
    assert send_late(server, 0.1).status_code == 408
    gate.passes.release(1)
    until(lambda: engine.queued() == (0, 0))  # nobody waits for it


TEXTS = st.text("ab ré(\x00\U0001f600", max_size=9)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(["many", "english", "embed", "", "other"]) | TEXTS,
    "language": st.sampled_from(["en", "de", "", "english"]) | TEXTS,
    "prompt": TEXTS,
    "response_format": st.sampled_from(["json", "text", "srt", "vtt", "verbose_json", ""]) | TEXTS,
    "temperature": st.sampled_from(["0", "0.5", "1", "-1", "inf", "1e999", "0x1", ""]) | TEXTS,
    "stream": st.sampled_from(["true", "false", "1", "0", "null", ""]) | TEXTS,
    GRANULARITIES: st.sampled_from(["word", "segment", ""]) | TEXTS,
    "include[]": st.sampled_from(["logprobs"]) | TEXTS,
    "chunking_strategy": st.sampled_from(["auto", "", "{}"]),
    "[]": TEXTS,
}
SOUND = wav(0.3)


@matrix(count=nightly((150, 5000), quick=(150,)))
def test_every_form_is_answered(server: Running, count: int) -> None:
    seen: set[int] = set()
    named = [("model", "many"), ("language", "en")]

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @example(TRANSCRIPTIONS, named, "", 0)
    @example(TRANSCRIPTIONS, [*named, ("temperature", "-1")], "", 0)
    @example(TRANSCRIPTIONS, [("model", "other")], "", 0)
    @given(
        st.sampled_from([TRANSCRIPTIONS, TRANSLATIONS]),
        st.lists(st.sampled_from([*FIELDS]), max_size=4).flatmap(
            lambda names: st.tuples(*[st.tuples(st.just(name), FIELDS[name]) for name in names])
        ),
        st.sampled_from([*[""] * 6, "cut", "byte", "header"]),
        st.integers(0, 2**31),
    )
    def run(path: str, fields: Any, change: str, number: int) -> None:
        body = form(
            *[part("model", b"many"), part("language", b"en")][: 2 * (number % 3 > 0)],
            *[part(name, value.encode()) for name, value in fields],
            part("file", SOUND, '; filename="a.wav"'),
        )
        place = number % len(body)
        if change == "cut":
            body = body[:place]
        elif change == "byte":
            body = body[:place] + bytes([number % 256]) + body[place + 1 :]
        elif change == "header":
            body = body.replace(b'name="', [b"name=", b'name="\xff', b'name=""', b"file"][number % 4], 1)
        found = server.client.post(path, content=body, headers={"content-type": TYPE})
        seen.add(found.status_code)
        told = (path, body[:400], found.status_code, found.text[:300])
        if found.status_code == 200:
            assert "error" not in found.text, told
            return
        assert found.status_code in (400, 404), told
        error = found.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}, told
        for word in ("Traceback", "/python/", "mha_native", "Whisper", "msgspec"):
            assert word not in error["message"], told

    run()
    assert seen == {200, 400, 404}


def test_kinds_by_their_files(models: dict[str, Path], place: Path, tmp_path: Path) -> None:
    other = Config({"a": Model(models["many"], kind="speech"), "b": Model(models["english"], weight_dtype="int8")})
    with running(other) as found:
        entries = found.client.get("/v1/models").json()["data"]
        assert [(entry["kind"], entry["weight_dtype"]) for entry in entries] == [
            ("speech", "float32"),
            ("speech", "int8"),
        ]
        assert entries[0]["max_model_len"] is None
        assert found.client.get("/info").json()["error"].startswith("This server has no model of the kind")
    for settings_of, words in (
        (Model(models["many"], dtype="bfloat16"), "dtype must be float32"),
        (Model(models["embed"], kind="speech"), "model_type must be 'whisper'"),
        (Model(tiny_multi_vector.write_colbert(tmp_path / "colbert")), "this one is multi-vector embedding"),
    ):
        with pytest.raises(ValueError, match=words):
            asyncio.run(_open(settings_of))
    with pytest.raises(ValueError, match="max_recordings"):
        Config({"a": models["many"]}, max_recordings=0)


async def _open(model: Model) -> None:
    from mha_native.server.engines import open_engine

    config = Config({"a": model})
    open_engine("a", config.model("a"), config, asyncio.get_running_loop())
