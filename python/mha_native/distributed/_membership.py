"""The workers of one cache: joining, failures and answers."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from .. import _core
from ..functions.messages import shown
from ._partition import Sizes
from ._workers import Failure, Request, WorkerError, Workers


class Members:
    """The `workers` of one cache, which has a unique name, since workers can serve several caches."""

    def __init__(self, workers: Workers, sizes: Sizes, time_limit: float) -> None:
        self._workers, self._sizes, self._cache = workers, sizes, uuid.uuid4().hex
        self.time_limit = time_limit
        self.everyone = range(workers.count)
        self.lost: dict[int, str] = {}
        self._silent: frozenset[int] = frozenset()  # lost workers whose process must be replaced
        self.isas: dict[int, str] = {}

    def ask(self, name: str, requests: Mapping[int, Request]) -> dict[int, Any]:
        """Return the answers of all workers, or raise a WorkerError that names the first without an answer."""
        self.require_none_lost(name)
        answers = self._answers(requests)
        failed = {w: answer.reason for w, answer in answers.items() if isinstance(answer, Failure)}
        if failed:
            self.lost = failed
            worker, reason = next(iter(failed.items()))
            message = f"{name}: worker {worker} ({self._workers.name_of(worker)}) {reason}"
            raise WorkerError(message, tuple(failed))
        return answers

    def require_none_lost(self, name: str) -> None:
        """Raise WorkerError if a worker is lost."""
        if self.lost:
            worker, reason = next(iter(self.lost.items()))
            message = f"{name}: the cache must be restored first: worker {worker} {reason}"
            raise WorkerError(message, tuple(self.lost))

    def join(self, name: str, workers: Iterable[int]) -> None:
        """Let workers make their shards, and refuse workers that differ."""
        expected = {"version": _core.__version__} | asdict(self._sizes)
        for w, told in self.ask(name, dict.fromkeys(workers, ("join", self._sizes))).items():
            for what, own in expected.items():
                if told.get(what) != own:
                    rule = f"worker {w} ({self._workers.name_of(w)}) must have {what} {shown(own)}"
                    raise WorkerError(f"{name}: {rule}; got {shown(told.get(what))}", (w,))
            self.isas[w] = told["isa"]

    def without(self, request: Request) -> list[int]:
        """Ask all workers. Workers that do not answer with True become the lost workers, and are returned.

        A worker that answers False is alive, and may have tokens of other caches: `replaced` keeps its process.
        """
        answers = self._answers(dict.fromkeys(self.everyone, request))
        lost = [w for w in self.everyone if answers[w] is not True]
        self.lost = {w: self.lost.get(w, "has lost its tokens") for w in lost}
        self._silent = frozenset(w for w in lost if isinstance(answers[w], Failure))
        return lost

    @contextmanager
    def replaced(self, name: str) -> Iterator[None]:
        """Replace lost shards by empty shards; they remain lost if the block fails."""
        reasons, self.lost = self.lost, {}
        try:
            for w in self._silent:
                self._workers.replace(w)
            self.join(name, reasons)
            yield
        except BaseException:
            self.lost = reasons | self.lost
            raise

    def leave(self) -> None:
        """Let the remaining workers free their memory."""
        self._answers({w: ("leave",) for w in self.everyone if w not in self.lost})
        self.lost = dict.fromkeys(self.everyone, "has left: the cache is closed")

    def _answers(self, requests: Mapping[int, Request]) -> dict[int, Any]:
        """Send requests by the transport, with the name of the cache and the worker, and return the answers."""
        addressed = {w: (operation, self._cache, w, *rest) for w, (operation, *rest) in requests.items()}
        return self._workers.ask(addressed, self.time_limit)
