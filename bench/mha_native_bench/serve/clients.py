"""Clients of a server: some that ask one after another (a closed loop), and some that come at random (an open one)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

Body = bytes


@dataclass(frozen=True)
class Answers:
    """Times, in seconds, and statuses of requests, in the order of their ends."""

    seconds: float  # of all
    times: list[float]
    statuses: list[int]

    @property
    def good(self) -> list[float]:
        """Times of the answers with status 200."""
        return [time for time, status in zip(self.times, self.statuses, strict=True) if status == 200]

    @property
    def rate(self) -> float:
        """Good answers a second."""
        return len(self.good) / self.seconds

    def quantile(self, share: float) -> float:
        times = sorted(self.good)
        return times[min(int(share * len(times)), len(times) - 1)] if times else float("nan")


class Connection:
    """A connection that is kept. It reads answers with a Content-Length, and streams of chunks."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._place = str(place.hostname), int(place.port or 80)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: Body) -> tuple[int, bytes, float]:
        """Return the status, the answer, and the time of its first byte."""
        if self._writer is None or self._writer.is_closing():
            self._reader, self._writer = await asyncio.open_connection(*self._place)
        reader, writer = self._reader, self._writer
        assert reader is not None
        head = f"POST {path} HTTP/1.1\r\nHost: {self._place[0]}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        first = perf_counter()
        fields = dict(line.split(b": ", 1) for line in lines[1:-2])
        if b"content-length" in fields:
            answer = await reader.readexactly(int(fields[b"content-length"]))
        else:
            answer = b""
            while size := int(await reader.readline(), 16):
                answer += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        if fields.get(b"connection") == b"close":
            writer.close()
        return int(lines[0].split()[1]), answer, first

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()


async def closed_loop(url: str, path: str, bodies: Sequence[Body], clients: int, seconds: float) -> Answers:
    """Let some clients ask for some seconds, each as soon as it has its answer."""
    times: list[float] = []
    statuses: list[int] = []
    begin = perf_counter()

    async def client(index: int) -> None:
        connection, i = Connection(url), index * 7
        while (now := perf_counter()) < begin + seconds:
            status, _, _ = await connection.post(path, bodies[i % len(bodies)])
            times.append(perf_counter() - now)
            statuses.append(status)
            i += 1
        await connection.close()

    await asyncio.gather(*map(client, range(clients)))
    return Answers(perf_counter() - begin, times, statuses)


async def open_loop(url: str, path: str, bodies: Sequence[Body], rate: float, seconds: float, seed: int = 0) -> Answers:
    """Send requests at random times, `rate` of them a second, whether or not the others have their answers."""
    rng, free = random.Random(seed), list[Connection]()
    times: list[float] = []
    statuses: list[int] = []
    tasks: set[asyncio.Task[None]] = set()

    async def ask(body: Body) -> None:
        connection = free.pop() if free else Connection(url)
        begin = perf_counter()
        try:
            status, _, _ = await connection.post(path, body)
        except (OSError, asyncio.IncompleteReadError):
            status = 0
        times.append(perf_counter() - begin)
        statuses.append(status)
        free.append(connection)

    begin = next_one = perf_counter()
    i = 0
    while next_one < begin + seconds:
        await asyncio.sleep(max(next_one - perf_counter(), 0))
        task = asyncio.create_task(ask(bodies[i % len(bodies)]))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        next_one, i = next_one + rng.expovariate(rate), i + 1
    sent = perf_counter() - begin
    await asyncio.gather(*tasks)
    for connection in free:
        await connection.close()
    return Answers(sent, times, statuses)


def under_clients(url: str, path: str, bodies: Sequence[Body], clients: int, seconds: float) -> Answers:
    """A closed loop by wrk, which takes less of the processor than clients in Python; without wrk, by those."""
    if shutil.which("wrk") is None:
        return asyncio.run(closed_loop(url, path, bodies, clients, seconds))
    with tempfile.TemporaryDirectory() as home:
        script = Path(home) / "bodies.lua"
        listed = ",".join(json.dumps(body.decode()) for body in bodies)
        script.write_text(_LUA.replace("BODIES", listed).replace("PATH", json.dumps(path)), encoding="utf-8")
        command = ["wrk", "-t1", f"-c{clients}", f"-d{max(round(seconds), 1)}s", "-s", str(script), url]
        said = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ}).stdout
    found = next(line for line in said.splitlines() if line.startswith("RESULT"))
    count, took, failed, *quantiles = map(float, found.split()[1:])
    times = [time / 1e6 for time in quantiles for _ in range(max(round(count / len(quantiles)), 1))]
    return Answers(took / 1e6, times, [200] * (len(times) - int(failed)) + [500] * int(failed))


_LUA = """
local bodies, i = {BODIES}, 0
request = function()
  i = i % #bodies + 1
  return wrk.format("POST", PATH, {["Content-Type"] = "application/json"}, bodies[i])
end
done = function(summary, latency)
  local failed = summary.errors.status + summary.errors.read + summary.errors.timeout + summary.errors.connect
  local line = string.format("RESULT %d %d %d", summary.requests, summary.duration, failed)
  for percent = 0.5, 99.5, 1 do line = line .. string.format(" %d", latency:percentile(percent)) end
  print(line)
end
"""


def median(values: Sequence[Any]) -> float:
    return float(statistics.median(values))
