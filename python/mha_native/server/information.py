"""The state of a server: whether it runs, whether it takes requests, and its metrics."""

from .calls import Answer, Call, answer
from .errors import Failure, stopping
from .service import Endpoint, Service


async def _health(service: Service, call: Call) -> Answer:
    return answer({"status": "ok"})


async def _ready(service: Service, call: Call) -> Answer:
    check_ready(service)
    return answer({"status": "ready", "models": list(service.engines)})


async def _metrics(service: Service, call: Call) -> Answer:
    return Answer(service.metrics.text(), content_type="text/plain; version=0.0.4; charset=utf-8")


def check_ready(service: Service) -> None:
    """Raise the failure of a server that takes no requests yet, or no more."""
    if service.is_draining:
        raise stopping()
    if not service.is_ready:
        raise Failure("not ready", "The server opens its models.", headers=(("retry-after", "1"),))


ENDPOINTS = [
    *(Endpoint("GET", path, _health, is_open=True) for path in ("/", "/health", "/ping", "/v2/health/live")),
    *(Endpoint("GET", path, _ready, is_open=True) for path in ("/ready", "/v2/health/ready")),
    Endpoint("GET", "/metrics", _metrics, is_open=True),
]
