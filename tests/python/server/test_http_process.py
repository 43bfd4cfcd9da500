"""The command serve: its first line, its socket, its signals and its exit codes."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("httpx")

import http_server  # noqa: F401  skips without the packages of a server
import httpx
import tiny_bert

from mha_native.server.process import listening


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert.write(tmp_path_factory.mktemp("model") / "tiny")


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mha_native", "serve", *arguments]
    log: Any = tempfile.TemporaryFile("w+")  # noqa: SIM115  a pipe that nobody reads would block the server
    own = {**os.environ, **environment}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=own)
    process.stderr = log
    return process


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    assert process.stdout is not None
    assert process.stderr is not None
    code = process.wait(20)
    with process.stdout, process.stderr as log:
        log.seek(0)
        return code, log.read()


def test_every_request_is_answered_around_sigterm(model: Path) -> None:
    process = start("--port", "0", "--log-format", "json", MHA_NATIVE_SERVE_MODEL=f"mine={model}")
    ready, url, names = first_line(process).split()
    assert (ready, names) == ("ready", "models=mine")
    seen: Counter[Any] = Counter()

    def load() -> None:
        with httpx.Client(base_url=url, timeout=20, trust_env=False) as client:
            while True:
                try:
                    found = client.post("/v1/embeddings", json={"input": ["the dog"] * 20})
                except httpx.ConnectError:  # nobody listens any more
                    return
                seen[found.status_code] += 1
                if found.status_code != 200:
                    assert found.headers["connection"] == "close"
                    return

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join(20)
    code, err = end(process)
    assert (code, set(seen) <= {200, 503}) == (0, True), (seen, err)
    assert seen[200] > 10
    assert '"path":"/v1/embeddings","status":200' in err
    assert "the dog" not in err


def test_a_socket_of_one_user(model: Path, tmp_path: Path) -> None:
    place = tmp_path / "socket"
    process = start("--model", str(model), "--unix-socket", str(place))
    assert first_line(process) == f"ready unix:{place} models=tiny"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(place)), base_url="http://server") as client:
        assert len(client.post("/embed", json={"inputs": "a"}).json()) == 1
    assert (again := end(start("--model", str(model), "--unix-socket", str(place))))[0] == 2
    assert "another server listens there" in again[1]
    process.send_signal(signal.SIGKILL)
    end(process)
    assert place.exists()
    process = start("--model", str(model), "--unix-socket", str(place))  # takes the place of the dead one
    assert first_line(process).startswith("ready")
    process.send_signal(signal.SIGINT)
    assert end(process)[0] == 0
    assert not place.exists()


def test_answers_do_not_wait_for_packets_to_fill() -> None:
    with listening(("127.0.0.1", 0)) as (listener, url):
        place = url.removeprefix("http://").split(":")
        with socket.create_connection((place[0], int(place[1]))), listener.accept()[0] as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "/nowhere/model"], "/nowhere/model"),
        (["--port", "x", "--model", "a"], "65535"),
        ([], "--model is required"),
        (["--model", "b/a", "--model", "c/a"], "two models have the name a"),
    ],
)
def test_mistakes_of_the_user(arguments: list[str], words: str) -> None:
    code, err = end(start("--port", "0", *arguments) if "--port" not in arguments else start(*arguments))
    assert code == 2, err
    assert words in err
    assert "Traceback" not in err
