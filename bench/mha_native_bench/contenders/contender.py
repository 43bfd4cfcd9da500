"""What the benchmark knows of a contender: its name, how its threads are set, and the programs that compute a case."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mha_native_bench.cases.case import Array, Case
from mha_native_bench.cases.inputs import Inputs

# Kinds that few contenders compute, and the reason of the other contenders.
KINDS_OF_FEW = {"experts": "no experts", "linear": "no product by itself", "maxsim": "no late interaction"}


class CannotCompute(Exception):
    """The contender cannot compute the case; the message is the reason, in few words."""


@dataclass(frozen=True)
class Program:
    """One way in which a contender computes a case with a given number of threads.

    Parameters
    ----------
    run : callable
        What is timed: the call as a user of the library writes it, on inputs in the library's own form.
    turn : callable
        Returns a context that holds while `run` is warmed up and timed, to set thread counts and modes; not timed.
    to_array : callable
        Converts what `run` returns to a NumPy array; not timed.
    variant : str
        Tells the programs of one contender apart.
    is_checked : bool
        Whether the result is compared with the oracle; False for a yardstick, which computes something else.
    pairs : int
        Query-key pairs that one head of a yardstick computes, which the report compares with those of the case; 0: not.
    """

    contender: str
    threads: int
    run: Callable[[], Any]
    turn: Callable[[], AbstractContextManager[Any]] = nullcontext
    to_array: Callable[[Any], Array] = np.asarray
    variant: str = ""
    is_checked: bool = True
    pairs: int = 0

    @property
    def label(self) -> str:
        return f"{self.contender} ({self.variant})" if self.variant else self.contender

    def released(self) -> Program:
        """A program of the same names that computes nothing and holds no memory."""
        return replace(self, run=lambda: None, turn=nullcontext, to_array=np.asarray)


def in_rotation(programs: list[Program]) -> Program:
    """A program that runs the next of `programs` at each call: the same work on other memory."""
    runs = itertools.cycle([program.run for program in programs])
    return programs[0] if len(programs) == 1 else replace(programs[0], run=lambda: next(runs)())


def scores_in_order(ranking: list[dict[str, Any]]) -> Array:
    """The scores [B] of a ranking, in the order of the documents."""
    scores = np.empty(len(ranking), np.float32)
    for entry in ranking:
        scores[entry["corpus_id"]] = entry["score"]
    return scores


def of_arrays(case: Case) -> Case:
    """The same attention for a contender without caches: keys and values are gathered before it begins.

    Raises
    ------
    CannotCompute
    """
    if case.kind != "cached":
        return case
    if case.cache:
        raise CannotCompute(f"no {case.cache} keys and values")
    return replace(case, kind="sdpa", causal=case.Tq > 1, pages="", prefix=0)


def reason_to_skip(case: Case, contender: Contender) -> str:
    """Why a contender is not asked for the programs of a case; empty: it is."""
    if case.texts and not contender.takes_texts:
        return "begins with tokens"
    if case.kind in KINDS_OF_FEW and case.kind not in contender.kinds_of_few:
        return KINDS_OF_FEW[case.kind]
    return "no gradients" if case.is_backward and not contender.has_gradients else ""


class Contender(ABC):
    """Makes programs for cases.

    Parameters
    ----------
    thread_counts : list of int
        All numbers of threads that `programs` will be asked for.
    """

    name: str
    takes_texts = False  # whether it computes cases that begin with texts
    has_gradients = False  # whether it computes gradients
    kinds_of_few: frozenset[str] = frozenset()  # kinds of `KINDS_OF_FEW` that it computes

    def __init__(self, thread_counts: list[int]) -> None:
        self.thread_counts = thread_counts

    @abstractmethod
    def description(self) -> str:
        """The version, and how the number of threads is set."""

    @abstractmethod
    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        """The programs for `case`, with everything prepared that a user prepares once.

        Raises
        ------
        CannotCompute
            With the reason, in few words: "no softcap". A yardstick that does not apply returns an empty list instead.
        """
