"""Ranks of MPI as workers: rank 0 asks, all ranks answer, by messages that are polled with a deadline."""

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
from ._mpi_messages import ALIGNMENT, Reader, Writer
from ._shard import ShardHost
from ._workers import Failure, Request, answered, too_late

if TYPE_CHECKING:
    from mpi4py.MPI import Datatype, Intracomm
    from mpi4py.MPI import Request as MPIRequest

__all__ = ["MPIWorkers", "run_worker"]

# Messages of ours; the answer to a request has the same. The last one is seen also behind one that never becomes whole.
_TAG, _TAG_OF_END = 512, 513

# A rank that has nothing to do looks for a request all the time for so many seconds, which costs a step of a model no
# wait, and then again after such pauses, which leave the processor to others.
_SECONDS_AWAKE, _PAUSE = 0.05, 200e-6

# Communicators that have an MPIWorkers.
_in_use: set[int] = set()


class MPIWorkers:
    """The ranks of a communicator as workers of `ShardedKVCache`. Made by rank 0, while all others are in `run_worker`.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        Default: ``MPI.COMM_WORLD``, as in `run_worker`. Its tags 512 and 513 must not be used by other messages.

    Notes
    -----
    Rank 0 is a worker, too: it computes between sending requests and taking in answers. `close` lets the others return
    from `run_worker`; as a context manager it is closed at the end.

    What Open MPI 4 survives: by default `mpiexec` ends all ranks as soon as one dies, and nothing can be restored. With
    ``mpiexec --enable-recovery`` the others live on. A rank that is gone, or stopped, does not answer within the time
    limit of the cache, which is then a `WorkerError`; messages to other ranks go on. After `ShardedKVCache.restore` its
    shards live in rank 0. MPI cannot end in order without the rank: after `close` the processes of the others end
    without ``MPI_Finalize``.
    """

    def __init__(self, comm: Intracomm | None = None) -> None:
        with in_the_name_of("MPIWorkers"):
            self._comm = _communicator("MPIWorkers", comm)
        if self._comm.rank != 0:
            raise ValueError(f"MPIWorkers: rank 0 asks, the others call run_worker; got rank {self._comm.rank}")
        if self._comm.handle in _in_use:
            raise ValueError("MPIWorkers: comm has one already, which takes its messages; close that first")
        _in_use.add(self._comm.handle)
        self._host = ShardHost()
        self._ranks = list(range(self._comm.size))  # of each worker
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
        """How many there are."""
        return len(self._ranks)

    def ask(self, requests: Mapping[int, Request], time_limit: float) -> dict[int, Any]:
        """Send the requests, do those of rank 0, and poll for the answers until the time limit."""
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
        # A large message goes on only within calls of MPI: all must be under way before this rank begins to compute.
        _polled(lambda: self._outbox.is_empty(self._unreachable), deadline)
        answers = {w: answered(self._host, request) for w, request in requests.items() if w not in remote}
        # What rank 0 took to compute is no delay of others.
        deadline = max(deadline, time.monotonic() + min(time_limit, 0.1))

        def all_answered() -> bool:
            while len(answers) < len(requests):
                if (arrived := self._inbox.next()) is None:
                    return False
                rank, message = arrived
                header, (place, answer) = self._readers[rank].read(message)
                self._places[header.worker] = place
                self._unreachable.discard(rank)
                if header.serial == self._serial:  # others are answers that came too late
                    answers[header.worker] = answer
            return True

        _polled(all_answered, deadline)
        for worker, request in remote.items():
            if worker not in answers:
                self._unreachable.add(self._ranks[worker])
                answers[worker] = too_late(request, time_limit)
        return answers

    def replace(self, worker: int) -> None:
        """Let rank 0 be this worker, too."""
        self._ranks[worker] = 0

    def name_of(self, worker: int) -> str:
        """The rank of a worker, and where it runs, if it has ever answered."""
        rank = self._ranks[worker]
        return f"rank {rank}" + (f", {self._places[worker]}" if rank and worker in self._places else "")

    def close(self) -> None:
        """Let the other ranks return from `run_worker`, a late one as soon as it continues."""
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
    """Work for rank 0 until it closes its `MPIWorkers`. Every other rank calls this function.

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
        raise ImportError(f"{function}: MPI takes the package mpi4py: pip install mha_native[mpi]") from error
    return MPI.COMM_WORLD if comm is None else comm


@cache
def _lines() -> Datatype:
    """What messages consist of. Their bytes may be more than MPI can count, 2^31 - 1; so many lines are 128 GiB.

    One serves the whole process: each that is committed takes memory until it is freed.
    """
    from mpi4py import MPI

    return MPI.BYTE.Create_contiguous(ALIGNMENT).Commit()


class _Inbox:
    """Messages of ours, from one rank or, by default, any."""

    def __init__(self, comm: Intracomm, source: int | None = None) -> None:
        from mpi4py import MPI

        self._comm, self._source = comm, MPI.ANY_SOURCE if source is None else source
        self._status, self._line = MPI.Status(), _lines()
        self._coming: list[tuple[int, NDArray[np.uint8], MPIRequest]] = []

    def next(self) -> tuple[int, NDArray[np.uint8]] | None:
        """The rank that sent a message, and its bytes; None if none is here as a whole."""
        message = self._comm.Improbe(self._source, _TAG, self._status)
        if message is not None:
            lines = self._status.Get_count(self._line)
            received = np.empty(lines * ALIGNMENT, np.uint8)
            receiving = message.Irecv((received, lines, self._line))
            self._coming.append((self._status.Get_source(), received, receiving))
        late = set()  # ranks whose message has begun to come: theirs are read in order
        for i, (rank, received, receiving) in enumerate(self._coming):
            if rank not in late and receiving.Test():
                del self._coming[i]
                return rank, received
            late.add(rank)
        return None

    def wait(self, outbox: _Outbox, ending: MPIRequest) -> NDArray[np.uint8] | None:
        """The bytes of the next message, also if nobody takes what is in `outbox`; None if `ending` has come."""
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
    """Messages of ours that are on their way. Their memory stays until MPI has sent them, whatever ends the call."""

    def __init__(self, comm: Intracomm) -> None:
        self._comm, self._line = comm, _lines()
        self._going: list[tuple[int, MPIRequest]] = []

    def send(self, message: NDArray[np.uint8], rank: int, tag: int = _TAG) -> None:
        """Begin to send whole lines; a large message goes on within `is_empty`."""
        lines = (message, message.size // ALIGNMENT, self._line)
        self._going.append((rank, self._comm.Isend(lines, rank, tag)))

    def is_empty(self, without: Collection[int] = ()) -> bool:
        """Whether all is sent, but for what ranks `without` have not taken."""
        self._going = [(rank, sending) for rank, sending in self._going if not sending.Test()]
        return all(rank in without for rank, _ in self._going)


def _polled(is_done: Callable[[], bool], deadline: float) -> bool:
    """Ask again and again, which is what lets messages go on, until it is done or `time.monotonic` says `deadline`."""
    while not is_done():
        if time.monotonic() > deadline:
            return is_done()
        os.sched_yield()  # to a rank that shares the processor, whose answer it may be
    return True


def _end_without_finalize() -> None:
    """The end of a process that MPI would let wait for a rank that is gone: 1 after an exception, as without this."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(hasattr(sys, "last_type")))
