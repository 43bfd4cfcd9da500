"""Traces of requests: their spans, the trace of the client, and the variables that ask for them."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("jinja2")
pytest.importorskip("httpx")
pytest.importorskip("opentelemetry.sdk")

import httpx
import served_models
from http_server import SECONDS, Running, running
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mha_native.server import Config, tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return served_models.write(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture(scope="module")
def server(models: dict[str, Path], exporter: InMemorySpanExporter) -> Iterator[Running]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "get_tracer_provider", lambda: provider)  # as if the program had set it
        with running(Config(models)) as found:
            yield found


def spans(server: Running, exporter: InMemorySpanExporter) -> tuple[Any, list[Any]]:
    """The span of the last request, and those of its parts in their order."""
    server.client.get("/health")  # has no span, and ends after the request
    *parts, whole = exporter.get_finished_spans()
    exporter.clear()
    assert all(part.parent.span_id == whole.context.span_id for part in parts)
    for part in parts:
        assert whole.start_time <= part.start_time <= part.end_time <= whole.end_time
    return whole, parts


def test_spans_of_requests(server: Running, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture) -> None:
    exporter.clear()
    asked = {"input": ["the dog", "a cat"], "model": "embed"}
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    with caplog.at_level(logging.INFO, "mha_native.server"):
        server.client.post("/v1/embeddings", json=asked, headers=headers)
        whole, parts = spans(server, exporter)
    assert [part.name for part in parts] == ["tokenize", "queue", "model"]
    assert (whole.name, whole.kind) == ("POST /v1/embeddings", trace.SpanKind.SERVER)
    assert format(whole.context.trace_id, "032x") == TRACE
    assert format(whole.parent.span_id, "016x") == PARENT
    assert [record.fields["trace_id"] for record in caplog.records if hasattr(record, "fields")] == [TRACE]  # type: ignore[attr-defined]
    assert whole.attributes["http.response.status_code"] == 200
    assert whole.attributes["mha_native.model"] == "embed"
    assert whole.attributes["mha_native.inputs"] == 2
    assert not any("dog" in str(value) for value in whole.attributes.values())
    body = {"model": "text", "prompt": "the", "max_tokens": 3}
    for stream in (False, True):
        server.client.post("/v1/completions", json={**body, "stream": stream})
        whole, parts = spans(server, exporter)
        assert [part.name for part in parts] == ["queue", "model"]
        assert whole.parent is None
        assert whole.attributes["http.route"] == "/v1/completions"


def test_spans_of_failures(server: Running, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter.clear()
    server.client.get("/v1/none/secret")
    assert spans(server, exporter)[0].name == "GET other"  # no path of the client is a name
    server.client.post("/v1/embeddings", json={"input": 5}, headers={"traceparent": "rubbish"})
    whole, parts = spans(server, exporter)
    assert (whole.attributes["http.response.status_code"], whole.status.status_code, parts) == (
        *(400, trace.StatusCode.UNSET, []),
    )

    def fails(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("no memory of this")

    monkeypatch.setattr(server.service.engines["embed"].batcher, "submit", fails)
    server.client.post("/v1/embeddings", json={"input": "a"})
    whole, _ = spans(server, exporter)
    assert (whole.status.status_code, whole.attributes["error.type"]) == (trace.StatusCode.ERROR, "500")


def test_variables(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)  # no program has set one
    assert tracing.open_tracing() is None
    place = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    for variables in (
        [place, ("OTEL_SDK_DISABLED", "true")],
        [place, ("OTEL_TRACES_EXPORTER", "none")],
    ):
        with monkeypatch.context() as patch:
            for name, value in variables:
                patch.setenv(name, value)
            assert tracing.open_tracing() is None
    assert caplog.text == ""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "postcards")
    assert tracing.open_tracing() is None
    assert "no installed package has the exporter postcards" in caplog.text
    caplog.clear()
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert tracing.open_tracing() is None
    assert "OpenTelemetry is not installed: pip install" in caplog.text


def test_a_process_that_the_variables_ask(models: dict[str, Path]) -> None:
    command = [sys.executable, "-m", "mha_native", "serve", "--port", "0", "--model", f"embed={models['embed']}"]
    own = {**os.environ, "OTEL_TRACES_EXPORTER": "console", "OTEL_RESOURCE_ATTRIBUTES": "deployment=test"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[1]
        found = httpx.post(f"{url}/embed", json={"inputs": "a"}, trust_env=False, timeout=SECONDS)
        assert found.status_code == 200
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (0, "")
    begin = err.index('{\n    "name": "tokenize"')
    decoder, spans = json.JSONDecoder(), []
    while begin < len(err) and err[begin] == "{":
        value, begin = decoder.raw_decode(err, begin)
        spans.append(value)
        begin += len(err[begin:]) - len(err[begin:].lstrip())
    assert [value["name"] for value in spans] == ["tokenize", "queue", "model", "POST /embed"]
    attributes = spans[-1]["resource"]["attributes"]
    assert (attributes["service.name"], attributes["deployment"]) == ("mha_native", "test")
