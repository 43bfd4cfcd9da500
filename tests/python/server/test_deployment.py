"""The files of examples/serve: what can be tried on one machine."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
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
from http_server import SECONDS, Running, running, until

from mha_native.commands import serve
from mha_native.server import Config
from mha_native.serving._paged_caches import PagedCaches

FILES = Path(__file__).resolve().parents[3] / "examples" / "serve"
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in FILES.iterdir() if path.is_file()}


def test_options_are_those_of_the_command() -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    serve.add_arguments(parser)
    unit = re.search(r"^ExecStart=\S+ -m mha_native serve (.+)$", TEXTS["mha-native-serve.service"], re.M)
    pod = re.search(r"^ +args: \[(.+)\]$", TEXTS["kubernetes.yaml"], re.M)
    assert unit is not None
    assert pod is not None
    grace = [parser.parse_args(given).grace for given in (unit[1].split(), re.sub('[",]', "", pod[1]).split())]
    limits = [
        re.search(rf"{name}(\d+)", text)
        for name, text in (
            ("TimeoutStopSec=", TEXTS["mha-native-serve.service"]),
            ("terminationGracePeriodSeconds: ", TEXTS["kubernetes.yaml"]),
        )
    ]
    assert all(limit is not None and int(limit[1]) > 5 + seconds for limit, seconds in zip(limits, grace, strict=True))
    names = {action.dest.upper() for action in parser._actions}
    for name, text in TEXTS.items():
        assert set(re.findall(r"MHA_NATIVE_SERVE_(\w+)", text)) - {"MODELS"} <= names, name


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_the_unit_of_systemd(tmp_path: Path) -> None:
    unit = tmp_path / "mha-native-serve.service"
    unit.write_text(TEXTS[unit.name].replace("/opt/mha-native/bin/python", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_objects_of_kubernetes() -> None:
    kubernetes = pytest.importorskip("kubernetes.client", exc_type=ImportError)
    yaml = pytest.importorskip("yaml")
    deployment, service = yaml.safe_load_all(TEXTS["kubernetes.yaml"])
    for given, kind in ((deployment, "V1Deployment"), (service, "V1Service")):
        _check_fields(kubernetes, given, kind)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["startupProbe"]["httpGet"]["path"] == container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]


def _check_fields(kubernetes: Any, given: Any, kind: str) -> None:
    """Raise AssertionError for a field that the class `kind` of the client lacks, or that has another type."""
    if (listed := re.fullmatch(r"[Ll]ist\[(.+)\]", kind)) is not None:
        assert isinstance(given, list), (kind, given)
        for item in given:
            _check_fields(kubernetes, item, listed[1])
    elif hasattr(kubernetes, kind):
        own = getattr(kubernetes, kind)
        names = {public: name for name, public in own.attribute_map.items()}
        for field, value in given.items():
            assert field in names, f"{kind} has no field {field}"
            _check_fields(kubernetes, value, own.openapi_types[names[field]])
    else:
        assert kind in ("str", "int", "bool", "object") or re.match("[Dd]ict", kind), (kind, given)
    if kind in ("str", "int", "bool"):
        assert isinstance(given, {"str": str, "int": int, "bool": bool}[kind]), (kind, given)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(Config(served_models.write(tmp_path_factory.mktemp("models")))) as found:
        yield found


@pytest.fixture
def proxy(server: Running, tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of nginx, which leads to the server, and to another one that has ended."""
    if shutil.which("nginx") is None or shutil.which("openssl") is None:
        pytest.skip("needs nginx and openssl")
    upstream = server.url.removeprefix("http://")
    with socket.socket() as ended, socket.socket() as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as nginx does, which listens there, too
        for each in (ended, own):
            each.bind(("127.0.0.1", 0))  # for nobody else, as long as it is open
        nobody, port = (each.getsockname()[1] for each in (ended, own))
        text = TEXTS["nginx.conf"].replace("127.0.0.1:8443", f"127.0.0.1:{port}")
        text = text.replace("server 127.0.0.1:8080;", f"server 127.0.0.1:{nobody}; server {upstream};")
        (tmp_path / "nginx.conf").write_text(text)
        names = ["-keyout", "key.pem", "-out", "certificate.pem", "-subj", "/CN=localhost"]
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names],
            cwd=tmp_path, check=True, capture_output=True,
        )  # fmt: skip
        command = ["nginx", "-p", str(tmp_path), "-c", "nginx.conf", "-e", "stderr"]
        tested = subprocess.run([*command, "-t"], capture_output=True, text=True)
        assert tested.returncode == 0, tested.stderr
        with open(tmp_path / "log", "w") as log:
            process = subprocess.Popen([*command, "-g", "daemon off;"], stderr=log)
        address = f"https://127.0.0.1:{port}"
        try:
            with httpx.Client(base_url=address, verify=False, trust_env=False, timeout=SECONDS) as client:
                until(lambda: _listens(client))
                yield client
        finally:
            process.terminate()
            process.wait(SECONDS)


def _listens(client: httpx.Client) -> bool:
    try:
        client.get("/health")
    except httpx.ConnectError:
        return False
    return True


def test_nginx_passes_streams_as_they_come(
    server: Running, proxy: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proxy.post("/v1/embeddings", json={"input": "the dog"}).json() == (
        server.client.post("/v1/embeddings", json={"input": "the dog"}).json()
    )
    engine = server.service.engines["text"]
    read, steps, is_open = PagedCaches.read, itertools.count(), threading.Event()

    def waiting(*arguments: Any) -> Any:
        assert next(steps) < 3 or is_open.wait(SECONDS)
        return read(*arguments)

    monkeypatch.setattr(PagedCaches, "read", waiting)
    body = {"prompt": "a", "max_tokens": 350, "ignore_eos": True, "stream": True, "temperature": 0}
    with proxy.stream("POST", "/v1/completions", json=body) as answer:
        lines = (line for line in answer.iter_lines() if line)
        first = next(lines)
        assert engine.queued() == (0, 1)  # it is computed still
        is_open.set()
        rest = list(lines)
    assert rest[-1] == "data: [DONE]"
    pieces = [json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in (first, *rest[:-1])]
    expected = server.client.post("/v1/completions", json=body | {"stream": False}).json()
    assert "".join(pieces) == expected["choices"][0]["text"]
    with proxy.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
    # nginx tells the server that its client is gone.
    until(lambda: not server.application.calls and engine.queued() == (0, 0))
    large = proxy.post("/v1/embeddings", content=b"a" * 2_200_000)
    assert large.status_code == 413
