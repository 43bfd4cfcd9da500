"""Errors of requests: their statuses and their bodies, in the shapes of OpenAI and of Text Embeddings Inference."""

import logging
import re
from concurrent.futures import CancelledError
from typing import Any, NamedTuple

import orjson

from ..functions.messages import rename_arguments
from ..serving import QueueFull

_log = logging.getLogger("mha_native.server")


class _Shape(NamedTuple):
    status: int
    kind: str
    code: str | None
    tei_status: int
    tei_kind: str


# The causes of failures. Text Embeddings Inference has statuses of its own.
_SHAPES = {
    "invalid": _Shape(400, "invalid_request_error", None, 422, "Validation"),
    "empty": _Shape(400, "invalid_request_error", None, 400, "Empty"),
    "count": _Shape(400, "invalid_request_error", None, 422, "Validation"),
    "context": _Shape(400, "invalid_request_error", "context_length_exceeded", 422, "Validation"),
    "key": _Shape(401, "authentication_error", "invalid_api_key", 401, "Validation"),
    "path": _Shape(404, "invalid_request_error", "not_found", 404, "Validation"),
    "method": _Shape(405, "invalid_request_error", "method_not_allowed", 405, "Validation"),
    "model": _Shape(404, "invalid_request_error", "model_not_found", 424, "Backend"),
    "kind": _Shape(400, "invalid_request_error", None, 424, "Backend"),
    "size": _Shape(413, "invalid_request_error", "request_too_large", 413, "Validation"),
    "media": _Shape(415, "invalid_request_error", "unsupported_media_type", 415, "Validation"),
    "slow": _Shape(408, "timeout_error", "timeout", 408, "Validation"),
    "full": _Shape(429, "rate_limit_error", "queue_full", 429, "Overloaded"),
    "not ready": _Shape(503, "server_error", "not_ready", 503, "Unhealthy"),
    "timeout": _Shape(504, "timeout_error", "timeout", 424, "Backend"),
    "memory": _Shape(503, "server_error", "out_of_memory", 424, "Backend"),
    "storage": _Shape(503, "server_error", "out_of_storage", 424, "Backend"),
    "internal": _Shape(500, "server_error", None, 424, "Backend"),
}

_FUNCTION = re.compile(r"^[A-Z]\w*(?:\.\w+)*: ")


class Failure(Exception):
    """A request that gets an error. `cause` is one of the table above, `param` the field that breaks a rule."""

    def __init__(
        self, cause: str, message: str, param: str | None = None, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(message)
        self.cause, self.param, self.headers = cause, param, headers
        self._shape = _SHAPES[cause]

    def status(self, is_tei: bool) -> int:
        return self._shape.tei_status if is_tei else self._shape.status

    def body(self, is_tei: bool, cohere_id: str | None = None) -> bytes:
        """Return the body in the shape of an API. Of Cohere's paths, `cohere_id` is the request, and all have OpenAI's
        object, which clients of other rerankers read."""
        if is_tei:
            return orjson.dumps({"error": str(self), "error_type": self._shape.tei_kind})
        own = {} if cohere_id is None else {"id": cohere_id, "message": str(self)}
        return orjson.dumps({**own, "error": self.error})

    @property
    def error(self) -> dict[str, Any]:
        """The error as an object of OpenAI."""
        shape = self._shape
        return {"message": str(self), "type": shape.kind, "param": self.param, "code": shape.code}


def of_arguments(error: Exception, param: str, **names: str) -> Failure:
    """Return the failure of a request whose values a function of the library refuses. `names` maps names of its
    arguments to fields of the request."""
    rename_arguments(error, **names)
    message = _FUNCTION.sub("", str(error))
    is_context = "positions" in message or "max_length" in message or " pages " in message
    return Failure("context" if is_context else "invalid", message, param)


def of_computation(error: BaseException) -> Failure | None:
    """Return the failure of a request that was accepted; None for an error of the server itself."""
    if isinstance(error, QueueFull):
        return Failure("full", _FUNCTION.sub("", str(error)))
    if isinstance(error, TimeoutError):
        return timed_out()
    if isinstance(error, CancelledError):
        return stopping()
    if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
        return Failure("memory", "There is not enough memory for this request.", headers=(("retry-after", "1"),))
    return None


def failure_of(error: Exception, identifier: str) -> Failure:
    """Return the failure of the request `identifier` that ends by any error. The log has an error of the server."""
    found = error if isinstance(error, Failure) else of_computation(error)
    if found is None:
        _log.error("request %s failed", identifier, exc_info=error)
        found = Failure("internal", f"The server has failed; its log has the request {identifier}.")
    return found


def timed_out() -> Failure:
    """Return the failure of a request that has taken too long. A retry would take as long."""
    return Failure("timeout", "The request has not ended in its timeout.", headers=(("x-should-retry", "false"),))


def stopping() -> Failure:
    """Return the failure of a request to a server that ends."""
    return Failure("not ready", "The server is shutting down.", headers=(("retry-after", "1"), ("connection", "close")))
