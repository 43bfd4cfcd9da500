"""A server in a thread of the test, on a free port of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

pytest.importorskip("starlette")
pytest.importorskip("msgspec")
pytest.importorskip("orjson")
pytest.importorskip("prometheus_client")
pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

import httpx
import uvicorn

from mha_native.server.application import Application
from mha_native.server.config import Config
from mha_native.server.connections import LimitedProtocol
from mha_native.server.process import listening
from mha_native.server.service import Service


class Running(NamedTuple):
    url: str
    client: httpx.Client
    application: Application
    loop: asyncio.AbstractEventLoop

    @property
    def service(self) -> Service:
        return self.application.service


SECONDS = 60.0  # for waits that end sooner


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@contextlib.contextmanager
def served(application: Any, lifespan: Any) -> Iterator[tuple[str, asyncio.AbstractEventLoop]]:
    """Serve an application until the end of the context, with its address and its loop."""
    with listening(("127.0.0.1", 0)) as (listener, url):
        config = uvicorn.Config(
            application, lifespan=lifespan, http=LimitedProtocol, log_config=None, ws="none", timeout_keep_alive=75
        )
        server = uvicorn.Server(config)
        loops: list[asyncio.AbstractEventLoop] = []

        async def serve() -> None:
            loops.append(asyncio.get_running_loop())
            await server.serve([listener])

        thread = threading.Thread(target=asyncio.run, args=(serve(),))
        thread.start()
        try:
            until(lambda: server.started or not thread.is_alive())
            assert thread.is_alive()
            yield url, loops[0]
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def running(config: Config) -> Iterator[Running]:
    """Serve until the end of the context. The models are open at its begin."""
    application = Application(config)
    with (
        served(application, "on") as (url, loop),
        httpx.Client(base_url=url, timeout=SECONDS, trust_env=False) as client,
    ):
        until(lambda: client.get("/ready").status_code == 200)
        yield Running(url, client, application, loop)
