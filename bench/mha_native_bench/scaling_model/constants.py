"""The constants of the model, as they were measured, with the processor: a small file of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

# What `--measure` has written on the machine of docs/scaling.md.
MEASURED = Path(__file__).with_name("constants.json")

# Keys of a block of the cache in shards: the rule of `mha_native.distributed`, by which positions are dealt out.
BLOCK_KEYS = 512


@dataclass(frozen=True)
class Worker:
    """Seconds of a worker of one thread, for a cache of `heads` heads of `head_dim` numbers in float32."""

    call: float  # for a request, whatever it is over
    decode_block: float  # for 1 query over a block of 512 keys
    queries_block: float  # for 64 queries over a block
    delays: list[tuple[float, float]]  # quantiles of the time of a call beyond its median: (probability, seconds)
    delays_over: float  # seconds of that call
    heads: int = 8
    head_dim: int = 64

    def faster(self, by: float) -> Worker:
        """A worker whose blocks take so much less, such as one with more threads."""
        return replace(self, decode_block=self.decode_block / by, queries_block=self.queries_block / by)


@dataclass(frozen=True)
class Asker:
    """Seconds of the process that asks, beside its own shard."""

    step: float  # for a call of `attend`, with one worker
    worker: float  # more for each further worker: its request, and its part of the merge
    message: float  # for each further worker: to write and send one message, and to take and read one


@dataclass(frozen=True)
class Network:
    """How messages travel."""

    exchange: float  # seconds from a request of next to nothing to its answer, with both ends of it
    byte: float  # seconds for a byte, either way

    def with_gigabits(self, gigabits: float) -> Network:
        """The same latency, at another bandwidth, in 10^9 bits a second."""
        return replace(self, byte=8e-9 / gigabits)


@dataclass(frozen=True)
class Actor:
    """Seconds of an actor of one thread that embeds texts, and of what feeds it."""

    text: float  # for a text
    beside: float  # that processors take for a text beside the actor: the processes of Ray, and the one that drives it
    start: float  # until an actor gives its first rows: its process, its imports, its model
    block: float  # that Ray takes for a block of rows, one after the other, in the process that drives
    rows: int  # of a block
    row_bytes: float  # that move for a row: text, and embedding
    model_bytes: float  # that an actor reads as it starts


@dataclass(frozen=True)
class Constants:
    """All of them. `alone` is a process of one thread on an idle machine, `busy` one of as many as there are cores."""

    processor: str
    cores: int
    alone: Worker
    busy: Worker
    asker: Asker
    memory: Network  # messages within the machine
    sockets: Network  # by TCP, over loopback: the software of a network without its wires
    actor_alone: Actor
    actor_busy: Actor


def load(path: Path = MEASURED) -> Constants:
    """Constants from a file that `save` has written."""
    return from_document(json.loads(path.read_text(encoding="utf-8"))["constants"])


def from_document(document: dict[str, Any]) -> Constants:
    kinds: dict[str, Any] = {
        "alone": Worker, "busy": Worker, "asker": Asker, "memory": Network, "sockets": Network,
        "actor_alone": Actor, "actor_busy": Actor,
    }  # fmt: skip
    return Constants(**{name: kinds[name](**value) if name in kinds else value for name, value in document.items()})


def save(constants: Constants, runs: list[dict[str, Any]], path: Path) -> None:
    """Write constants, and the runs that the model is compared with."""
    document = {"constants": asdict(constants), "runs": runs}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
