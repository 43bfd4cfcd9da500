"""The protocol between a sharded cache and its processes, and a transport within one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from ..functions.messages import shown
from ..functions.scalars import checked_integer
from ._shard import ShardHost

# An operation of `ShardHost.answer`, the name of the cache, the worker, and further arguments.
Request: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Failure:
    """The reason for a missing answer: the end of a sentence that begins with the worker."""

    reason: str


class WorkerError(RuntimeError):
    """Workers failed to carry out a request.

    Attributes
    ----------
    workers : tuple of int
        The numbers of these workers.
    """

    def __init__(self, message: str, workers: tuple[int, ...]) -> None:
        super().__init__(message)
        self.workers = workers


class Workers(Protocol):
    """Worker processes, numbered from 0. Each answers requests one after the other, as `ShardHost` does."""

    @property
    def count(self) -> int:
        """The number of workers."""
        ...

    def ask(self, requests: Mapping[int, Request], time_limit: float) -> dict[int, Any]:
        """Send each worker a request, and wait for all answers, at most `time_limit` seconds.

        The answer is a `Failure` for a worker that is late, gone, or had an error. A late answer is never taken for the
        answer to a later request.
        """
        ...

    def replace(self, worker: int) -> None:
        """Replace the process of this worker by another one, without shards."""
        ...

    def name_of(self, worker: int) -> str:
        """Return the place of a worker, for messages."""
        ...


def answered(host: ShardHost, request: Request) -> Any:
    """Return the answer of `host` to a request, or a `Failure` with its error."""
    try:
        return host.answer(*request)
    except Exception as error:
        return Failure(f"failed in {request[0]}: {type(error).__name__}: {' '.join(str(error).split())[:240]}")


def too_late(request: Request, time_limit: float) -> Failure:
    """Return the failure of a worker that has not answered in time."""
    return Failure(f"did not answer {request[0]} within {time_limit:g} s")


class LocalWorkers:
    """Workers within this process, called in sequence: for tests, and to examine the effect of a partition.

    Parameters
    ----------
    count : int
        Number of workers, at least 1.
    """

    def __init__(self, count: int) -> None:
        self._hosts = [ShardHost() for _ in range(checked_integer("LocalWorkers", "count", count, 1))]

    @property
    def count(self) -> int:
        """The number of workers."""
        return len(self._hosts)

    def ask(self, requests: Mapping[int, Request], time_limit: float) -> dict[int, Any]:
        """Return the answers of all workers. The time limit has no effect, since calls do not wait."""
        return {worker: answered(self._hosts[worker], request) for worker, request in requests.items()}

    def replace(self, worker: int) -> None:
        """Drop the shards of a worker."""
        self._hosts[worker] = ShardHost()

    def name_of(self, worker: int) -> str:
        """Return the place of a worker, for messages."""
        return "in this process"

    def __repr__(self) -> str:
        return f"LocalWorkers({shown(self.count)})"
