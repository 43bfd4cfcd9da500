"""Checks programs, then times them in turns, so that whatever else the machine does is done to all of them alike."""

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

WARM_SECONDS = 2e-3  # wakes sleeping threads and fills the caches
LONG_SECONDS = 0.2  # a call that takes longer is not warmed up by another
REST_SECONDS = 5e-3  # in which a thread that spins takes as many of the processor
SAMPLE_SECONDS = 1e-4  # of calls for one reading of the clock, which costs about 5e-8
PEAK_SECONDS = 0.02  # ten chunks of the loop, of which the fastest counts

# After so many rounds those go on that somebody would use: of each peer the forms that take at most so many times as
# long as its fastest. And of peers whose calls are longer than a turn, only those that take at most so many times as
# long as the fastest peer; short ones cost little.
ROUNDS_OF_ALL, SLOW_FORM, SLOW_PEER = 2, 1.5, 4.0


class WrongResult(Exception):
    """A program does not compute its case: there is nothing to time."""


@dataclass(frozen=True)
class Effort:
    """How long to measure: so many rounds, in each a turn of `turn_seconds` or one call for each program.

    Before each turn it rests until no thread is busy, for `rest_seconds` at most. A case that has taken `case_seconds`
    ends after `least_rounds`.
    """

    rounds: int
    turn_seconds: float = 0.02
    rest_seconds: float = 0.3
    least_rounds: int = 5
    case_seconds: float = 6.0


@dataclass(frozen=True)
class Turn:
    """Seconds of a call in one turn."""

    median: float
    best: float


@dataclass(frozen=True)
class Timed:
    """A program, its largest error if it is checked, and its turns: one of each round, or of the first ones alone.

    `check_seconds` are those of the call that was checked, of all calls the first.
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
    """All programs of one case, with what the machine did meanwhile.

    `cannot` says by contender why it does not compute the case. `peaks` are the GFLOP/s that one core's multiply-add
    units reached in each round, `cpus_of_others` how many CPUs other processes kept busy: what is above 0 there is in
    the times here.
    """

    case: Case
    tolerance: float
    timed: list[Timed]
    cannot: dict[str, str] = field(default_factory=dict)
    peaks: list[float] = field(default_factory=list)
    cpus_of_others: float | None = None

    def release(self) -> None:
        """Lets go of arrays, sessions and compiled models. Those of all cases together would not fit the memory."""
        self.timed = [replace(one, program=one.program.released()) for one in self.timed]


def check(case: Case, programs: list[Program], expected: Array, cannot: dict[str, str] | None = None) -> Measurement:
    """Errors of all programs. There are no rounds yet.

    Raises
    ------
    WrongResult
    """
    bound = tolerance(case, expected)
    timed = [checked(case, program, expected, bound) if program.is_checked else Timed(program) for program in programs]
    return Measurement(case, bound, timed, cannot or {})


def race(measurement: Measurement, effort: Effort, after_round: Callable[[float], None] = lambda share: None) -> None:
    """Puts the rounds into `measurement`; if it is interrupted, those that are complete.

    `after_round` is told what share of the race is done.
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
            for j in range(len(racing)):  # rotated, so that no program always comes after the same one
                one = racing[(i + j) % len(racing)]
                one.turns.append(take_turn(one.program, effort))
            peaks.append(peak)
            if i + 1 == ROUNDS_OF_ALL:
                racing = those_who_go_on(timed, effort.turn_seconds)
            after_round((i + 1) / effort.rounds)
    finally:
        for one in timed:
            del one.turns[len(peaks) :]
    elapsed, others = time.perf_counter() - start, seconds_of_others()
    if others is not None and others_start is not None:
        measurement.cpus_of_others = max(0, others - others_start) / elapsed


def those_who_go_on(timed: list[Timed], turn_seconds: float) -> list[Timed]:
    """This library, yardsticks, and of the peers those that are fast enough.

    By the best of all calls, that of the check included: one that the machine interrupted is not to decide.
    """
    seconds = {id(one): min(one.best, one.check_seconds) for one in timed}
    fastest_form: dict[tuple[int, str], float] = {}
    fastest: dict[int, float] = {}
    for one in timed:
        if is_peer(one.program):
            taken, threads, form = seconds[id(one)], one.program.threads, (one.program.threads, one.program.contender)
            fastest_form[form] = min(taken, fastest_form.get(form, taken))
            fastest[threads] = min(taken, fastest.get(threads, taken))

    def goes_on(one: Timed) -> bool:
        if not is_peer(one.program):
            return True
        form = fastest_form[one.program.threads, one.program.contender]
        is_used = form <= max(SLOW_PEER * fastest[one.program.threads], turn_seconds)
        return is_used and seconds[id(one)] <= SLOW_FORM * form

    return [one for one in timed if goes_on(one)]


def checked(case: Case, program: Program, expected: Array, bound: float) -> Timed:
    """`program`, if its largest error is below `bound`."""
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
    """Rests, warms up, and calls for the time of a turn."""
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
    """Until the threads of this process sleep.

    Idle ones spin on after a call, and would take the time from the next program: those of OpenMP for 10 ms, of ONNX
    Runtime for 40, of OpenBLAS for 100.
    """
    end = time.perf_counter() + most_seconds
    while time.perf_counter() < end:
        busy = time.process_time()
        time.sleep(REST_SECONDS)
        if time.process_time() - busy < REST_SECONDS / 10:
            return


def seconds_of(run: Callable[[], Any], calls: int) -> float:
    """Seconds of one of `calls` calls."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls
