"""The application of a server, for any program that runs ASGI."""

import asyncio
import contextlib
import hmac
import logging
from collections.abc import AsyncIterator, Callable
from time import monotonic

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from . import admin, audio, completions, information, openai, openapi, page, rerank, tei
from .calls import Answer, Call, ClientGone
from .config import Config
from .errors import Failure, failure_of
from .information import METRICS, check_ready
from .log import log_request
from .service import Endpoint, Service
from .tracing import open_tracing

_log = logging.getLogger("mha_native.server")

_SERVED: list[Endpoint] = [
    *information.ENDPOINTS,
    *openai.ENDPOINTS,
    *tei.ENDPOINTS,
    *rerank.ENDPOINTS,
    *completions.ENDPOINTS,
    *audio.ENDPOINTS,
    *admin.ENDPOINTS,
    *page.ENDPOINTS,
]
_ENDPOINTS = [*_SERVED, openapi.endpoint(_SERVED)]

_QUIET_SECONDS = 0.2  # without a request, after which a server that drains may end


def app(config: Config) -> ASGIApp:
    """Return an application that serves models over HTTP, for a program that runs ASGI.

    Parameters
    ----------
    config : Config

    Returns
    -------
    application : ASGI application
        It opens the models when its lifespan begins, and closes them at its end. Until all are open, ``/ready`` and
        requests are answered with status 503.

    Raises
    ------
    ImportError
        If a package of the extra ``server`` is missing.

    Examples
    --------
    >>> from mha_native.server import Config, app
    >>> application = app(Config({"minilm": "all-MiniLM-L6-v2"}))
    >>> callable(application)
    True
    """
    return Application(config)


class Application:
    """An application over the models of `config`. `on_loaded` is called with the error that prevents loading, or with
    None. With `loads_first`, the start of the lifespan ends when the models are open, and fails if they cannot be."""

    def __init__(
        self,
        config: Config,
        on_loaded: Callable[[Exception | None], None] | None = None,
        loads_first: bool = False,
    ) -> None:
        self.service = Service(config)
        self._on_loaded, self._loads_first = on_loaded, loads_first
        self.metrics_port: int | None = None  # where /metrics is, and nothing else
        self.tracing = open_tracing()
        self.calls: set[Call] = set()  # that have no answer yet
        self.last = monotonic()  # when the last request came or ended
        paths: dict[str, dict[str, Endpoint]] = {}
        for endpoint in _ENDPOINTS:
            paths.setdefault(endpoint.path, {})[endpoint.method] = endpoint
        self._nowhere = _Path(self, "other", {})
        served = {path: _Path(self, path, endpoints) for path, endpoints in paths.items()}
        # Most requests are for a path without a name in it, which needs no search by patterns.
        self._whole = {} if config.cors_origins else {path: each for path, each in served.items() if "{" not in path}
        routes = [Route(path, each) for path, each in served.items()]
        routes.append(Route("/{path:path}", self._nowhere))
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(config.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id", "x-request-timeout", "x-model"],
            expose_headers=["retry-after", "x-request-id"],
        )
        self._starlette = Starlette(
            routes=routes, lifespan=self._lifespan, middleware=[cors] if config.cors_origins else []
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.metrics_port is not None and scope["type"] == "http":
            is_there = (scope.get("server") or ("", None))[1] == self.metrics_port
            if is_there != (scope["path"] == METRICS):
                await self._nowhere(scope, receive, send)
                return
        if scope["type"] == "http" and (path := self._whole.get(scope["path"])) is not None:
            await path(scope, receive, send)
            return
        if scope["type"] == "http" and (root := self.service.config.root_path):
            scope = {**scope, "root_path": root}  # routes are looked up without it, if the path has it
        await self._starlette(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        loading = asyncio.create_task(self._load())
        try:
            if self._loads_first and (error := await loading) is not None:
                raise error
            yield
        finally:
            await loading
            self.abort()
            await asyncio.to_thread(self.service.close)
            if self.tracing is not None:
                await asyncio.to_thread(self.tracing.close)

    async def _load(self) -> Exception | None:
        error = None
        try:
            await self.service.load()
        except Exception as caught:
            error = caught
            _log.error("The models could not be opened: %s", caught)
        if self._on_loaded is not None:
            self._on_loaded(error)
        return error

    def abort(self) -> int:
        """End all requests without their results. Return their number."""
        calls = list(self.calls)
        for call in calls:
            call.stop("shutdown")
        return len(calls)

    async def drain(self, grace: float) -> bool:
        """Take no more requests, and wait for those that are there. Return whether all have ended within `grace`
        seconds; the others are ended then."""
        self.service.is_draining = True
        self.last = begin = monotonic()
        while self.calls or monotonic() - self.last < _QUIET_SECONDS:
            if self.calls and monotonic() - begin >= grace:
                self.abort()
                await asyncio.sleep(0.05)
                return False
            await asyncio.sleep(0.02)
        return True

    def check_key(self, call: Call) -> None:
        """Raise the failure of a request without one of the keys, if there are keys."""
        if keys := self.service.config.api_keys:
            _check(call, keys)

    def check_admin(self, call: Call) -> None:
        """Raise the failure of a request without the key of an administrator; without such a key there is no path."""
        key = self.service.config.admin_key
        if key is None:
            raise Failure("path", "The path does not exist.")
        _check(call, (key,))


def _check(call: Call, keys: tuple[str, ...]) -> None:
    """Raise the failure of a request without one of the keys. The time of the comparison tells nothing."""
    kind, _, given = call.headers.get(b"authorization", b"").partition(b" ")
    matches = [hmac.compare_digest(key.encode(), given.strip()) for key in keys]
    if not (kind.lower() == b"bearer" and any(matches)):
        message = "A key is needed: Authorization: Bearer KEY."
        raise Failure("key", message, headers=(("www-authenticate", "Bearer"),))


class _Path:
    """One path of the server, with an endpoint for each of its methods."""

    def __init__(self, application: Application, path: str, endpoints: dict[str, Endpoint]) -> None:
        self._application, self._path, self._endpoints = application, path, endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        endpoint = self._endpoints.get(method)
        known = endpoint or next(iter(self._endpoints.values()), None)
        application = self._application
        call = Call(scope, receive, send, application.service.config, known is not None and known.is_tei)
        call.is_cohere = known is not None and known.is_cohere
        application.calls.add(call)
        status = 499  # as other servers log a client that is gone
        try:
            status = await self._answer(call, endpoint)
        except (ClientGone, asyncio.CancelledError, OSError):
            call.stop("disconnect")
            application.service.metrics.cancelled(call.why_stopped or "disconnect")
        finally:
            call.end()
            application.calls.discard(call)
            application.last = monotonic()
            # The answer leaves at the end of this turn of the loop, so the next turn counts it and logs it.
            is_quiet = endpoint is not None and endpoint.is_open
            asyncio.get_running_loop().call_soon(self._note, call, method, status, call.seconds, is_quiet)

    def _note(self, call: Call, method: str, status: int, seconds: float, is_quiet: bool) -> None:
        """Count, trace and log a request that has ended."""
        application = self._application
        application.service.metrics.answered(self._path, status, seconds)
        while call.notes:  # each keeps the request, which would be a cycle
            call.notes.pop(0)()
        line = {"request_id": call.identifier, "path": self._path, "status": status}
        if application.tracing is not None and not is_quiet:
            line["trace_id"] = application.tracing.record(call, method, self._path, status)
        client = call.scope.get("client") or ("unix", 0)
        line |= {**call.log, "total_ms": round(1e3 * seconds, 2), "client": client[0]}
        log_request(logging.DEBUG if is_quiet else logging.INFO, line)

    async def _answer(self, call: Call, endpoint: Endpoint | None) -> int:
        """Answer a request, and return the status."""
        try:
            found = await self._respond(call, endpoint)
        except ClientGone:
            raise
        except Exception as error:
            found = self._failed(call, endpoint, error)
        if self._application.service.is_draining and ("connection", "close") not in found.headers:
            found = found._replace(headers=(*found.headers, ("connection", "close")))
        await call.send(found)
        return found.status

    def _failed(self, call: Call, endpoint: Endpoint | None, error: Exception) -> Answer:
        """Return the answer to a request that fails. No frame of the traceback keeps the error, which would be a cycle
        with the whole request: a server that refuses many would grow until garbage is collected."""
        failure = failure_of(error, call.identifier)
        if endpoint is not None and endpoint.method == "POST" and not endpoint.is_admin:
            self._application.service.metrics.failed(failure.cause)
        cohere_id = call.identifier if call.is_cohere else None
        return Answer(failure.body(call.is_tei, cohere_id), failure.status(call.is_tei), failure.headers)

    async def _respond(self, call: Call, endpoint: Endpoint | None) -> Answer:
        """Return the answer to a request, or raise the failure of it."""
        service = self._application.service
        if endpoint is None:
            if not self._endpoints:
                raise Failure("path", "The path does not exist.")
            allowed = ", ".join(self._endpoints)
            raise Failure("method", f"The method must be {allowed}.", headers=(("allow", allowed),))
        if endpoint.is_admin:
            self._application.check_admin(call)
            check_ready(service)
        elif not endpoint.is_open:
            self._application.check_key(call)
            check_ready(service)
        if endpoint.method != "GET" and endpoint.file is None:  # which reads its body by itself
            await call.read_body()
        return await endpoint.respond(service, call)
