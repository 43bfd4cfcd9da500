"""A server as a process: its socket, its signals, and its log."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from .application import Application
from .config import Config
from .connections import LimitedProtocol, most_connections
from .log import logged

_log = logging.getLogger("mha_native.server")

_SWITCH_SECONDS = 0.0005
_PARALLEL = "TOKENIZERS_PARALLELISM"

_Place = str | tuple[str, int]  # the path of a socket, or a host and a port


def serve(
    config: Config,
    place: _Place,
    grace: float,
    log_format: str,
    log_level: str,
    *,
    drain_delay: float = 0.0,
    metrics_port: int | None = None,
    tls: tuple[str, str] | None = None,
    reread: Callable[[], Config] | None = None,
) -> int:
    """Serve the models of a configuration until a signal ends the process.

    The line ``ready ADDRESS models=NAMES`` is on standard output when all models are open. After SIGTERM the server
    takes requests for `drain_delay` seconds more. With `metrics_port`, /metrics is on this port of the same host alone,
    and the line ends with ``metrics=ADDRESS``. `tls` are the files of a certificate and its key; `reread` returns the
    configuration that SIGHUP asks for. Returns 0, or 1 if requests were ended after `grace` seconds.

    Raises the exception with which a model cannot be opened, or OSError if a socket or `tls` cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_quick_switches())
        stack.enter_context(_one_thread_a_tokenizer())
        stack.enter_context(logged(log_format, log_level))
        listener, address = stack.enter_context(listening(place))
        listeners, of_metrics = [listener], None
        if metrics_port is not None:
            host = "127.0.0.1" if isinstance(place, str) else place[0]
            second, of_metrics = stack.enter_context(listening((host, metrics_port)))
            listeners.append(second)
        if tls is not None:
            address = address.replace("http:", "https:", 1)
            of_metrics = of_metrics and of_metrics.replace("http:", "https:", 1)
        if not config.api_keys and not isinstance(place, str) and not _is_of_this_machine(place[0]):
            _log.warning("the server needs no key, and other machines can reach %s", address)
        LimitedProtocol.most = most_connections()
        server = _Server(config, grace, drain_delay, tls, reread, address, of_metrics)
        server.run(listeners)
    if server.error is not None:
        raise server.error
    return 0 if server.has_drained else 1


class _Server(uvicorn.Server):
    """A server of uvicorn that ends when its requests have ended, and prints a line when it is ready."""

    def __init__(
        self,
        config: Config,
        grace: float,
        drain_delay: float,
        tls: tuple[str, str] | None,
        reread: Callable[[], Config] | None,
        address: str,
        of_metrics: str | None,
    ) -> None:
        self._application = Application(config, self._loaded)
        self._of_metrics = of_metrics
        if of_metrics is not None:
            self._application.metrics_port = int(of_metrics.rpartition(":")[2])
        self._application.service.on_models = _settle
        self._grace, self._delay, self._reread, self._address = grace, drain_delay, reread, address
        self.error: Exception | None = None
        self.has_drained = True
        self._draining: asyncio.Task[None] | None = None
        self._reloading: set[asyncio.Task[None]] = set()
        certificate, key = tls or (None, None)
        super().__init__(
            uvicorn.Config(
                self._application,
                lifespan="on",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=5,
                h11_max_incomplete_event_size=16384,
                http=LimitedProtocol,
                ws="none",
                backlog=2048,
                ssl_certfile=certificate,
                ssl_keyfile=key,
            )
        )
        if tls is not None:
            self.config.load()  # raises the error of a certificate now, and not in the middle of the start

    def _loaded(self, error: Exception | None) -> None:
        self.error = error
        if error is not None:
            self.should_exit = True
        elif not self._application.service.is_draining:
            end = "" if self._of_metrics is None else f" metrics={self._of_metrics}/metrics"
            print(f"ready {self._address} models={','.join(self._application.service.engines)}{end}", flush=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle the signals that end a process while the server runs, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        if self._reread is not None and hasattr(signal, "SIGHUP"):  # not on Windows
            before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._handle_reload)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, and end at once at the second one."""
        if self._draining is not None:
            self.should_exit = self.force_exit = True
            return
        self._draining = asyncio.get_event_loop().create_task(self._drain())

    def _handle_reload(self, sig: int, frame: FrameType | None) -> None:
        task = asyncio.get_event_loop().create_task(self._reload())
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    async def _reload(self) -> None:
        """Read the configuration again, and serve its models; without a valid one all stays as it is."""
        assert self._reread is not None
        try:
            config = await asyncio.to_thread(self._reread)
        except Exception as error:
            _log.error("The configuration was not read again: %s", error)
            return
        await self._application.service.reload(config)

    async def _drain(self) -> None:
        if self._delay:
            self._application.service.is_leaving = True
            await asyncio.sleep(self._delay)
        self.has_drained = await self._application.drain(self._grace)
        self.should_exit = True


@contextlib.contextmanager
def _quick_switches() -> Iterator[None]:
    """Let threads take turns ten times as often as usual: the thread of a model, between two steps of a batch, would
    wait 5 ms for the thread of the loop whenever that is busy."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _settle() -> None:
    """Keep what is there now out of the collections of garbage: the oldest generation, with all modules and models,
    would stop the loop for a tenth of a second. Garbage is collected before, such as models that have ended: it would
    be kept, too. The memory of these goes back to the system: the C library keeps what lies between blocks in use, and
    threads of later models take other memory."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # not in musl
        trim(ctypes.c_size_t(0))


@contextlib.contextmanager
def _one_thread_a_tokenizer() -> Iterator[None]:
    """Let the package tokenizers make tokens in the thread that asks. The thread of the loop would wait for threads of
    the package, and those for a processor, which the threads of the models keep for a slice of the scheduler."""
    if os.environ.get(_PARALLEL) is not None:  # the user has chosen
        yield
        return
    os.environ[_PARALLEL] = "false"
    try:
        yield
    finally:
        del os.environ[_PARALLEL]


@contextlib.contextmanager
def listening(place: _Place) -> Iterator[tuple[socket.socket, str]]:
    """Open a socket that listens, and return it with its address."""
    if not isinstance(place, str):
        host, port = place
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family, backlog=2048) as listener:
            # Accepted sockets have it, too. asyncio sets it for some sockets only, and headers go out before a body.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            shown = f"[{host}]" if ":" in host else host
            yield listener, f"http://{shown}:{listener.getsockname()[1]}"
        return
    _remove_stale(place)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # for the user of this process only
    try:
        listener.bind(place)
    finally:
        os.umask(before)
    with listener:
        listener.listen(2048)
        try:
            yield listener, f"unix:{place}"
        finally:
            with contextlib.suppress(OSError):
                os.unlink(place)


def _remove_stale(path: str) -> None:
    """Remove the socket of a server that has ended; OSError if one listens there."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise FileExistsError(f"{path} exists, and is no socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(path) == 0:
                raise FileExistsError(f"{path}: another server listens there")
        os.unlink(path)


def _is_of_this_machine(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
