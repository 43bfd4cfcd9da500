"""Traces of requests by OpenTelemetry, if it is installed, and its variables OTEL_* ask for them."""

import logging
import os
import sys
from importlib.metadata import entry_points, version
from time import monotonic, time_ns
from typing import Any

from .calls import Call

_log = logging.getLogger("mha_native.server")

_GROUP = "opentelemetry_traces_exporter"  # of packages with exporters, by which they are found
_INSTALL = "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"


class Tracing:
    """A span for each request, and spans for its parts: the tokenizer, the queue, and the model."""

    def __init__(self, trace: Any, propagate: Any, provider: Any, is_own: bool) -> None:
        self._trace, self._propagate = trace, propagate
        self._provider, self._is_own = provider, is_own
        self._tracer = provider.get_tracer("mha_native.server", version("mha_native"))

    def record(self, call: Call, method: str, path: str, status: int) -> str:
        """Record a request that has ended. Return the identifier of its trace.

        The client's header traceparent, or another one that OTEL_PROPAGATORS names, makes it a part of the client's
        trace.
        """
        now = time_ns()
        zero = now - round(1e9 * monotonic())
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers.items()}
        whole = self._tracer.start_span(
            f"{method} {path}",
            context=self._propagate.extract(headers),
            kind=self._trace.SpanKind.SERVER,
            start_time=zero + round(1e9 * call.begin),
            attributes={
                "http.request.method": method,
                "http.route": path,
                "http.response.status_code": status,
                "mha_native.request_id": call.identifier,
                **{f"mha_native.{name}": value for name, value in call.log.items()},
            },
        )
        if status >= 499:
            whole.set_attribute("error.type", call.why_stopped or str(status))
            whole.set_status(self._trace.StatusCode.ERROR)
        inside = self._trace.set_span_in_context(whole)
        for name, begin, seconds in call.phases:
            start = zero + round(1e9 * begin)
            part = self._tracer.start_span(name, context=inside, start_time=start)
            part.end(min(start + round(1e9 * seconds), now))  # clocks of several threads differ by microseconds
        whole.end(now)
        return format(whole.get_span_context().trace_id, "032x")

    def close(self) -> None:
        """Send the spans that are left."""
        if self._is_own:
            self._provider.shutdown()


def open_tracing() -> Tracing | None:
    """Return the traces of a server: for the provider that the program has set, or for one by the variables OTEL_*."""
    if "opentelemetry" not in sys.modules and not _is_asked():
        return None  # a program that has set a provider has imported the package
    try:
        from opentelemetry import propagate, trace
    except ImportError:
        if _is_asked():
            _log.warning("there are no traces: OpenTelemetry is not installed: %s", _INSTALL)
        return None
    provider = trace.get_tracer_provider()
    is_own = isinstance(provider, trace.ProxyTracerProvider)  # which stands for none
    if is_own:
        if not _is_asked():
            return None
        try:
            provider = _provider()
        except Exception as error:  # of the variables, or of a package: it stops no server
            _log.warning("there are no traces: %s", error)
            return None
    return Tracing(trace, propagate, provider, is_own)


def _is_asked() -> bool:
    given = os.environ.get
    if given("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    named = given("OTEL_TRACES_EXPORTER", "")
    if named:
        return named.lower() != "none"
    return bool(given("OTEL_EXPORTER_OTLP_ENDPOINT") or given("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))


def _provider() -> Any:
    """Return a provider with the exporter, the sampler and the names of the variables OTEL_*."""
    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
    except ImportError as error:
        raise ImportError(f"the SDK of OpenTelemetry is not installed: {_INSTALL}") from error
    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "mha_native"}))
    exporter = _exporter()
    # Standard output has the line of a server that is ready.
    made = exporter(out=sys.stderr) if exporter is ConsoleSpanExporter else exporter()
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(made))
    return provider


def _exporter() -> Any:
    """Return the class of the exporter that OTEL_TRACES_EXPORTER names, which is otlp by default."""
    given = os.environ.get
    protocol = given("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or given("OTEL_EXPORTER_OTLP_PROTOCOL")
    name = given("OTEL_TRACES_EXPORTER") or "otlp"
    names = [name]
    if name == "otlp":
        both = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
        names = [*both.values()] if protocol is None else [both.get(protocol, protocol)]
    for each in names:
        for found in entry_points(group=_GROUP, name=each):
            return found.load()
    raise ImportError(f"no installed package has the exporter {' or '.join(names)}: {_INSTALL}")
