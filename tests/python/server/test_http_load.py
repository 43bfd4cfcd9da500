"""A server under load: the bits of its answers, more requests than it can take, new models, and a process that dies."""

from __future__ import annotations

import asyncio
import base64
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("httpx")

import httpx
import tiny_bert
from http_server import SECONDS, Running, running
from matrix import matrix, nightly

from mha_native.models import SentenceEncoder
from mha_native.server import Config
from mha_native.server.metrics import Metrics
from mha_native.serving import _encode_queue

WORDS = ("a", "dog", "the", "cat", "hungry", "blue", "é", "food", "fresh")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert.write(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Running]:
    with running(Config({"tiny": model}, max_waiting=200)) as found:
        yield found


def texts_of(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randrange(1, 40))) for _ in range(count)]


def with_clients(url: str, count: int, client: Callable[[httpx.AsyncClient, int], Awaitable[None]]) -> None:
    """Run some clients at once, each with its number."""

    async def run() -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=SECONDS, trust_env=False, limits=limits) as shared:
            await asyncio.gather(*(client(shared, number) for number in range(count)))

    asyncio.run(run())


def decoded(answer: httpx.Response) -> list[bytes]:
    assert answer.status_code == 200, answer.text
    return [base64.b64decode(each["embedding"]) for each in answer.json()["data"]]


@matrix(count=nightly([600, 10_000], quick=[600]))
def test_texts_under_load_have_the_bits_of_encode_alone(server: Running, model: Path, count: int) -> None:
    texts = texts_of(1, count)
    found: dict[int, bytes] = {}
    left = list(range(count))

    async def client(shared: httpx.AsyncClient, number: int) -> None:
        rng = random.Random(number)
        while left:
            size = min(rng.choice([1, 1, 1, 3, 40]), len(left))
            mine = [left.pop() for _ in range(size)]
            body = {"input": [texts[i] for i in mine], "encoding_format": "base64"}
            found.update(zip(mine, decoded(await shared.post("/v1/embeddings", json=body)), strict=True))

    with_clients(server.url, 12, client)
    encoder = SentenceEncoder.from_pretrained(model)
    assert len(found) == count
    assert all(encoder.encode(text).tobytes() == found[i] for i, text in enumerate(texts))


@matrix(seconds=nightly([1.5, 60], quick=[1.5]))
def test_four_times_the_capacity(model: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    results_of: Any = vars(_encode_queue)["results_of"]

    def slow(model: Any, texts: Any, num_threads: Any) -> Any:
        begin = time.perf_counter()
        time.sleep(0.1 * len(texts))  # 10 texts a second, whatever the load
        found = results_of(model, texts, num_threads)
        batches.append((len(texts), begin, time.perf_counter()))
        return found

    def note(metrics: Metrics, path: str, status: int, seconds: float) -> None:
        answered(metrics, path, status, seconds)
        if path == "/v1/embeddings":
            spent[status].append(seconds)

    times: dict[int, list[float]] = {200: [], 429: []}  # of clients
    spent: dict[int, list[float]] = {200: [], 429: []}  # by the server
    batches: list[tuple[int, float, float]] = []  # texts, begins and ends
    answered = Metrics.answered

    async def ask(shared: httpx.AsyncClient) -> None:
        begin = time.perf_counter()
        answer = await shared.post("/v1/embeddings", json={"input": "a dog"})
        times[answer.status_code].append(time.perf_counter() - begin)
        assert answer.status_code == 200 or 1 <= int(answer.headers["retry-after"]) <= 60

    async def by_the_clock(shared: httpx.AsyncClient, number: int) -> None:
        rng, tasks, next_one = random.Random(3), [], time.perf_counter()
        end = next_one + seconds
        while next_one < end or (len(times[429]) <= len(times[200]) and next_one < end + 60):  # on a slow machine
            tasks.append(asyncio.create_task(ask(shared)))
            next_one += rng.expovariate(60)
            await asyncio.sleep(max(next_one - time.perf_counter(), 0))
        await asyncio.gather(*tasks)

    async def one_after_another(shared: httpx.AsyncClient, number: int) -> None:
        while len(times[200]) < 3 or (len(times[200]) < 30 and min(times[200]) >= 0.2):
            await ask(shared)

    with running(Config({"tiny": model}, max_waiting=4)) as server:
        monkeypatch.setattr(_encode_queue, "results_of", slow)
        monkeypatch.setattr(Metrics, "answered", note)
        with_clients(server.url, 1, by_the_clock)
        busy = sum(end - begin for _, begin, end in batches)
        assert busy > 0.7 * (batches[-1][2] - batches[0][1])  # the server is as fast as its model
        assert sum(size for size, _, _ in batches) == len(times[200])  # nothing is computed for nobody
        assert len(times[429]) > len(times[200])  # the clients, on the same machine, have sent enough
        assert statistics.median(spent[429]) < 0.5 * statistics.median(spent[200])  # nobody waits for a refusal
        assert server.service.engines["tiny"].queued() == (0, 0)
        times[200].clear()
        batches.clear()
        with_clients(server.url, 1, one_after_another)
        assert [size for size, _, _ in batches] == [1] * len(times[200])  # no batch is left of the load
        assert min(times[200]) < 0.2  # one of them, if other processes take the processor from the rest


@matrix(seconds=nightly([1.0, 1800], quick=[1.0]))
def test_models_that_are_opened_again_under_load(server: Running, model: Path, seconds: float) -> None:
    """In a nightly run for half an hour: the memory must not grow then, either."""
    texts = texts_of(2, 40)
    alone = [SentenceEncoder.from_pretrained(model).encode(text).tobytes() for text in texts]
    end = time.monotonic() + seconds
    memory: list[int] = []

    def reload() -> None:
        while time.monotonic() < end or len(memory) < 3:
            opened = server.service.open("tiny", server.service.config.model("tiny"))
            asyncio.run_coroutine_threadsafe(opened, server.loop).result(SECONDS)
            memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4)
            time.sleep(0.05 if seconds < 10 else 5)

    async def client(shared: httpx.AsyncClient, number: int) -> None:
        rng = random.Random(number)
        while thread.is_alive():
            mine = rng.sample(range(40), rng.choice([1, 1, 8]))
            body = {"input": [texts[i] for i in mine], "encoding_format": "base64"}
            answer = await shared.post("/v1/embeddings", json=body)
            assert decoded(answer) == [alone[i] for i in mine]

    thread = threading.Thread(target=reload)
    thread.start()
    with_clients(server.url, 6, client)
    thread.join()
    assert len(memory) >= 3
    if seconds > 60:
        half = len(memory) // 2
        assert np.median(memory[half:]) - np.median(memory[: half // 2]) < 1024 * seconds / 60  # 1 MiB a minute


def test_a_process_that_is_killed_leaves_nobody_waiting(model: Path) -> None:
    from test_http_process import end, first_line, start

    process = start("--model", str(model), "--port", "0")
    url = first_line(process).split()[1]
    seen: Counter[Any] = Counter()
    is_killed = False

    async def client(shared: httpx.AsyncClient, number: int) -> None:
        nonlocal is_killed
        while True:
            if seen[200] >= 50 and not is_killed:
                is_killed = True
                process.kill()
            try:
                answer = await shared.post("/v1/embeddings", json={"input": ["a dog"] * 20})
            except httpx.TransportError:
                return
            seen[answer.status_code] += 1

    with_clients(url, 8, client)
    assert end(process)[0] == -9
    assert set(seen) == {200}
