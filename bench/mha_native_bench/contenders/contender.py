"""What the benchmark knows of a library: its name, how it is told its threads, and programs that compute a case."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_native_bench.cases.case import Case
from mha_native_bench.cases.inputs import Inputs

# Contenders of which nothing is expected: they set a time beside ours, and compute something else.
YARDSTICKS = ("read", "against", "padded")


class CannotCompute(Exception):
    """This library cannot compute the case; says why in few words."""


@dataclass(frozen=True)
class Program:
    """One way in which a contender computes one case with a number of threads.

    Parameters
    ----------
    run : callable
        What is timed: the call as its user would write it, on inputs in the library's own form.
    turn : callable
        Gives a context that holds while `run` is warmed up and timed, and is not timed: thread counts, modes.
    to_array : callable
        Makes a NumPy array of what `run` returns; not timed.
    variant : str
        Tells programs of one contender apart. The fastest stands for the contender.
    is_checked : bool
        False for a yardstick: it computes something else than the case, to be compared in time only.
    pairs : int
        Query-key pairs of a head that it computes, if the report is to set them against those of the case; else 0.
    """

    contender: str
    threads: int
    run: Callable[[], Any]
    turn: Callable[[], AbstractContextManager[Any]] = nullcontext
    to_array: Callable[[Any], NDArray[Any]] = np.asarray
    variant: str = ""
    is_checked: bool = True
    pairs: int = 0

    @property
    def label(self) -> str:
        return f"{self.contender} ({self.variant})" if self.variant else self.contender

    def released(self) -> Program:
        """The same in name, without anything that it would need to run."""
        return replace(self, run=lambda: None, turn=nullcontext, to_array=np.asarray)


def in_rotation(programs: list[Program]) -> Program:
    """A program that runs the next of `programs` at each call: the same work, on other memory."""
    runs = itertools.cycle([program.run for program in programs])
    return programs[0] if len(programs) == 1 else replace(programs[0], run=lambda: next(runs)())


class Contender(ABC):
    """A library in the race. Its module imports the library; `contenders` imports the module only when it is asked for.

    Parameters
    ----------
    thread_counts : list of int
        All that will be asked for.
    """

    name: str

    def __init__(self, thread_counts: list[int]) -> None:
        self.thread_counts = thread_counts

    @abstractmethod
    def description(self) -> str:
        """Version, and how the number of threads is set."""

    @abstractmethod
    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        """The programs for `case`. What may be prepared is prepared here.

        Raises
        ------
        CannotCompute
            With the reason, in few words: "no softcap". A yardstick that says nothing about the case has no programs.
        """
