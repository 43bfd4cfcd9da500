"""Clients that send slowly, read slowly, leave or send nonsense; a log that nobody reads; signals."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("httpx")

import httpx
import tiny_bert
import tiny_language_model
import uvicorn
from http_server import SECONDS, Running, running, served, until

from mha_native.models import CausalLM
from mha_native.server import Config, calls, connections, engines
from mha_native.server.application import Application
from mha_native.server.calls import Answer, Call, ClientGone
from mha_native.serving import Batcher
from mha_native.serving._paged_caches import PagedCaches

BODY = b'{"input": "a dog"}'
HEAD = b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\n"
REQUEST = HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert.write(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Running]:
    with running(Config({"tiny": model}, max_body_bytes=20_000, max_inputs=8)) as found:
        yield found


def connect(url: str, data: bytes = b"") -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=SECONDS)
    connection.sendall(data)
    return connection


def rest(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection, which it may do at once."""
    parts = []
    with connection, contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def ask(connection: socket.socket) -> int:
    """Send a request, take the whole answer, and return its status."""
    connection.sendall(REQUEST)
    head, body = b"", b""
    while b"\r\n\r\n" not in head:
        head += _received(connection)
    head, _, body = head.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length:
        body += _received(connection)
    return status(head)


def _received(connection: socket.socket) -> bytes:
    part = connection.recv(65536)
    assert part, "the server has closed the connection"
    return part


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_slow_senders_are_cut_off(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)
    monkeypatch.setattr(calls, "_BODY_SECONDS", 0.2)
    cut = {
        HEAD: 408,
        b"P": 408,
        HEAD + b"X: " + 20_000 * b"a": 431,
        HEAD + b"Content-Length: 9\r\n\r\n{": 408,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n": 408,
    }
    open_ones = {sent: connect(server.url, sent) for sent in cut}
    again = connect(server.url)  # after an answer, the time of headers begins with the next byte
    assert ask(again) == 200
    time.sleep(0.3)
    again.sendall(b"P")
    with connect(server.url) as other:
        assert ask(other) == 200  # which is sent at once
    for sent, expected in cut.items():
        assert status(rest(open_ones[sent])) == expected, sent
    assert status(rest(again)) == 408


def test_a_client_that_takes_no_data_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):  # more than the system takes
            await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
        ended.set()  # without a client, `send` does nothing

    monkeypatch.setattr(connections, "STALLED_SECONDS", 0.2)
    with served(application, "off") as (url, _):
        begin = time.monotonic()
        connection = connect(url, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert ended.wait(SECONDS)
        assert time.monotonic() - begin > 0.2
        assert len(rest(connection)) < 1000 << 16


def test_a_client_of_two_requests_that_leaves_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """uvicorn tells the second request alone, and the connection of uvloop refuses the rest of the first answer."""
    uvloop = pytest.importorskip("uvloop")
    application, state = Application(Config({"a": "a"})), uvicorn.server.ServerState()

    async def run() -> None:
        left = asyncio.Event()

        async def late(scope: Any, receive: Any, send: Any) -> None:
            async def send_later(message: Any) -> None:
                await left.wait()
                await asyncio.sleep(0.05)
                await send(message)

            await application(scope, receive, send_later)

        config = uvicorn.Config(late, http=connections.LimitedProtocol, lifespan="off", log_config=None)
        config.load()
        listener = await asyncio.get_running_loop().create_server(
            lambda: connections.LimitedProtocol(config, state, {}), "127.0.0.1", 0
        )
        async with listener:
            _, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
            # The answer does not wait for the body, whose rest the server reads before it ends the answer.
            writer.write(b"POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na")
            writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            while not application.calls:
                await asyncio.sleep(0.01)
            writer.close()
            await writer.wait_closed()
            left.set()
            while application.calls or state.tasks:
                await asyncio.sleep(0.01)

    uvloop.run(asyncio.wait_for(run(), 20))
    assert not caplog.records


def test_a_stream_that_stands_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_SENT_SECONDS", 0.05)
    stopped: list[str] = []

    async def pieces() -> Any:
        yield b"data: a\n\n"
        yield b"data: b\n\n"

    async def send(message: dict[str, Any]) -> None:
        if message.get("body") == b"data: b\n\n":
            await asyncio.sleep(20)

    async def run() -> None:
        scope = {"type": "http", "method": "POST", "headers": [], "query_string": b""}
        call = Call(scope, asyncio.Queue[Any]().get, send, Config({"a": "a"}), False)
        call.cancel_by(lambda: stopped.append(str(call.why_stopped)))
        with pytest.raises(ClientGone):
            await call.send(Answer(pieces()))
        call.end()
        await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(run(), 15))
    assert stopped == ["slow_client"]


def test_idle_connections_cost_little(server: Running) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(2000, (hard - 300) // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * count + 300), hard))
    try:
        before = memory(os.getpid())
        idle = [connect(server.url) for _ in range(count)]
        until(lambda: num_files() >= 2 * count)  # the server has taken them
        begin, used = time.monotonic(), time.process_time()
        assert server.client.post("/v1/embeddings", content=BODY).status_code == 200
        assert time.monotonic() - begin < 5
        assert time.process_time() - used < 1  # of this process; others may take the processor for longer
        assert memory(os.getpid()) - before < 50_000  # both ends, in kB
        for connection in idle[::100]:  # each still works
            assert ask(connection) == 200
        for connection in idle:
            connection.close()
        until(lambda: num_files() < min(count, soft))  # the limit below includes the files of the server
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_over_the_limit_are_refused(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [connect(server.url) for _ in range(3)]
    assert [ask(connection) for connection in kept] == [200] * 3
    monkeypatch.setattr(connections.LimitedProtocol, "most", 3)
    assert status(rest(connect(server.url, REQUEST))) == 503
    assert [ask(connection) for connection in kept] == [200] * 3
    for connection in kept:
        connection.close()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert 1 <= connections.most_connections() < resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def num_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def memory(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4


def nonsense(seed: int) -> bytes:
    """A request that is none, or whose body is none."""
    rng = random.Random(seed)
    deep = "[" * 10_000
    bodies = [b"", b"{", b"\xff\xfe", b"[]", b"null", b'{"input": NaN}', b'{"input": 1e999}', deep.encode(), BODY[:-3]]
    inputs: list[Any] = [None, 3, [], [[]], ["a", 3], {"a": "b"}, "", [""] * 9]
    bodies += [json.dumps({"input": each}).encode() for each in inputs]
    bodies += [b'{"input": "a", "dimensions": %s}' % each for each in (b"0", b"-1", b'"a"', b"1e400", b"[]")]
    bodies.append(bytes(rng.randrange(256) for _ in range(rng.randrange(200))))
    body = rng.choice(bodies)
    path = rng.choice([b"/v1/embeddings", b"/embed", b"/rerank", b"/v1/chat/completions", b"/\x00", b"/%ff", b"/../x"])
    head = b"POST %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n" % path
    forms = [
        head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body),
        head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body),
        head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        head + b"Content-Length: -1\r\n\r\n",
        head + b"Content-Length: 99999999\r\n\r\n",
        head + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        bytes(rng.randrange(256) for _ in range(rng.randrange(1, 300))),
    ]
    return rng.choice(forms)


def test_nonsense_gets_a_status_below_500(server: Running) -> None:
    for seed in range(150):
        sent = nonsense(seed)
        connection = connect(server.url, sent)
        with contextlib.suppress(OSError):  # the server may have ended it by now
            connection.shutdown(socket.SHUT_WR)
        answer = rest(connection)
        assert not answer or 400 <= status(answer) < 500, (sent, answer)
        assert b"Traceback" not in answer
    assert server.client.post("/v1/embeddings", content=BODY).status_code == 200


def test_disconnects_at_random_points(server: Running) -> None:
    rng = random.Random(5)
    many = json.dumps({"input": ["a dog"] * 8}).encode()
    whole = HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(many), many)
    for _ in range(60):
        with connect(server.url, whole[: rng.randrange(1, len(whole) + 1)]) as connection:
            time.sleep(rng.choice([0, 0, 0.001]))
            if rng.random() < 0.5:  # a reset instead of an end
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert server.client.post("/v1/embeddings", content=BODY).status_code == 200  # taken after all of them
    until(lambda: not server.application.calls and server.service.engines["tiny"].queued() == (0, 0))


def test_texts_without_pages_and_steps_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2")
    home = tiny_language_model.write(tmp_path / "text", n_positions=400)
    alone = CausalLM.from_pretrained(home)
    monkeypatch.setattr(engines, "Batcher", partial(Batcher, num_pages=3))
    prompts = ["a" * n for n in (3, 40, 100, 150)]
    with running(Config({"text": home}, max_waiting=6)) as server, ThreadPoolExecutor(4) as pool:

        def ask(prompt: str, tokens: int = 20) -> httpx.Response:
            body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
            return server.client.post("/v1/completions", json=body)

        expected = [alone.generate(prompt, max_new_tokens=20, ignore_eos=True) for prompt in prompts]
        found = list(pool.map(ask, prompts))  # which together need more pages than there are
        assert [each.json()["choices"][0]["text"] for each in found] == expected
        too_long = ask("a" * 199, 1)
        assert (too_long.status_code, too_long.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert "pages" in too_long.json()["error"]["message"]
        for error, code in ((MemoryError(), 503), (RuntimeError("/home/secret"), 500)):
            with monkeypatch.context() as patch:
                patch.setattr(PagedCaches, "read", _raising(error))
                failed = ask("a")
            assert failed.status_code == code
            assert "secret" not in failed.text
        assert ask(prompts[0]).json()["choices"][0]["text"] == expected[0]
        engine: Any = server.service.engines["text"]
        until(lambda: not engine.batcher.statistics.used_pages)


def test_a_language_model_that_is_opened_again_leaves_memory(tmp_path: Path) -> None:
    home = tiny_language_model.write(tmp_path / "text", n_positions=100)
    with running(Config({"text": home})) as server:
        old = weakref.ref(server.service.engines["text"])
        body = {"prompt": "a", "max_tokens": 3, "stream": True}
        assert server.client.post("/v1/completions", json=body).status_code == 200
        opened = server.service.open("text", server.service.config.model("text"))
        asyncio.run_coroutine_threadsafe(opened, server.loop).result(SECONDS)
        until(lambda: gc.collect() >= 0 and old() is None)


def _raising(error: Exception) -> Any:
    def read(*_: Any) -> None:
        raise error

    return read


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    command = [sys.executable, "-m", "mha_native", "serve", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as found:
        assert found.stdout is not None
        try:
            yield found, found.stdout.readline().split()[1].decode()
        finally:
            found.kill()


def test_a_log_that_nobody_reads(model: Path) -> None:
    with process("--model", str(model), "--log-format", "json") as (server, url):
        with connect(url) as connection:
            for _ in range(800):  # of some 200 bytes in the log; a pipe holds 65,536
                assert ask(connection) == 200
        server.send_signal(signal.SIGTERM)
        assert server.wait(SECONDS) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_texts_become_tokens_in_the_thread_that_asks(model: Path) -> None:
    """The loop does not wait for threads of the package tokenizers, which get no processor while models compute."""
    with process("--model", str(model)) as (server, url):
        threads = Path(f"/proc/{server.pid}/task")
        with connect(url) as connection:
            assert ask(connection) == 200
            before = len(list(threads.iterdir()))
            many = b'{"input": ["a dog", "a cat", "the dog", "the cat"]}'
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(many), many))
            assert status(connection.recv(65536)) == 200
            assert len(list(threads.iterdir())) == before


def test_a_request_is_no_garbage(server: Running) -> None:
    """Requests leave no cycles: a full server refuses many, and would grow until they are collected."""
    found: list[weakref.ref[Call]] = []
    with pytest.MonkeyPatch.context() as patch:
        begin = Call.__init__

        def seen(call: Call, *arguments: Any) -> None:
            begin(call, *arguments)
            found.append(weakref.ref(call))

        patch.setattr(Call, "__init__", seen)
        gc.disable()
        try:
            for body in (
                b"{",
                b'{"input": ""}',
                b'{"input": "a", "model": "x"}',
                b'{"input": "a", "prompt_name": "x"}',
            ):
                assert 400 <= server.client.post("/v1/embeddings", content=body).status_code < 500
            assert server.client.post("/v1/embeddings", json={"input": "a"}).status_code == 200
            assert server.client.get("/nowhere").status_code == 404
            until(lambda: not any(call() for call in found[:-1]))  # the last one is the one of the connection
        finally:
            gc.enable()
    assert len(found) == 6


def test_a_second_signal_ends_at_once(model: Path) -> None:
    def ends() -> float:
        """Seconds from the second signal to the end."""
        with process("--model", str(model)) as (server, url):
            slow = connect(url, HEAD + b"Content-Length: 9\r\n\r\n{")  # a request that is not complete
            server.send_signal(signal.SIGTERM)
            until(lambda: status(rest(connect(url, b"GET /ready HTTP/1.0\r\n\r\n"))) == 503)
            begin = time.monotonic()
            server.send_signal(signal.SIGTERM)
            server.wait(SECONDS)
            slow.close()
            return time.monotonic() - begin

    assert any(ends() < 3 for _ in range(3))  # other processes may take the processor for longer
