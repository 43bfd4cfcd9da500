"""What a cache in shards asks of the processes that hold it: the protocol of a transport, and one within a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from ..functions.messages import shown
from ..functions.scalars import checked_integer
from ._shard import ShardHost

# An operation of `ShardHost.answer`, the name of the cache, the worker, and what else the operation takes.
Request: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Failure:
    """What takes the place of a worker's answer: the end of a sentence that begins with the worker."""

    reason: str


class WorkerError(RuntimeError):
    """Workers did not do what they were asked to.

    Attributes
    ----------
    workers : tuple of int
        Which ones.
    """

    def __init__(self, message: str, workers: tuple[int, ...]) -> None:
        super().__init__(message)
        self.workers = workers


class Workers(Protocol):
    """Worker processes, numbered from 0. Each answers requests one after the other, as `ShardHost` does."""

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    def ask(self, requests: Mapping[int, Request], time_limit: float) -> dict[int, Any]:
        """Send workers a request each, and wait for all answers, `time_limit` seconds at most.

        A worker that does not answer in time, that is gone or that ran into an error has a `Failure` for an answer. No
        answer to a request comes as that to a later one.
        """
        ...

    def replace(self, worker: int) -> None:
        """Let another process, with no shard, be this worker from now on."""
        ...

    def name_of(self, worker: int) -> str:
        """Where a worker runs, for messages."""
        ...


def answered(host: ShardHost, request: Request) -> Any:
    """What `host` answers to a request, or a `Failure` with the error that it ran into."""
    try:
        return host.answer(*request)
    except Exception as error:
        return Failure(f"failed in {request[0]}: {type(error).__name__}: {' '.join(str(error).split())[:240]}")


def too_late(request: Request, time_limit: float) -> Failure:
    """Of a worker that has not answered."""
    return Failure(f"did not answer {request[0]} within {time_limit:g} s")


class LocalWorkers:
    """Workers within this process, one after the other: for tests, and to see what a cut does to results.

    Parameters
    ----------
    count : int
        At least 1.
    """

    def __init__(self, count: int) -> None:
        self._hosts = [ShardHost() for _ in range(checked_integer("LocalWorkers", "count", count, 1))]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._hosts)

    def ask(self, requests: Mapping[int, Request], time_limit: float) -> dict[int, Any]:
        """Answers of all; the limit does not matter, since nothing is waited for."""
        return {worker: answered(self._hosts[worker], request) for worker, request in requests.items()}

    def replace(self, worker: int) -> None:
        """Forget the shards of a worker."""
        self._hosts[worker] = ShardHost()

    def name_of(self, worker: int) -> str:
        """Where a worker runs, for messages."""
        return "in this process"

    def __repr__(self) -> str:
        return f"LocalWorkers({shown(self.count)})"
