"""The state of a server: whether it runs, whether it takes requests, and its metrics."""

from .calls import Answer, Call, answer
from .errors import Failure, stopping
from .service import Endpoint, Service

METRICS = "/metrics"


async def health(service: Service, call: Call) -> Answer:
    """Answer that the process runs."""
    return answer({"status": "ok"})


async def _ready(service: Service, call: Call) -> Answer:
    check_ready(service)
    if service.is_leaving:
        raise stopping()
    return answer({"status": "ready", "models": list(service.engines)})


async def _model_ready(service: Service, call: Call) -> Answer:
    check_ready(service)
    name = call.scope["path_params"]["name"]
    if name not in service.engines:
        raise Failure("model", "The model does not exist.", "model")
    return answer({"name": name, "ready": True})


async def _metrics(service: Service, call: Call) -> Answer:
    return Answer(
        service.metrics.text(service.config.metrics_compat), content_type="text/plain; version=0.0.4; charset=utf-8"
    )


def check_ready(service: Service) -> None:
    """Raise the failure of a server that takes no requests yet, or no more."""
    if service.is_draining:
        raise stopping()
    if not service.is_ready:
        raise Failure("not ready", "The server opens its models.", headers=(("retry-after", "1"),))


ENDPOINTS = [
    *(
        Endpoint("GET", path, health, is_open=True, about="Whether the process runs")
        for path in ("/health", "/ping", "/v2/health/live")
    ),
    *(
        Endpoint("GET", path, _ready, is_open=True, about="Whether the server takes requests")
        for path in ("/ready", "/v2/health/ready")
    ),
    Endpoint("GET", "/v2/models/{name}/ready", _model_ready, is_open=True, about="Whether a model takes requests"),
    Endpoint("GET", METRICS, _metrics, is_open=True, about="Metrics in the text format of Prometheus"),
]
