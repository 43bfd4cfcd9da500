"""One request of a client: its body, its deadline, its end, and the answer."""

import asyncio
import contextlib
import hashlib
import logging
import random
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import cached_property
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import msgspec
import orjson
from starlette.datastructures import QueryParams
from starlette.types import Receive, Scope, Send

from ..functions.messages import shown
from ..serving import EncodeRequest
from .config import Config
from .errors import Failure, of_computation, stopping, timed_out

Fields = TypeVar("Fields")

_BODY_SECONDS = 30.0  # of a body, after which a slow sender is refused
_DISCARD_SECONDS = 2.0  # of the rest of a body that was refused
_SENT_SECONDS = 10.0  # of a piece of a stream, after which a slow reader is cut off
_UNWATCHED_SECONDS = 0.05  # of a request for texts, after which somebody watches whether its client is gone
_MOST_TOLD = 100  # names of unknown fields in the log
_told: set[str] = set()  # such names

_log = logging.getLogger("mha_native.server")

_IDENTIFIER = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class Answer(NamedTuple):
    """A whole answer, or the pieces of a stream."""

    body: bytes | AsyncIterator[bytes]
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "application/json"


def answer(value: Any, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """Return an answer in JSON. Arrays of numpy become lists."""
    return Answer(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), headers=headers)


class ClientGone(Exception):
    """The client has closed its connection: nobody waits for the answer."""


@contextlib.contextmanager
def _interrupted(seconds: float, failure: Callable[[], Failure]) -> Iterator[None]:
    """Raise a failure in the task that runs the context when it has taken some seconds. Without a task of its own this
    costs a tenth of `asyncio.wait_for`."""
    task = asyncio.current_task()
    is_late = False

    def interrupt() -> None:
        nonlocal is_late
        is_late = True
        if task is not None:
            task.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, interrupt)
    try:
        yield
    except asyncio.CancelledError:
        if not is_late:
            raise
        if task is not None and sys.version_info >= (3, 11):
            task.uncancel()
        raise failure() from None
    finally:
        timer.cancel()


def _too_large(most: int) -> Failure:
    return Failure("size", f"The body must have at most {most} bytes.", headers=(("connection", "close"),))


def _slow_body(seconds: float) -> Failure:
    return Failure("slow", f"The body has not come in {seconds:.0f} s.", headers=(("connection", "close"),))


def _slow_reader() -> Failure:
    return Failure("slow", "The client takes no data.")


def note_unknown(kind: Any, names: Callable[[], Iterable[str]]) -> None:
    """Log the names of fields that the class `kind` lacks, each once: they have no effect."""
    known = getattr(kind, "__struct_encode_fields__", None)
    if known is None or not _log.isEnabledFor(logging.DEBUG):
        return
    for name in set(names()).difference(known, _told):
        if len(_told) < _MOST_TOLD:
            _told.add(name)
            _log.debug("the field %s is not known, and has no effect", shown(name))


class Call:
    """A request of a client, for the function that answers it. All its methods run in the thread of the loop."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, config: Config, is_tei: bool) -> None:
        self.scope, self._receive, self._send = scope, receive, send
        self.config = config
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.begin = monotonic()
        given = self.headers.get(b"x-request-id", b"")
        self.identifier = given.decode() if _IDENTIFIER.fullmatch(given) else f"{random.getrandbits(128):032x}"
        self.is_tei = is_tei  # errors have the shape of Text Embeddings Inference
        self.is_cohere = False  # and else the one of Cohere
        self.body = b""
        self._is_read = scope["method"] in ("GET", "HEAD")
        self.log: dict[str, Any] = {}  # for the line of the log
        self.phases: list[tuple[str, float, float]] = []  # of traces: names, times of `monotonic`, and seconds
        self.notes: list[Callable[[], None]] = []  # called after the answer, such as for metrics
        self.has_begun = False  # to answer
        self._watcher: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle  # while a result is computed
        self._cancel: list[Callable[[], object]] = []
        self._engines: list[Any] = []  # that the request has found
        self._why: str | None = None
        self._at_end: list[Callable[[], object]] = []
        self.timeout = config.request_timeout  # seconds

    @cached_property
    def query(self) -> QueryParams:
        return QueryParams(self.scope["query_string"])

    @property
    def seconds(self) -> float:
        """Seconds since the request began."""
        return monotonic() - self.begin

    @property
    def remaining(self) -> float:
        """Seconds until the answer must be there, by the server's limit and the header x-request-timeout."""
        seconds = self.timeout
        if given := self.headers.get(b"x-request-timeout"):
            try:
                seconds = min(seconds, float(given))
            except ValueError:
                seconds = float("nan")
            if not seconds > 0:
                raise Failure("invalid", "The header x-request-timeout must be seconds above 0.")
        left = seconds - self.seconds
        if left <= 0:
            raise Failure("slow", "The timeout of the request was over before its work began.")
        return left

    async def read_body(self) -> None:
        """Read the body, unless it is too large or comes too slowly."""
        self._check_media()
        parts: list[bytes] = []
        await self.receive_body(self.config.max_body_bytes, _BODY_SECONDS, parts.append)
        self.body = parts[0] if len(parts) == 1 else b"".join(parts)

    async def receive_body(self, most: int, seconds: float, take: Callable[[bytes], object]) -> None:
        """Call `take` with each part of the body, unless it has more than `most` bytes or needs more than `seconds`."""
        length = self.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > most:
            raise _too_large(most)
        size = 0
        with _interrupted(seconds, lambda: _slow_body(seconds)):
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part = message.get("body", b"")
                size += len(part)
                self._is_read = not message.get("more_body", False)
                if size > most:
                    raise _too_large(most)
                take(part)
                if self._is_read:
                    return

    def _check_media(self) -> None:
        """Raise the failure of a body that cannot be JSON in UTF-8. The type itself may be any: curl sends another."""
        if b"content-encoding" not in self.headers and self.headers.get(b"content-type") == b"application/json":
            return  # as most requests
        encoding = self.headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding != b"identity":
            raise Failure("media", "The body must not be compressed: Content-Encoding must be absent.")
        kind, _, parameters = self.headers.get(b"content-type", b"").lower().partition(b";")
        charset = re.search(rb"charset\s*=\s*\"?([\w-]+)", parameters)
        if kind.strip().startswith(b"multipart/") or (charset and charset[1] not in (b"utf-8", b"utf8", b"us-ascii")):
            raise Failure("media", "The body must be JSON in UTF-8: Content-Type must be application/json.")

    def read(self, kind: type[Fields]) -> Fields:
        """Return the body as an object of the class `kind`."""
        try:
            found = msgspec.json.decode(self.body, type=kind)
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at `$")
            param = re.split(r"[.\[]", path.strip("`").lstrip("."))[0] or None
            if param is None and (named := re.search(r"missing required field `(\w+)`", message)):
                param = named[1]
            raise Failure("invalid", message if param is None else f"{param}: {message}", param) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Failure("invalid", f"The body must be JSON: {error}.") from None
        note_unknown(kind, lambda: msgspec.json.decode(self.body, type=dict[str, msgspec.Raw]))
        return found

    def use(self, engine: Any) -> None:
        """Keep a model open until `end`."""
        self._engines.append(engine)
        engine.num_calls += 1

    def watch(self) -> None:
        """Begin to cancel the work of the request when the client is gone."""
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.stop("disconnect")

    def at_end(self, function: Callable[[], object]) -> None:
        """Call a function at the end of the request."""
        self._at_end.append(function)

    def end(self) -> None:
        """Watch the client no longer, use no models any more, and call the functions of `at_end`."""
        if self._watcher is not None:
            self._watcher.cancel()
        while self._engines:
            self._engines.pop().num_calls -= 1
        while self._at_end:
            self._at_end.pop()()

    def stop(self, why: str) -> None:
        """Cancel the work of the request: "disconnect", "timeout", "slow_client" or "shutdown"."""
        if self._why is None:
            self._why = why
            for cancel in self._cancel:
                cancel()

    @property
    def why_stopped(self) -> str | None:
        """The argument of `stop`, if it was called."""
        return self._why

    def cancel_by(self, cancel: Callable[[], object]) -> None:
        """Call `cancel` when the request is stopped, at once if it was."""
        self.watch()
        self._cancel.append(cancel)
        if self._why is not None:
            cancel()

    def check_stopped(self) -> None:
        """Raise the error of a request that was stopped."""
        if self._why is None:
            return
        if self._why in ("disconnect", "slow_client"):
            raise ClientGone
        raise timed_out() if self._why == "timeout" else stopping()

    def tenant_salt(self, salt: str | None) -> str | None:
        """Return the salt of pages that clients with the same key and the same `salt` share."""
        if len(self.config.api_keys) < 2:
            return salt
        key = hashlib.sha256(self.headers.get(b"authorization", b"")).hexdigest()
        return key if salt is None else f"{key} {salt}"

    async def result_of(self, request: "EncodeRequest | Future[Any]") -> Any:
        """Wait for the result of a request to a model."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not done.done():
                done.set_result(None)

        try:
            left = self.remaining
        except Failure:
            request.cancel()
            raise
        request.add_done_callback(lambda _: loop.call_soon_threadsafe(end))
        first = min(left, _UNWATCHED_SECONDS)
        self._timer = loop.call_later(first, self._wait_longer, left - first)
        self._cancel.append(request.cancel)
        if self._why is not None:
            request.cancel()
        try:
            await done
        finally:
            self._timer.cancel()
        return self.outcome_of(request)

    def outcome_of(self, request: "EncodeRequest | Future[Any]") -> Any:
        """Return the result of a request to a model that has ended, or raise the failure of it."""
        self.check_stopped()
        if request.cancelled():
            raise stopping()
        error = Future.exception(request)  # it has ended, so that a wait needs no checks
        if error is not None:
            raise of_computation(error) or error
        return Future.result(request)

    def _wait_longer(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self.stop, "timeout")
        self.watch()

    async def _discard(self) -> None:
        """Read the rest of a refused body for some time: a client that still sends would not see its answer."""
        end = monotonic() + _DISCARD_SECONDS
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            while (left := end - monotonic()) > 0:
                message = await asyncio.wait_for(self._receive(), left)
                if not message.get("more_body", False):
                    return

    async def send(self, sent: Answer) -> None:
        """Send an answer. A stream ends when its client is gone, or reads too slowly."""
        headers = [("content-type", sent.content_type), ("x-request-id", self.identifier), *sent.headers]
        if isinstance(sent.body, bytes):
            headers.append(("content-length", str(len(sent.body))))
        raw = [(name.encode(), value.encode()) for name, value in headers]
        self.has_begun = True
        await self._send({"type": "http.response.start", "status": sent.status, "headers": raw})
        if isinstance(sent.body, bytes):
            await self._send({"type": "http.response.body", "body": sent.body, "more_body": not self._is_read})
            if not self._is_read:
                await self._discard()
                await self._send({"type": "http.response.body", "body": b""})
            return
        async for piece in sent.body:
            try:
                with _interrupted(_SENT_SECONDS, _slow_reader):
                    await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            except Failure:
                self.stop("slow_client")
                raise ClientGone from None
        await self._send({"type": "http.response.body", "body": b""})
