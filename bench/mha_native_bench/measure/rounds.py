"""Checks programs, then times them in turns, so that other work of the machine slows all of them alike."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from mha_native_bench.cases.case import Array, Case
from mha_native_bench.cases.oracle import largest_error, tolerance
from mha_native_bench.contenders import Program, is_peer
from mha_native_bench.machine import seconds_of_others
from mha_native_bench.probes import measure_fma_gflops

WARM_SECONDS = 2e-3  # of calls before a turn is timed: they wake sleeping threads and fill the caches
LONG_SECONDS = 0.2  # a longer call is timed from the first one, without calls before
REST_SECONDS = 5e-3  # of sleep between two looks at whether threads still spin
SAMPLE_SECONDS = 1e-4  # of calls between two readings of the clock, each of which costs about 5e-8
PEAK_SECONDS = 0.02  # of the loop that measures the peak: ten chunks, of which the fastest counts

# After the first rounds, programs that nobody would use are dropped.
ROUNDS_OF_ALL = 2  # in which all programs take part
SLOW_PROGRAM = 1.5  # most time of a program over that of the fastest program of its peer
SLOW_PEER = 4.0  # most time of a peer over that of the fastest peer, if its calls are longer than a turn


class WrongResult(Exception):
    """A program does not compute its case, which is therefore not timed."""


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Each program gets a turn in each of `rounds`, for `turn_seconds` or one call. Before each turn the process waits
    until none of its threads is busy, for `rest_seconds` at most. A case that has taken `case_seconds` ends after
    `least_rounds`.
    """

    rounds: int
    turn_seconds: float = 0.02
    rest_seconds: float = 0.3
    least_rounds: int = 5
    case_seconds: float = 6.0


@dataclass(frozen=True)
class Turn:
    """Seconds of one call: the median and the least of the samples of a turn."""

    median: float
    best: float


@dataclass(frozen=True)
class Timed:
    """A program with its largest error, if it is checked, and its turns, one for each round that it took part in.

    `check_seconds` is the time of the call that was checked, the first of all.
    """

    program: Program
    error: float | None = None
    turns: list[Turn] = field(default_factory=list)
    check_seconds: float = math.inf

    @property
    def medians(self) -> list[float]:
        return [turn.median for turn in self.turns]

    @property
    def best(self) -> float:
        return min(turn.best for turn in self.turns)


@dataclass
class Measurement:
    """All programs of one case, and the state of the machine while they were timed.

    `cannot` has the reasons of contenders that cannot compute the case. `peaks` has the GFLOP/s that the multiply-add
    units of one core reached in each round. `cpus_of_others` is how many CPUs other processes kept busy on average:
    if it is above 0, the times here contain their work.
    """

    case: Case
    tolerance: float
    timed: list[Timed]
    cannot: dict[str, str] = field(default_factory=dict)
    peaks: list[float] = field(default_factory=list)
    cpus_of_others: float | None = None

    def release(self) -> None:
        """Drops arrays, sessions and compiled models: those of all cases together would not fit into memory."""
        self.timed = [replace(one, program=one.program.released()) for one in self.timed]


def check(case: Case, programs: list[Program], expected: Array, cannot: dict[str, str] | None = None) -> Measurement:
    """Compares the results of all programs with `expected`; the measurement has no rounds yet.

    Raises
    ------
    WrongResult
    """
    bound = tolerance(case, expected)
    timed = [checked(case, program, expected, bound) if program.is_checked else Timed(program) for program in programs]
    return Measurement(case, bound, timed, cannot or {})


def race(measurement: Measurement, effort: Effort, after_round: Callable[[float], None] = lambda share: None) -> None:
    """Adds rounds to `measurement`; if it is interrupted, the complete ones remain.

    `after_round` is called with the fraction of the rounds that is done.
    """
    timed, peaks = measurement.timed, measurement.peaks
    racing = timed
    start, others_start = time.perf_counter(), seconds_of_others()
    try:
        for i in range(effort.rounds):
            if i >= effort.least_rounds and time.perf_counter() - start > effort.case_seconds:
                break
            rest(effort.rest_seconds)
            peak = measure_fma_gflops(measurement.case.dtype_name, min(PEAK_SECONDS, effort.turn_seconds))
            for j in range(len(racing)):  # each round begins with another program
                one = racing[(i + j) % len(racing)]
                one.turns.append(take_turn(one.program, effort))
            peaks.append(peak)
            if i + 1 == ROUNDS_OF_ALL:
                racing = fast_enough(timed, effort.turn_seconds)
            after_round((i + 1) / effort.rounds)
    finally:
        for one in timed:
            del one.turns[len(peaks) :]
    elapsed, others = time.perf_counter() - start, seconds_of_others()
    if others is not None and others_start is not None:
        measurement.cpus_of_others = max(0, others - others_start) / elapsed


def fast_enough(timed: list[Timed], turn_seconds: float) -> list[Timed]:
    """This library, all yardsticks, and the programs of peers that are neither a SLOW_PROGRAM nor of a SLOW_PEER.

    The least time of all calls decides, that of the check included, so that an interruption does not.
    """

    def least(one: Timed) -> float:
        return min(one.best, one.check_seconds)

    def goes_on(one: Timed) -> bool:
        if not is_peer(one.program):
            return True
        peers = [other for other in timed if is_peer(other.program) and other.program.threads == one.program.threads]
        fastest = min(map(least, peers))
        of_contender = min(least(other) for other in peers if other.program.contender == one.program.contender)
        is_slow_peer = of_contender > max(SLOW_PEER * fastest, turn_seconds)
        return not is_slow_peer and least(one) <= SLOW_PROGRAM * of_contender

    return [one for one in timed if goes_on(one)]


def checked(case: Case, program: Program, expected: Array, bound: float) -> Timed:
    """The program with its largest error, which must be at most `bound`."""
    with program.turn():
        start = time.perf_counter()
        out = program.run()
        seconds = time.perf_counter() - start
        error = largest_error(program.to_array(out), expected)
    if not error <= bound:  # so that NaN fails
        raise WrongResult(
            f"{case.name}: {program.label} with {program.threads} threads is off by {error:.2g} from the float64 "
            f"oracle; at most {bound:.2g} is rounding"
        )
    return Timed(program, error, check_seconds=seconds)


def take_turn(program: Program, effort: Effort) -> Turn:
    """Waits until threads sleep, warms up, and times calls for the length of a turn."""
    rest(effort.rest_seconds)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with program.turn():
            start = time.perf_counter()
            call = seconds_of(program.run, 1)
            while time.perf_counter() - start < min(WARM_SECONDS, effort.turn_seconds):
                call = seconds_of(program.run, 1)
            calls = max(1, min(1000, int(SAMPLE_SECONDS / call)))
            samples = [call] if call > LONG_SECONDS else []
            start = time.perf_counter()
            while not samples or time.perf_counter() - start < effort.turn_seconds:
                samples.append(seconds_of(program.run, calls))
    finally:
        if was_enabled:
            gc.enable()
    return Turn(statistics.median(samples), min(samples))


def rest(most_seconds: float) -> None:
    """Waits until all threads of this process sleep, for `most_seconds` at most.

    Idle threads spin after a call and would slow the next program: those of OpenMP for 10 ms, of ONNX Runtime for
    40 ms, of OpenBLAS for 100 ms.
    """
    end = time.perf_counter() + most_seconds
    while time.perf_counter() < end:
        busy = time.process_time()
        time.sleep(REST_SECONDS)
        if time.process_time() - busy < REST_SECONDS / 10:
            return


def seconds_of(run: Callable[[], Any], calls: int) -> float:
    """Mean time of `calls` calls."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls
