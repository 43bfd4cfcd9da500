"""Limits of connections: the time and the size of the headers of a request, and clients that take no data."""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEADER_SECONDS = 10.0  # from the first byte of a request to the end of its headers
STALLED_SECONDS = 11.0  # in which a client takes no data, a second more than the application waits with a stream
_HEADER_BYTES = 16384

_OTHER_FILES = 128  # that a process has open apart from connections

_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as _Protocol
else:
    _Protocol = AutoHTTPProtocol


def most_connections() -> int:
    """Return how many connections the process may have, after asking the system for as many as it gives."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return 1 << 16
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 16 if soft == resource.RLIM_INFINITY else max(soft - _OTHER_FILES, 1)


class LimitedProtocol(_Protocol):
    """A connection of uvicorn that ends when its client sends headers too slowly, or takes no data. uvicorn itself
    waits for both without an end, and stops to accept connections when the system has no files left for them."""

    most = 1 << 16  # connections at once; one more gets status 503
    _headers_timer: asyncio.TimerHandle | None = None
    _stalled_timer: asyncio.TimerHandle | None = None
    _num_bytes = 0  # of headers so far
    _cycles: tuple[Any, ...] = ()  # requests without a whole answer, and the last request

    @property
    def cycle(self) -> Any:
        """The last request. uvicorn keeps no others, and tells this one alone when the connection is lost."""
        return self._cycles[-1] if self._cycles else None

    @cycle.setter
    def cycle(self, new: Any) -> None:
        self._cycles = () if new is None else (*(each for each in self._cycles if not each.response_complete), new)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self._refuse(_TOO_MANY)
            return
        # As after a request: a client that sends nothing has the time of an idle connection.
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        last = self.cycle
        super().data_received(data)
        if self.cycle is not last or (last is not None and not last.response_complete):  # a request has its headers
            self._stop_headers()
            return
        self._num_bytes += len(data)
        if self._num_bytes > _HEADER_BYTES:
            self._refuse(_TOO_LARGE)
        elif self._headers_timer is None:
            self._headers_timer = self.loop.call_later(HEADER_SECONDS, self._refuse, _TOO_SLOW)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled_timer = self.loop.call_later(STALLED_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_stalled()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for each in self._cycles:  # an answer to a client that has sent another request and left
            each.disconnected = each.disconnected or not each.response_complete
            each.message_event.set()
        self._unset_keepalive_if_required()
        self._stop_headers()
        self._stop_stalled()

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection, also one whose client has not taken its last answer."""
        self.transport.abort()

    def _refuse(self, answer: bytes) -> None:
        self._stop_headers()
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()

    def _stop_headers(self) -> None:
        self._num_bytes = 0
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

    def _stop_stalled(self) -> None:
        if self._stalled_timer is not None:
            self._stalled_timer.cancel()
            self._stalled_timer = None
