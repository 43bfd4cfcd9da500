"""Checks programs, then times them in turns, so that whatever else the machine does is done to all of them alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from contenders import Program
from machine import seconds_of_others
from shapes import Array, Case, largest_error, tolerance

from mha_native import _core

WARM_SECONDS = 2e-3  # wakes sleeping threads and fills the caches
LONG_SECONDS = 1.0  # a call that takes longer is not warmed up by another
SAMPLE_SECONDS = 1e-4  # of calls for one reading of the clock, which costs about 5e-8
PEAK_SECONDS = 0.02  # ten chunks of the loop, of which the fastest counts


class WrongResult(Exception):
    """A program does not compute its case: there is nothing to time."""


@dataclass(frozen=True)
class Effort:
    """How long to measure. Each program gets `rounds` turns, of `turn_seconds` or one call, whichever is longer.

    `rest_seconds` come before each turn: idle threads of OpenMP and OpenBLAS spin on for up to 25 ms after a call, and
    would take the time from the next one.
    """

    rounds: int
    turn_seconds: float
    rest_seconds: float = 0.05


@dataclass(frozen=True)
class Turn:
    """Seconds of a call in one turn."""

    median: float
    best: float


@dataclass(frozen=True)
class Timed:
    """A program, its largest error if it is checked, and its turns, one of each round."""

    program: Program
    error: float | None
    turns: list[Turn]

    @property
    def medians(self) -> list[float]:
        return [turn.median for turn in self.turns]

    @property
    def best(self) -> float:
        return min(turn.best for turn in self.turns)


@dataclass(frozen=True)
class Measurement:
    """All programs of one case, with what the machine did meanwhile.

    `peaks` are the GFLOP/s that one core's multiply-add units reached in each round, `cpus_of_others` how many CPUs
    other processes kept busy: what is above 0 there is in the times here.
    """

    case: Case
    tolerance: float
    peaks: list[float]
    timed: list[Timed]
    cpus_of_others: float | None = None


def measure(case: Case, programs: list[Program], expected: Array, effort: Effort) -> Measurement:
    """Errors of all programs first, then their times.

    Raises
    ------
    WrongResult
        Before anything is timed.
    """
    bound = tolerance(case, expected)
    errors = [checked_error(case, program, expected, bound) if program.is_checked else None for program in programs]
    turns: list[list[Turn]] = [[] for _ in programs]
    peaks = []
    start, others_start = time.perf_counter(), seconds_of_others()
    for i in range(effort.rounds):
        time.sleep(effort.rest_seconds)
        peaks.append(_core.measure_fma_gflops(case.dtype_name, min(PEAK_SECONDS, effort.turn_seconds)))
        # Rotated, so that no program always comes after the same one.
        for j in range(len(programs)):
            which = (i + j) % len(programs)
            turns[which].append(take_turn(programs[which], effort))
    elapsed, others = time.perf_counter() - start, seconds_of_others()
    cpus_of_others = None if others is None or others_start is None else max(0, others - others_start) / elapsed
    timed = [Timed(*row) for row in zip(programs, errors, turns, strict=True)]
    return Measurement(case, bound, peaks, timed, cpus_of_others)


def checked_error(case: Case, program: Program, expected: Array, bound: float) -> float:
    """The largest error of `program`, if it is below `bound`."""
    with program.turn():
        error = largest_error(program.to_array(program.run()), expected)
    if not error <= bound:  # so that NaN fails
        raise WrongResult(
            f"{case.name}: {program.label} with {program.threads} threads is off by {error:.2g} from the float64 "
            f"oracle; at most {bound:.2g} is rounding"
        )
    return error


def take_turn(program: Program, effort: Effort) -> Turn:
    """Rests, warms up, and calls for the time of a turn."""
    time.sleep(effort.rest_seconds)
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


def seconds_of(run: Callable[[], Any], calls: int) -> float:
    """Seconds of one of `calls` calls."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls
