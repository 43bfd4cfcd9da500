"""Actors of Ray as workers: each is a process on a machine that Ray chooses."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from ..functions.needed_packages import pip_install
from ..functions.runtime import set_num_threads
from ..functions.scalars import checked_integer
from ._shard import ShardHost
from ._workers import Failure, Request, answered, too_late

__all__ = ["RayWorkers"]


class RayWorkers:
    """Actors of Ray as workers of `ShardedKVCache`. Call ``ray.init`` first.

    Parameters
    ----------
    count : int
        The number of actors.
    num_cpus : int, default 1
        Processors that Ray reserves for each actor, and threads of its computation.
    **options
        Further options of ``ray.remote``: ``memory``, ``scheduling_strategy``, ``runtime_env`` and the like.

    Notes
    -----
    An actor that dies, or does not answer within the time limit of the cache, raises `WorkerError`. After the error
    `ShardedKVCache.restore` kills the actor and starts another one in its place. `close` ends all actors; a ``with``
    statement calls `close` at its end.
    """

    def __init__(self, count: int, *, num_cpus: int = 1, **options: Any) -> None:
        name = "RayWorkers"
        checked_integer(name, "count", count, 1)
        self._threads = checked_integer(name, "num_cpus", num_cpus, 1)
        try:
            import ray
        except ImportError as error:
            command = pip_install("ray[data]", extra="ray")
            raise ImportError(f"{name}: actors need the package ray: {command}") from error
        self._ray = ray
        self._actor = ray.remote(num_cpus=num_cpus, **options)(_Actor)
        self._actors = [self._actor.remote(self._threads) for _ in range(count)]

    @property
    def count(self) -> int:
        """The number of workers."""
        return len(self._actors)

    def ask(self, requests: Mapping[int, Request], time_limit: float) -> dict[int, Any]:
        """Send the requests and wait for the answers until the time limit."""
        deadline = time.monotonic() + time_limit
        refs = {w: self._actors[w].answer.remote(request) for w, request in requests.items()}
        self._ray.wait(list(refs.values()), num_returns=len(refs), timeout=time_limit)
        answers: dict[int, Any] = {}
        for w, ref in refs.items():
            try:
                answers[w] = self._ray.get(ref, timeout=max(0.0, deadline - time.monotonic()))
            except self._ray.exceptions.GetTimeoutError:
                answers[w] = too_late(requests[w], time_limit)
            except self._ray.exceptions.RayError as error:
                reason = " ".join(str(error).split())[:240]
                answers[w] = Failure(f"failed in {requests[w][0]}: {type(error).__name__}: {reason}")
        return answers

    def replace(self, worker: int) -> None:
        """Replace this worker by a new actor."""
        self._ray.kill(self._actors[worker])
        self._actors[worker] = self._actor.remote(self._threads)

    def name_of(self, worker: int) -> str:
        """Return the name of the actor in Ray."""
        return f"actor {self._actors[worker]._actor_id.hex()}"

    def close(self) -> None:
        """End all actors."""
        for actor in self._actors:
            self._ray.kill(actor)

    def __enter__(self) -> RayWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Actor:
    """The shards in a process of Ray."""

    def __init__(self, threads: int) -> None:
        set_num_threads(threads)
        self._host = ShardHost()

    def answer(self, request: Request) -> Any:
        return answered(self._host, request)

    def process_id(self) -> int:
        return os.getpid()
