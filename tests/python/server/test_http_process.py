"""The command serve: its first line, its socket, its signals and its exit codes."""

from __future__ import annotations

import dataclasses
import gc
import os
import platform
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("httpx")

import httpx
import tiny_bert
from http_server import SECONDS, until

from mha_native.__main__ import main
from mha_native.commands.serve import OPTIONS
from mha_native.server import Config
from mha_native.server.process import _settle, listening


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


def has_said(process: subprocess.Popen[str], words: str) -> bool:
    """Return whether some words are in the log of a process, which goes on to write it."""
    assert process.stderr is not None
    return words in os.pread(process.stderr.fileno(), 1 << 20, 0).decode()


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    assert process.stdout is not None
    assert process.stderr is not None
    code = process.wait(SECONDS)
    with process.stdout, process.stderr as log:
        log.seek(0)
        return code, log.read()


def test_a_model_that_has_ended_is_collected_and_the_others_are_never_gone_through() -> None:
    class Part:
        itself: Part

    gc.unfreeze()
    try:
        part = Part()
        part.itself = part
        alive = weakref.ref(part)
        del part
        _settle()  # the first one, after the models were opened
        assert alive() is None
        assert gc.get_freeze_count() > 10_000
        part = Part()
        part.itself = part
        _settle()  # as if `part` were a model of the server
        alive = weakref.ref(part)
        del part
        gc.collect()
        assert alive() is not None
        _settle()
        assert alive() is None
    finally:
        gc.unfreeze()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library has no malloc_trim")
def test_memory_of_a_model_that_has_ended_goes_back_to_the_system() -> None:
    blocks = [b"a" * (64 << 10) for _ in range(2000)]
    last = blocks.pop()  # after all others in memory, which the C library therefore keeps
    del blocks
    before = _resident_pages()
    try:
        _settle()
    finally:
        gc.unfreeze()
    assert (before - _resident_pages()) * os.sysconf("SC_PAGE_SIZE") > 100e6
    del last


def _resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


def test_every_request_is_answered_around_sigterm(model: Path) -> None:
    process = start("--port", "0", "--log-format", "json", MHA_NATIVE_SERVE_MODEL=f"mine={model}")
    ready, url, names = first_line(process).split()
    assert (ready, names) == ("ready", "models=mine")
    seen: Counter[Any] = Counter()

    def load() -> None:
        with httpx.Client(base_url=url, timeout=SECONDS, trust_env=False) as client:
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
    until(lambda: seen[200] > 10)
    process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join(SECONDS)
    code, err = end(process)
    assert (code, set(seen) <= {200, 503}) == (0, True), (seen, err)
    assert '"path":"/v1/embeddings","status":200' in err
    assert "the dog" not in err


def test_metrics_on_a_port_of_their_own(model: Path) -> None:
    process = start("--port", "0", "--metrics-port", "0", "--metrics-compat", "vllm", "--model", f"mine={model}")
    ready, url, _, place = first_line(process).split()
    assert ready == "ready"
    with httpx.Client(trust_env=False, timeout=SECONDS) as client:
        assert client.post(f"{url}/embed", json={"inputs": "a"}).status_code == 200
        found = client.get(place.removeprefix("metrics="))
        assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert 'mha_native_http_requests_total{path="/embed",status="200"} 1.0' in found.text
        assert "\n# TYPE vllm:time_to_first_token_seconds" in found.text
        assert "\n# TYPE te_" not in found.text
        other = place.removeprefix("metrics=").removesuffix("/metrics")
        assert other != url
        for address in (f"{url}/metrics", f"{other}/health", f"{other}/v1/models", f"{other}/"):
            assert client.get(address).status_code == 404
        assert client.post(f"{other}/embed", json={"inputs": "a"}).status_code == 404
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 0


def test_a_socket_of_one_user(model: Path, tmp_path: Path) -> None:
    place = tmp_path / "socket"
    process = start("--model", str(model), "--unix-socket", str(place))
    assert first_line(process) == f"ready unix:{place} models=tiny"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    transport = httpx.HTTPTransport(uds=str(place))
    with httpx.Client(transport=transport, base_url="http://server", timeout=SECONDS) as client:
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


def _certificate(place: Path) -> tuple[Path, Path]:
    command = shutil.which("openssl") or pytest.skip("needs the program openssl")
    certificate, key = place / "certificate.pem", place / "key.pem"
    subprocess.run(
        [command, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


def test_a_file_of_options_that_is_read_again(model: Path, tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path)
    keys, settings = tmp_path / "keys", tmp_path / "serve.toml"
    keys.write_text("one\n")
    content = f"""
        port = 1
        max-inputs = 3
        api_key_file = "{keys}"
        tls_certificate = "{certificate}"
        tls_key = "{key}"
        drain-delay = 3
        keep_going = true
        [aliases]
        text-embedding-3-small = "first"
        [models]
        missing = "/nowhere/model"
        [models.first]
        path = "{model}"
        weight_dtype = "int8"
    """.replace("max-inputs", "max_inputs").replace("drain-delay", "drain_delay")
    settings.write_text(content)
    process = start("--config", str(settings), "--port", "0", MHA_NATIVE_SERVE_MAX_INPUTS="2")
    ready, url, names = first_line(process).split()
    assert (ready, names) == ("ready", "models=first")
    assert url.startswith("https://127.0.0.1:")
    own = ssl.create_default_context(cafile=str(certificate))
    with httpx.Client(base_url=url, verify=own, trust_env=False, timeout=SECONDS) as client:

        def status(key: str, **body: object) -> int:
            headers = {"authorization": f"Bearer {key}"}
            found = client.post("/v1/embeddings", json={"input": "a", **body}, headers=headers).status_code
            return int(found)

        assert status("one", model="text-embedding-3-small") == 200
        assert status("one", input=["a"] * 3) == 400  # the environment counts before the file
        settings.write_text("models = 3")
        process.send_signal(signal.SIGHUP)
        until(lambda: has_said(process, "was not read again"))
        assert status("one") == 200
        settings.write_text(
            content.replace("int8", "float32")
            .replace("[models.first]", "[models.second]")
            .replace('"first"', '"second"')
        )
        keys.write_text("two\nthree\n")
        process.send_signal(signal.SIGHUP)
        until(lambda: status("two", model="second") == 200)
        assert (status("one"), status("three", model="first")) == (401, 404)
        process.send_signal(signal.SIGTERM)
        until(lambda: client.get("/ready").status_code == 503)
        assert status("two") == 200  # for the time of drain_delay
    code, err = end(process)
    assert code == 0
    assert "missing could not be opened" in err


# The content of a file, and words of the message.
FILES = [
    ("prot = 1", "prot is not known; did you mean port?"),
    ("api-key = ['a']", "did you mean api_key?"),
    ("zzz = 1", "known keys are"),
    ("port = [1]", "port: must be a single value"),
    ("port = 'x'", "port: must be an integer"),
    ("keep_going = 'maybe'", "keep_going: must be true or false"),
    ("api_key = 'a'", "api_key: must be a list"),
    ("dtype = 'int3'", "dtype: must be one of"),
    ("models = ['a']", "models must be a table"),
    ("models.a = 1", "models.a: must be a path, or a table"),
    ("models.a.paht = 'b'", "did you mean path?"),
    ("models.a.kind = 'embedding'", "must have the key path"),
    ("models.a = {path = 'b', kind = 'x'}", "kind must be one of embedding"),
    ("a = ", "is not valid TOML"),
    ("models.a = 'b'\naliases.c = 'd'", "aliases must name models, a"),
    ("models.a = 'b'\ntls_key = 'c'", "need each other"),
    ("models.a = 'b'\ntls_key = 'c'\ntls_certificate = 'd'", "No such file"),
    ("models.a = 'b'\nroot_path = 'c'", "root_path"),
]


def test_files_that_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "serve.toml"
    for content, words in FILES:
        path.write_text(content)
        assert main(["serve", "--port", "0", "--config", str(path)]) == 2
        assert words in (err := capfd.readouterr().err), (content, err)
        assert "Traceback" not in err


def test_every_option_is_in_the_document() -> None:
    text = (Path(__file__).parents[3] / "docs" / "serve.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.partition("## Options")[2].splitlines() if line.startswith("| `--")]
    flags = [row[1].strip().strip("`").split()[0] for row in rows]
    assert flags == [option.flag for option in OPTIONS]
    fields = {name.strip().strip("`") for row in rows for name in row[2].split(",") if name.strip() != "-"}
    assert fields == {field.name for field in dataclasses.fields(Config)}
    for row, option in zip(rows, OPTIONS, strict=True):
        shown = row[3].strip().strip("`").replace(",", "")
        assert shown == ("-" if option.default in (None, False, "") else str(option.default)), row


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
