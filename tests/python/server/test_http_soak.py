"""A server for a long time: mixed requests, clients that leave, nonsense and new models leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("httpx")
pytest.importorskip("jinja2")

import httpx
import tiny_bert
import tiny_classifiers
import tiny_language_model
from http_server import SECONDS
from matrix import matrix, nightly
from test_http_process import end, first_line, start

WORDS = ("a", "dog", "the", "cat", "hungry", "blue", "food", "fresh")
CLIENTS = 8
PAUSE_SECONDS = 0.2  # of a client between two requests, on average
MOST_NEW_THREADS = 4  # pools of the loop start theirs when they need them; a new model each time would be more
MOST_GROWTH_KB = 12_288  # from the second quarter of the time to the last one
NONSENSE = (b"", b"{", b"\xff\xfe", b"[]", b'{"input": NaN}', b"[" * 5000, b'{"input": []}', b'{"input": [3, null]}')


def text_of(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randrange(1, 40)))


class Traffic:
    """What clients ask for, and the statuses and errors that they get. The same text must always get the same bits."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.seen: Counter[tuple[str, Any]] = Counter()
        self.failures: list[str] = []
        self._first: dict[str, str] = {}
        self._begin = time.monotonic()
        self._kinds: dict[str, Callable[[random.Random], Awaitable[None]]] = {
            "embed": self._embed,
            "many": self._many,
            "rerank": self._rerank,
            "chat": self._chat,
            "leave": self._leave,
            "nonsense": self._nonsense,
        }

    async def one(self, rng: random.Random) -> None:
        kind = rng.choice(list(self._kinds))
        try:
            await self._kinds[kind](rng)
        except Exception as error:
            seconds = time.monotonic() - self._begin
            self.failures.append(f"{kind} after {seconds:.0f} s: {type(error).__name__} {error}")

    async def _post(self, kind: str, path: str, body: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await self._client.post(path, content=content)
        self.seen[kind, answer.status_code] += 1
        return answer

    async def _embed(self, rng: random.Random) -> None:
        text = " ".join(rng.choices(WORDS[:3], k=3))  # one of 27
        body = {"input": text, "model": "embeddings", "encoding_format": "base64"}
        found = (await self._post("embed", "/v1/embeddings", body)).json()["data"][0]["embedding"]
        assert self._first.setdefault(text, found) == found

    async def _many(self, rng: random.Random) -> None:
        texts = [text_of(rng) for _ in range(rng.randrange(2, 60))]
        found = (await self._post("many", "/embed", {"inputs": texts})).json()
        assert len(found) == len(texts)

    async def _rerank(self, rng: random.Random) -> None:
        body = {"query": text_of(rng), "documents": [text_of(rng) for _ in range(5)], "model": "pairs"}
        assert len((await self._post("rerank", "/v1/rerank", body)).json()["results"]) == 5

    def _conversation(self, rng: random.Random, tokens: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": text_of(rng)}]
        return {"messages": messages, "model": "text", "stream": True, "max_tokens": tokens, "ignore_eos": True}

    async def _chat(self, rng: random.Random) -> None:
        answer = await self._post("chat", "/v1/chat/completions", self._conversation(rng, rng.randrange(1, 30)))
        assert answer.text.endswith("data: [DONE]\n\n"), answer.text[-200:]

    async def _leave(self, rng: random.Random) -> None:
        """Close the connection before the answer, or in the middle of a stream."""
        seconds = rng.choice([0.001, 0.01, 0.05])
        if rng.random() < 0.5:
            body = {"input": [text_of(rng) for _ in range(60)], "model": "embeddings"}
            path, content = "/v1/embeddings", body
        else:
            path, content = "/v1/chat/completions", self._conversation(rng, 300)
        try:
            await asyncio.wait_for(self._client.post(path, json=content), seconds)
        except (TimeoutError, asyncio.TimeoutError):
            self.seen["leave", "gone"] += 1

    async def _nonsense(self, rng: random.Random) -> None:
        path = rng.choice(["/v1/embeddings", "/embed", "/v1/rerank", "/v1/chat/completions", "/nowhere"])
        answer = await self._post("nonsense", path, rng.choice(NONSENSE))
        assert answer.status_code in (400, 404, 413, 422), answer.text


def state_of(process: int) -> tuple[int, int, int]:
    """Return the resident memory in kB, the open files, and the threads of a process."""
    home = Path(f"/proc/{process}")
    resident = int((home / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    return resident, len(list((home / "fd").iterdir())), len(list((home / "task").iterdir()))


def idle_state(
    process: int, url: str, most_files: float = math.inf, most_threads: float = math.inf
) -> tuple[int, int, int]:
    """Return `state_of` when no request is left and no page is used, and no more files and threads than some; none may
    stay for long."""
    until = time.monotonic() + SECONDS
    quiet = {"te_queue_size 0.0", 'vllm:kv_cache_usage_perc{model_name="text"} 0.0'}
    while time.monotonic() < until:
        lines = httpx.get(f"{url}/metrics", trust_env=False, timeout=SECONDS).text.splitlines()
        is_quiet = quiet <= set(lines) and not any(line.startswith("vllm:num_requests_running{") and line[-3:] != "0.0"
                                                   for line in lines)  # fmt: skip
        time.sleep(0.3)  # of a model that ends
        found = state_of(process)
        if is_quiet and found[1] <= most_files and found[2] <= most_threads:
            return found
    raise AssertionError(f"requests, files or threads are left: {lines}, {found}")


@matrix(seconds=nightly([4.0, 1800.0], quick=[4.0]))
def test_a_long_time_leaves_nothing_behind(tmp_path: Path, seconds: float) -> None:
    models = {
        "embeddings": tiny_bert.write(tmp_path / "embeddings"),
        "pairs": tiny_classifiers.write(tmp_path / "pairs", labels=1),
        "text": tiny_language_model.write(tmp_path / "text", n_positions=400),
    }
    file = tmp_path / "serve.toml"
    file.write_text("[models]\n" + "".join(f'{name} = "{path}"\n' for name, path in models.items()))
    process = start("--port", "0", "--config", str(file), "--log-level", "error")
    url = first_line(process).split()[1]
    states: list[tuple[int, int, int]] = []
    num_reloads = 0

    async def run(seconds: float, reloads: bool) -> Traffic:
        begin = time.monotonic()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False, limits=limits) as client:
            traffic = Traffic(client)

            async def ask(number: int) -> None:
                rng = random.Random(number)
                while time.monotonic() < begin + seconds:
                    await traffic.one(rng)
                    await asyncio.sleep(rng.expovariate(1 / PAUSE_SECONDS))

            async def look() -> None:
                nonlocal num_reloads
                next_reload = begin + seconds / 10
                while time.monotonic() < begin + seconds:
                    await asyncio.sleep(seconds / 120)
                    states.append(state_of(process.pid))
                    if reloads and time.monotonic() >= next_reload:
                        next_reload += seconds / 10
                        changed = models[("embeddings", "pairs", "text")[num_reloads % 3]] / "model.safetensors"
                        os.utime(changed)  # a file that has changed, so that SIGHUP opens the model again
                        process.send_signal(signal.SIGHUP)
                        num_reloads += 1

            await asyncio.gather(look(), *map(ask, range(CLIENTS)))
        return traffic

    try:
        asyncio.run(run(1.0, False))
        before = idle_state(process.pid, url)
        states.clear()
        traffic = asyncio.run(run(seconds, True))
        after = idle_state(process.pid, url, before[1], before[2] + MOST_NEW_THREADS)
    finally:
        process.terminate()
        code, said = end(process)
    resident = [state[0] for state in states]
    quarters = [float(np.median(each)) for each in np.array_split(resident, 4)]
    print(f"{dict(traffic.seen)}, {num_reloads} new models; kB {before[0]}, in quarters {quarters}, {after[0]}")
    if traffic.failures:
        print(*traffic.failures[:100], said[-20_000:], sep="\n")
    assert not traffic.failures
    assert code == 0, said
    assert num_reloads >= 5
    assert {status for (kind, status) in traffic.seen if kind not in ("leave", "nonsense")} == {200}
    assert traffic.seen["leave", "gone"] > 0
    if seconds > 60:
        assert quarters[3] - quarters[1] < MOST_GROWTH_KB
