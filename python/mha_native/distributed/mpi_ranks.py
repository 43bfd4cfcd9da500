"""Ranks of MPI as workers: rank 0 sends requests, and polls for the answers of all ranks until a deadline."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..functions.messages import in_the_name_of
from ..functions.needed_packages import pip_install
from ._mpi_messages import ALIGNMENT, Reader, Writer
from ._shard import ShardHost
from ._workers import Failure, Request, answered, too_late

if TYPE_CHECKING:
    from mpi4py.MPI import Datatype, Intracomm
    from mpi4py.MPI import Request as MPIRequest

__all__ = ["MPIWorkers", "run_worker"]

# Tags of requests and answers, and of the end, which arrives also after an incomplete message.
_TAG, _TAG_OF_END = 512, 513

# An idle rank polls for a request for some time without a pause, so that a step of a model does not wait, and then with
# pauses, which leave the processor to others.
_SECONDS_AWAKE, _PAUSE = 0.05, 200e-6

# Communicators with an MPIWorkers.
_in_use: set[int] = set()


class MPIWorkers:
    """The ranks of a communicator as workers of `ShardedKVCache`. Rank 0 makes them; all others call `run_worker`.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        Default: ``MPI.COMM_WORLD``, as in `run_worker`. Other messages must not use its tags 512 and 513.

    Notes
    -----
    Rank 0 is a worker, too: it computes between sending requests and receiving answers. `close` lets the others return
    from `run_worker`; as a context manager it is closed at the end.

    By default `mpiexec` of Open MPI 4 ends all ranks when one dies, and nothing can be restored. Use ``mpiexec
    --enable-recovery`` to let the others continue. A rank that is gone or stopped does not answer within the time limit
    of the cache: a `WorkerError`. Messages to other ranks continue. After `ShardedKVCache.restore` its shards are in
    rank 0. MPI cannot finalize without the rank: after `close` the other processes end without ``MPI_Finalize``.
    """

    def __init__(self, comm: Intracomm | None = None) -> None:
        with in_the_name_of("MPIWorkers"):
            self._comm = _communicator("MPIWorkers", comm)
        if self._comm.rank != 0:
            raise ValueError(f"MPIWorkers: only rank 0 may make it, others call run_worker; got rank {self._comm.rank}")
        if self._comm.handle in _in_use:
            raise ValueError("MPIWorkers: comm has one already, which receives its messages; close that first")
        _in_use.add(self._comm.handle)
        self._host = ShardHost()
        self._ranks = list(range(self._comm.size))  # the rank of each worker
        self._places: dict[int, str] = {}
        self._serial = 0
        self._writers = [Writer() for _ in self._ranks]  # of messages to each rank, and from it
        self._readers = [Reader() for _ in self._ranks]
        self._inbox = _Inbox(self._comm)
        self._outbox = _Outbox(self._comm)
        self._unreachable: set[int] = set()
        self._is_closed = False

    @property
    def count(self) -> int:
        """The number of workers."""
        return len(self._ranks)

    def ask(self, requests: Mapping[int, Request], time_limit: float) -> dict[int, Any]:
        """Send the requests, carry out requests to rank 0, and poll for the answers until the time limit."""
        deadline = time.monotonic() + time_limit
        self._serial += 1
        remote = {w: request for w, request in requests.items() if self._ranks[w] != 0}
        if self._is_closed:
            return {w: Failure("has ended: MPIWorkers is closed") if w in remote else answered(self._host, request)
                    for w, request in requests.items()}  # fmt: skip
        for worker, request in remote.items():
            rank = self._ranks[worker]
            message = self._writers[rank].message(self._serial, worker, request)
            self._outbox.send(message, rank)
        # A large message progresses only within calls of MPI: all must be sent before this rank begins to compute.
        _polled(lambda: self._outbox.is_empty(self._unreachable), deadline)
        answers = {w: answered(self._host, request) for w, request in requests.items() if w not in remote}
        # The time of rank 0 does not count as a delay of others.
        deadline = max(deadline, time.monotonic() + min(time_limit, 0.1))

        def all_answered() -> bool:
            while len(answers) < len(requests):
                if (arrived := self._inbox.next()) is None:
                    return False
                rank, message = arrived
                header, (place, answer) = self._readers[rank].read(message)
                self._places[header.worker] = place
                self._unreachable.discard(rank)
                if header.serial == self._serial:  # answers to earlier requests are dropped
                    answers[header.worker] = answer
            return True

        _polled(all_answered, deadline)
        for worker, request in remote.items():
            if worker not in answers:
                self._unreachable.add(self._ranks[worker])
                answers[worker] = too_late(request, time_limit)
        return answers

    def replace(self, worker: int) -> None:
        """Let rank 0 replace this worker."""
        self._ranks[worker] = 0

    def name_of(self, worker: int) -> str:
        """Return the rank of a worker, and its place if it has ever answered."""
        rank = self._ranks[worker]
        return f"rank {rank}" + (f", {self._places[worker]}" if rank and worker in self._places else "")

    def close(self) -> None:
        """Let the other ranks return from `run_worker`; a late rank returns as soon as it continues."""
        if self._is_closed:
            return
        self._is_closed = True
        _in_use.discard(self._comm.handle)
        for rank in range(1, self._comm.size):
            self._outbox.send(np.full(ALIGNMENT, bool(self._unreachable), np.uint8), rank, _TAG_OF_END)
        _polled(lambda: self._outbox.is_empty(self._unreachable), time.monotonic() + 5)
        if self._unreachable:
            atexit.register(_end_without_finalize)

    def __enter__(self) -> MPIWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def run_worker(comm: Intracomm | None = None) -> None:
    """Answer the requests of rank 0 until it closes its `MPIWorkers`. Every other rank calls this function.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        As for `MPIWorkers`.
    """
    with in_the_name_of("run_worker"):
        world = _communicator("run_worker", comm)
    host, place = ShardHost(), f"process {os.getpid()} of {socket.gethostname()}"
    inbox, outbox, reader, writer = _Inbox(world, 0), _Outbox(world), Reader(), Writer()
    is_rank_lost = np.zeros(ALIGNMENT, np.uint8)
    ending = world.Irecv(is_rank_lost, 0, _TAG_OF_END)
    while (message := inbox.wait(outbox, ending)) is not None:
        header, request = reader.read(message)
        outbox.send(writer.message(header.serial, header.worker, (place, answered(host, request))), 0)
    if is_rank_lost.any():
        atexit.register(_end_without_finalize)


def serve(comm: Intracomm | None = None) -> None:
    """Deprecated name of `run_worker`; it goes in the next release."""
    warnings.warn(f"{__name__}.serve is deprecated; use run_worker", DeprecationWarning, stacklevel=2)
    run_worker(comm)


def _communicator(function: str, comm: Intracomm | None) -> Intracomm:
    try:
        from mpi4py import MPI
    except ImportError as error:
        command = pip_install("mpi4py", extra="mpi")
        raise ImportError(f"{function}: MPI needs the package mpi4py: {command}") from error
    return MPI.COMM_WORLD if comm is None else comm


@cache
def _lines() -> Datatype:
    """Return the MPI type of a cache line. MPI counts up to 2^31 - 1 elements, which are 128 GiB of lines.

    One type serves the whole process, since each committed type takes memory until it is freed.
    """
    from mpi4py import MPI

    return MPI.BYTE.Create_contiguous(ALIGNMENT).Commit()


class _Inbox:
    """Received messages, from one rank or by default from any."""

    def __init__(self, comm: Intracomm, source: int | None = None) -> None:
        from mpi4py import MPI

        self._comm, self._source = comm, MPI.ANY_SOURCE if source is None else source
        self._status, self._line = MPI.Status(), _lines()
        self._coming: list[tuple[int, NDArray[np.uint8], MPIRequest]] = []

    def next(self) -> tuple[int, NDArray[np.uint8]] | None:
        """Return the sender and the bytes of a message; None if no message is complete."""
        message = self._comm.Improbe(self._source, _TAG, self._status)
        if message is not None:
            lines = self._status.Get_count(self._line)
            received = np.empty(lines * ALIGNMENT, np.uint8)
            receiving = message.Irecv((received, lines, self._line))
            self._coming.append((self._status.Get_source(), received, receiving))
        late = set()  # ranks with an incomplete message: their messages are read in order
        for i, (rank, received, receiving) in enumerate(self._coming):
            if rank not in late and receiving.Test():
                del self._coming[i]
                return rank, received
            late.add(rank)
        return None

    def wait(self, outbox: _Outbox, ending: MPIRequest) -> NDArray[np.uint8] | None:
        """Return the bytes of the next message, also if `outbox` is not taken; None if `ending` has arrived."""
        awake_until = time.monotonic() + _SECONDS_AWAKE
        while (arrived := self.next()) is None:
            if time.monotonic() > awake_until:
                if ending.Test():
                    return None
                if outbox.is_empty():
                    time.sleep(_PAUSE)
            os.sched_yield()
        return arrived[1]


class _Outbox:
    """Messages being sent. Their memory stays until MPI has sent them, even if a call fails."""

    def __init__(self, comm: Intracomm) -> None:
        self._comm, self._line = comm, _lines()
        self._going: list[tuple[int, MPIRequest]] = []

    def send(self, message: NDArray[np.uint8], rank: int, tag: int = _TAG) -> None:
        """Begin to send whole lines; a large message progresses within `is_empty`."""
        lines = (message, message.size // ALIGNMENT, self._line)
        self._going.append((rank, self._comm.Isend(lines, rank, tag)))

    def is_empty(self, without: Collection[int] = ()) -> bool:
        """Return whether all messages are sent, apart from messages to the ranks `without`."""
        self._going = [(rank, sending) for rank, sending in self._going if not sending.Test()]
        return all(rank in without for rank, _ in self._going)


def _polled(is_done: Callable[[], bool], deadline: float) -> bool:
    """Poll `is_done`, which lets messages progress, until it is True or `time.monotonic` reaches `deadline`."""
    while not is_done():
        if time.monotonic() > deadline:
            return is_done()
        os.sched_yield()  # to a rank on the same processor, which may be computing the answer
    return True


def _end_without_finalize() -> None:
    """End the process without MPI, which would wait for a lost rank. The exit code is 1 after an exception."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(hasattr(sys, "last_type")))
