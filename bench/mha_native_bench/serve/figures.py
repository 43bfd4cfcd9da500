"""What is measured of a server: each figure in turns with what it goes against, as ratios in one run."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mha_native.models import CausalLM, SentenceEncoder
from mha_native.serving import Batcher
from mha_native_bench.cases.sentence_model import texts_of_lengths
from mha_native_bench.serve.clients import Answers, Connection, closed_loop, median, open_loop, under_clients
from mha_native_bench.serve.servers import KINDS, Server, body_of, started

SHORT, LONG = 11, 100  # tokens of texts
CLIENTS, SINGLES, BULK = 32, 16, 256
TEXTS, NEW_TOKENS = 64, 32  # that are generated at once


@dataclass(frozen=True)
class Figure:
    """A row of the report. `bar` is what it should reach: at least, or at most if it begins with "<"."""

    name: str
    value: str
    ratio: float
    bar: str


@dataclass(frozen=True)
class Plan:
    model: Path | None  # of embeddings
    language_model: Path | None
    peers: dict[str, str | None]  # with the Python that has each
    seconds: float
    overload_seconds: float
    rounds: int

    def peers_for(self, embeddings: bool) -> list[str]:
        return [name for name in self.peers if (KINDS[name].embeddings if embeddings else KINDS[name].completions)]


def figures(plan: Plan) -> Iterator[Figure]:
    """Measure one figure after another."""
    if plan.model is not None:
        model = SentenceEncoder.from_pretrained(plan.model)
        rng = np.random.default_rng(0)
        short, long = ([*texts_of_lengths(plan.model, [n] * 256, rng)[0]] for n in (SHORT, LONG))
        with ExitStack() as stack:
            server = stack.enter_context(started("mha_native", plan.model, None))
            resident = server.resident
            yield Figure("start to the first answer", f"{server.start_seconds:.2f} s", server.start_seconds, "< 1 s")
            peers = {name: stack.enter_context(started(name, plan.model, plan.peers[name])) for name in
                     plan.peers_for(embeddings=True)}  # fmt: skip
            yield from _clients(plan, model, short, server, peers)
            yield from _beside_bulk(plan, short, long, server)
            yield from _overload(plan, short, server)
            yield Figure("resident memory", f"{resident / 1e6:.0f} MB", resident / 1e6, "< 200 MB")
    if plan.language_model is not None:
        yield from _texts_at_once(plan, plan.language_model)


def _bodies(name: str, model: Path, texts: list[Any]) -> list[bytes]:
    path = KINDS[name].embeddings
    assert path is not None
    return [json.dumps(body_of(path, text, str(model))).encode() for text in texts]


def _clients(
    plan: Plan, model: SentenceEncoder, short: list[str], server: Server, peers: dict[str, Server]
) -> Iterator[Figure]:
    """One client, and many, of short texts."""
    assert plan.model is not None
    servers = {"mha_native": server, **peers}
    for clients, size in ((1, 1), (CLIENTS, CLIENTS)):
        alone: list[float] = []
        found: dict[str, list[Answers]] = {name: [] for name in servers}
        for _ in range(plan.rounds):
            alone.append(_of_encode(model, short, size, plan.seconds / 2))
            for name, each in servers.items():
                path = KINDS[name].embeddings
                assert path is not None
                bodies = _bodies(name, plan.model, short)
                found[name].append(under_clients(each.url, path, bodies, clients, plan.seconds))
            alone.append(_of_encode(model, short, size, plan.seconds / 2))
        before = [(alone[2 * i] + alone[2 * i + 1]) / 2 for i in range(plan.rounds)]
        ours = found["mha_native"]
        if clients == 1:
            ratio = median([each.quantile(0.5) / own for each, own in zip(ours, before, strict=True)])
            value = f"{1e3 * median([each.quantile(0.5) for each in ours]):.2f} ms; encode {1e3 * median(before):.2f}"
            yield Figure("1 client, p50 over encode", value, ratio, "< 1.15")
        else:
            ratio = median([each.rate * own / size for each, own in zip(ours, before, strict=True)])
            value = f"{median([each.rate for each in ours]):.0f}/s; encode {size / median(before):.0f}/s"
            yield Figure(f"{clients} clients, rate over encode of {size}", value, ratio, "0.85")
        for name in peers:
            ratio = median([a.rate / b.rate if b.rate else np.inf for a, b in zip(ours, found[name], strict=True)])
            rates = [median([each.rate for each in of]) for of in (ours, found[name])]
            bar = {"sentence-transformers": ("5", "15"), "infinity": ("1.3", "1.3")}[name][clients > 1]
            yield Figure(f"{clients} clients, rate over {name}", f"{rates[0]:.0f}/s; {rates[1]:.0f}/s", ratio, bar)


def _of_encode(model: SentenceEncoder, texts: list[str], size: int, seconds: float) -> float:
    """The median time of `encode` in this process, of `size` texts."""
    times: list[float] = []
    end, i = time.perf_counter() + seconds, 0
    while (begin := time.perf_counter()) < end or not times:
        model.encode(texts[i : i + size] if size > 1 else texts[i])
        times.append(time.perf_counter() - begin)
        i = (i + size) % (len(texts) - size + 1)
    return median(times)


def _beside_bulk(plan: Plan, short: list[str], long: list[str], server: Server) -> Iterator[Figure]:
    """Clients of single texts, alone and beside a client of many texts a request."""
    assert plan.model is not None
    path, singles = "/v1/embeddings", _bodies("mha_native", plan.model, short)
    many = _bodies("mha_native", plan.model, [long[:BULK]])

    def of_singles() -> float:
        return under_clients(server.url, path, singles, SINGLES, plan.seconds).quantile(0.95)

    def of_bulk(seconds: float) -> float:
        return BULK * asyncio.run(closed_loop(server.url, path, many, 1, seconds)).rate

    latencies, rates = [], []
    for _ in range(plan.rounds):
        alone, rate = [of_singles()], [of_bulk(plan.seconds)]
        beside: list[float] = []
        thread = threading.Thread(target=lambda: beside.append(of_bulk(plan.seconds)))  # noqa: B023
        thread.start()
        late = of_singles()
        thread.join()
        alone.append(of_singles())
        rate.append(of_bulk(plan.seconds))
        latencies.append((late, sum(alone) / 2))
        rates.append((beside[0], sum(rate) / 2))
    late, alone_one = (1e3 * median(each) for each in zip(*latencies, strict=True))
    ratio = median([a / b for a, b in latencies])
    yield Figure(f"{SINGLES} clients beside a bulk client, p95", f"{late:.1f} ms; {alone_one:.1f}", ratio, "< 3")
    now, before = (median(each) for each in zip(*rates, strict=True))
    yield Figure("the bulk client's rate", f"{now:.0f}/s; {before:.0f}/s", median([a / b for a, b in rates]), "0.7")


def _overload(plan: Plan, short: list[str], server: Server) -> Iterator[Figure]:
    """Four times as many requests as the server can answer, by the clock."""
    assert plan.model is not None
    path, bodies = "/v1/embeddings", _bodies("mha_native", plan.model, [[text] * 8 for text in short])

    def few() -> float:
        return asyncio.run(closed_loop(server.url, path, bodies, 1, 1)).quantile(0.5)

    best = max(asyncio.run(closed_loop(server.url, path, bodies, n, plan.seconds)).rate for n in (8, 32))
    before, calm = server.resident, few()
    found = asyncio.run(open_loop(server.url, path, bodies, 4 * best, plan.overload_seconds))
    ended = time.perf_counter()
    while few() > 1.5 * calm and time.perf_counter() - ended < 20:
        pass
    recovery = time.perf_counter() - ended - 1  # a look takes a second
    refused = sorted(t for t, status in zip(found.times, found.statuses, strict=True) if status == 429)
    others = sum(status not in (200, 429) for status in found.statuses)
    value = f"{found.rate:.0f}/s of {best:.0f}/s, {len(refused)} refused, {others} others"
    yield Figure(f"four times the best rate for {plan.overload_seconds:.0f} s", value, found.rate / best, "0.9")
    if refused:
        late = 1e3 * refused[int(0.95 * len(refused))]
        yield Figure("refusals, p95", f"{late:.1f} ms", late, "< 20 ms")
    more = (server.resident - before) / 1e6
    yield Figure("memory of the overload", f"{more:+.0f} MB", more, "< 50 MB")
    yield Figure("until the median is calm again", f"{recovery:.1f} s", recovery, "< 2 s")


def _texts_at_once(plan: Plan, path: Path) -> Iterator[Figure]:
    """Texts of one language model, all submitted at once: over HTTP, and by the Batcher in this process."""
    rng = np.random.default_rng(0)
    prompts = [" ".join(["word"] * int(n)) for n in rng.integers(10, 120, TEXTS)]
    options = {"max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    salts = itertools.count()  # a server shares no pages with the texts of an earlier round, as a new Batcher has none

    def of_http(server: Server, name: str, count: int) -> tuple[float, float]:
        """Tokens a second, and the median time of the first byte."""
        where = KINDS[name].completions
        assert where is not None
        given = options | ({"cache_salt": str(next(salts))} if name == "mha_native" else {})
        bodies = [json.dumps(body_of(where, text, str(path), stream=True) | given).encode() for text in prompts]

        async def ask() -> list[float]:
            begin = time.perf_counter()

            async def one(body: bytes) -> float:
                connection = Connection(server.url)
                status, _, first = await connection.post(where, body)
                await connection.close()
                if status != 200:
                    raise RuntimeError(f"{name} answers with status {status}")
                return first - begin

            return list(await asyncio.gather(*map(one, bodies[:count])))

        begin = time.perf_counter()
        firsts = asyncio.run(ask())
        return count * NEW_TOKENS / (time.perf_counter() - begin), median(firsts)

    model = CausalLM.from_pretrained(path, weight_dtype="int8")

    def in_process(by_arrival: bool = False) -> tuple[float, float]:
        begin = time.perf_counter()
        with Batcher(model) as batcher:
            if by_arrival:  # prompts of equal rank keep their order
                batcher._queue.scheduler._rank = lambda sequence, read: 0  # type: ignore[method-assign]
            requests = [batcher.submit(text, max_new_tokens=NEW_TOKENS, ignore_eos=True) for text in prompts]
            for request in requests:
                request.result()
            took = time.perf_counter() - begin
            return TEXTS * NEW_TOKENS / took, median([each.statistics.first_token_seconds for each in requests])

    with ExitStack() as stack:
        server = stack.enter_context(started("mha_native", path, None, "--weight-dtype", "int8"))
        peers = {
            name: stack.enter_context(started(name, path, plan.peers[name]))
            for name in plan.peers_for(embeddings=False)
        }
        turns = [
            (in_process(), of_http(server, "mha_native", TEXTS), in_process(), in_process(by_arrival=True))
            for _ in range(plan.rounds)
        ]
        ratios = [ours[0] / ((a[0] + b[0]) / 2) for a, ours, b, _ in turns]
        value = f"{median([t[1][0] for t in turns]):.0f} tokens/s; Batcher {median([t[0][0] for t in turns]):.0f}"
        yield Figure(f"{TEXTS} texts at once, over Batcher", value, median(ratios), "0.95")
        first, arrival = median([t[1][1] for t in turns]), median([t[3][1] for t in turns])
        ratio = median([ours[1] / by[1] for _, ours, _, by in turns])
        value = f"{first:.2f} s; in the order of arrival {arrival:.2f} s"
        yield Figure("their first token, over the order of arrival", value, ratio, "< 0.6")
        for name, each in peers.items():
            found: list[Callable[[], tuple[float, float]]] = [
                lambda: of_http(server, "mha_native", 8),
                lambda each=each, name=name: of_http(each, name, 8),  # type: ignore[misc]
            ]
            pairs = [tuple(one()[0] for one in found) for _ in range(plan.rounds)]
            value = f"{median([a for a, _ in pairs]):.0f} tokens/s; {median([b for _, b in pairs]):.0f}"
            yield Figure(f"8 texts at once, over {name}", value, median([a / b for a, b in pairs]), "1")
