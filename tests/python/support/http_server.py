"""A server in a thread of the test, on a free port of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
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


@contextlib.contextmanager
def served(application: Any, lifespan: Any) -> Iterator[tuple[str, asyncio.AbstractEventLoop]]:
    """Serve an application until the end of the context, with its address and its loop."""
    with listening(("127.0.0.1", 0)) as (listener, url):
        config = uvicorn.Config(application, lifespan=lifespan, http=LimitedProtocol, log_config=None, ws="none")
        server = uvicorn.Server(config)
        loops: list[asyncio.AbstractEventLoop] = []

        async def serve() -> None:
            loops.append(asyncio.get_running_loop())
            await server.serve([listener])

        thread = threading.Thread(target=asyncio.run, args=(serve(),))
        thread.start()
        try:
            end = time.monotonic() + 20
            while not server.started:
                assert time.monotonic() < end
                assert thread.is_alive()
                time.sleep(0.01)
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
        httpx.Client(base_url=url, timeout=20, trust_env=False) as client,
    ):
        end = time.monotonic() + 20
        while client.get("/ready").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.01)
        yield Running(url, client, application, loop)
