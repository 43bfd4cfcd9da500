"""Rounds: wrong results are not timed, programs take turns, slow ones drop out, complete rounds are kept."""

from __future__ import annotations

import dataclasses
import threading
import time
import weakref

import numpy as np
import pytest

from mha_native_bench.cases.case import Array, Case
from mha_native_bench.cases.inputs import make_inputs
from mha_native_bench.cases.oracle import oracle
from mha_native_bench.contenders import Ours, Program
from mha_native_bench.measure import rounds
from mha_native_bench.measure.rounds import (
    ROUNDS_OF_ALL,
    SLOW_PEER,
    SLOW_PROGRAM,
    Effort,
    Measurement,
    Timed,
    Turn,
    WrongResult,
    check,
    fast_enough,
    race,
    rest,
)

SMALL = Case("small", "sdpa", "f32", B=1, H=4, Hk=2, Tq=5, Tk=7, D=8, E=0, causal=True)
NO_TIME = Effort(rounds=3, turn_seconds=0, rest_seconds=0)


@pytest.mark.parametrize("wrong", [np.nan, 1e-3])
def test_a_wrong_result_is_refused_before_any_timing(wrong: float) -> None:
    inputs = make_inputs(SMALL)
    expected = oracle(SMALL, inputs)
    calls = []

    def run() -> Array:
        calls.append(1)
        result = expected.astype(np.float32)
        result[0, 1, 2, 3] += wrong
        return result

    right = Ours([1]).programs(SMALL, inputs, 1)
    with pytest.raises(WrongResult, match="small: other with 1 threads"):
        check(SMALL, [*right, Program("other", 1, run)], expected)
    assert len(calls) == 1


def unraced(*programs: Program) -> Measurement:
    return Measurement(SMALL, 1e-6, [Timed(program) for program in programs])


def test_programs_take_turns() -> None:
    order: list[str] = []

    def program(name: str) -> Program:
        def run() -> None:
            if order[-1:] != [name]:
                order.append(name)

        return Program("mha_native", 1, run, variant=name)  # not of a peer, whose slow programs drop out

    measurement = unraced(*map(program, "abc"))
    shares: list[float] = []
    race(measurement, NO_TIME, shares.append)
    assert "".join(order) == "abc" + "bca" + "cab"
    assert [len(timed.turns) for timed in measurement.timed] == [3, 3, 3]
    assert len(measurement.peaks) == 3
    assert shares == pytest.approx([1 / 3, 2 / 3, 1])


def test_a_turn_waits_until_threads_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "REST_SECONDS", 0.05)  # on a busy machine a thread that spins may wait for 5 ms
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    spinning = threading.Thread(target=spin)
    spinning.start()
    start = time.perf_counter()
    threading.Timer(0.2, stop.set).start()
    rest(10)
    waited = time.perf_counter() - start
    spinning.join()
    assert 0.15 < waited < 5
    start = time.perf_counter()
    rest(10)
    assert time.perf_counter() - start < 5


def raced(contender: str, seconds: float, threads: int = 1, checked: float = np.inf) -> Timed:
    return Timed(Program(contender, threads, lambda: None), turns=[Turn(2 * seconds, seconds)], check_seconds=checked)


def test_what_is_slow_does_not_go_on() -> None:
    ours, yardstick = raced("mha_native", 1e3), raced("read", 1e3)
    fastest, form, slow_program = raced("a", 1.0), raced("a", SLOW_PROGRAM), raced("a", SLOW_PROGRAM * 1.01)
    peer, slow_peer = raced("b", SLOW_PEER), raced("c", SLOW_PEER * 1.01)
    alone = raced("c", SLOW_PEER * 1.01, threads=2)
    interrupted = raced("d", 1e3, checked=SLOW_PEER)
    timed = [ours, yardstick, fastest, form, slow_program, peer, slow_peer, alone, interrupted]
    rest = [ours, yardstick, fastest, form, peer, alone, interrupted]
    assert fast_enough(timed, turn_seconds=0.02) == rest
    rest.insert(5, slow_peer)
    assert fast_enough(timed, turn_seconds=10) == rest


def test_what_is_slow_loses_its_turns_alone() -> None:
    fast = Program("a", 1, lambda: None)
    slow = Program("b", 1, lambda: time.sleep(1e-3))
    measurement = unraced(Program("mha_native", 1, lambda: None), slow, fast)
    race(measurement, NO_TIME)
    assert NO_TIME.rounds > ROUNDS_OF_ALL
    assert [len(timed.turns) for timed in measurement.timed] == [NO_TIME.rounds, ROUNDS_OF_ALL, NO_TIME.rounds]


@pytest.mark.parametrize("rounds", [0, 2])
def test_an_interrupted_race_keeps_its_complete_rounds(rounds: int) -> None:
    def run() -> None:
        if len(measurement.peaks) == rounds:
            raise KeyboardInterrupt

    programs = [Program("mha_native", 1, lambda: None), Program("mha_native", 1, run)]
    measurement = unraced(*programs)
    with pytest.raises(KeyboardInterrupt):
        race(measurement, Effort(rounds=9, turn_seconds=0, rest_seconds=0))
    assert [len(timed.turns) for timed in measurement.timed] == [rounds, rounds]
    assert len(measurement.peaks) == rounds


def test_a_long_case_has_fewer_rounds() -> None:
    effort = dataclasses.replace(NO_TIME, rounds=9, least_rounds=2, case_seconds=0)
    measurement = unraced(Program("mha_native", 1, lambda: None))
    race(measurement, effort)
    assert len(measurement.peaks) == 2


def test_results_do_not_keep_arrays_alive() -> None:
    array = np.zeros(1)
    kept = weakref.ref(array)
    measurement = Measurement(SMALL, 1.0, [Timed(Program("numpy", 1, array.sum, to_array=array.__add__))])
    del array
    measurement.release()
    assert kept() is None
    assert measurement.timed[0].program.label == "numpy"
