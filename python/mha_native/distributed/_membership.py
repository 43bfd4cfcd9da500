"""The workers of one cache: which have joined, which have failed, and what they answer."""

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
    """`workers` as those of one cache, which has a name of its own among others that they serve."""

    def __init__(self, workers: Workers, sizes: Sizes, time_limit: float) -> None:
        self._workers, self._sizes, self._cache = workers, sizes, uuid.uuid4().hex
        self.time_limit = time_limit
        self.everyone = range(workers.count)
        self.lost: dict[int, str] = {}
        self._silent: frozenset[int] = frozenset()  # of the lost, those whose process must be another one
        self.isas: dict[int, str] = {}

    def ask(self, name: str, requests: Mapping[int, Request]) -> dict[int, Any]:
        """Answers of all, or a WorkerError that names the first that has none."""
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
        if self.lost:
            worker, reason = next(iter(self.lost.items()))
            message = f"{name}: the cache must be restored first: worker {worker} {reason}"
            raise WorkerError(message, tuple(self.lost))

    def join(self, name: str, workers: Iterable[int]) -> None:
        """Let workers make their shards, and refuse those that are not alike."""
        expected = {"version": _core.__version__} | asdict(self._sizes)
        for w, told in self.ask(name, dict.fromkeys(workers, ("join", self._sizes))).items():
            for what, own in expected.items():
                if told.get(what) != own:
                    rule = f"worker {w} ({self._workers.name_of(w)}) must have {what} {shown(own)}"
                    raise WorkerError(f"{name}: {rule}; got {shown(told.get(what))}", (w,))
            self.isas[w] = told["isa"]

    def without(self, request: Request) -> list[int]:
        """The workers that do not answer a request with True, which are lost from now on, and no others are.

        One that answers False lives, and may have tokens of other caches: its process stays when it is replaced.
        """
        answers = self._answers(dict.fromkeys(self.everyone, request))
        lost = [w for w in self.everyone if answers[w] is not True]
        self.lost = {w: self.lost.get(w, "has lost its tokens") for w in lost}
        self._silent = frozenset(w for w in lost if isinstance(answers[w], Failure))
        return lost

    @contextmanager
    def replaced(self, name: str) -> Iterator[None]:
        """Empty shards in place of those that are lost, which they stay if the block fails."""
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
        """Let those that are there free their memory."""
        self._answers({w: ("leave",) for w in self.everyone if w not in self.lost})
        self.lost = dict.fromkeys(self.everyone, "has left: the cache is closed")

    def _answers(self, requests: Mapping[int, Request]) -> dict[int, Any]:
        """Those of the transport, to requests that say whose shard they are for."""
        addressed = {w: (operation, self._cache, w, *rest) for w, (operation, *rest) in requests.items()}
        return self._workers.ask(addressed, self.time_limit)
