"""Figures of each case and number of threads: the fastest program of each contender, and ratios of times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mha_native_bench.cases.case import Case
from mha_native_bench.contenders import Ours, is_peer
from mha_native_bench.measure.rounds import Measurement, Timed
from mha_native_bench.wording import counted, ratio_text

READ = "read"  # the yardstick whose time over ours is the fraction of bandwidth that we use

LEVEL = 0.98  # least time of the best peer over ours at which we count as not behind


@dataclass(frozen=True)
class Spread:
    """Lower quartile, median and upper quartile over rounds."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{ratio_text(self.median)} [{ratio_text(self.low)} {ratio_text(self.high)}]"


def spread(values: Sequence[float]) -> Spread:
    return Spread(*map(float, np.percentile(values, [25, 50, 75])))


def ratio(of: Timed, to: Timed) -> Spread:
    """Time of `of` over that of `to`, from the rounds that both took part in, which are the first ones."""
    return spread([a / b for a, b in zip(of.medians, to.medians, strict=False)])


@dataclass(frozen=True)
class Cell:
    """A case with a number of threads."""

    measurement: Measurement
    threads: int

    @property
    def case(self) -> Case:
        return self.measurement.case

    @property
    def label(self) -> str:
        return f"{self.case.name}, {counted(self.threads, 'thread')}"

    @property
    def ours(self) -> Timed:
        return self.programs_of(Ours.name)[0]

    @cached_property
    def peers(self) -> dict[str, Timed]:
        """The fastest program of each peer that computes the case, by the name of the peer."""
        names = dict.fromkeys(one.program.contender for one in self.measurement.timed if is_peer(one.program))
        forms = {name: self.programs_of(name) for name in names}
        return {name: self.fastest(of_peer) for name, of_peer in forms.items() if of_peer}

    @property
    def best_peer(self) -> Timed | None:
        return self.fastest(self.peers.values()) if self.peers else None

    def fastest(self, timed: Iterable[Timed]) -> Timed:
        """The one of the least time over ours, among those with the most rounds."""
        return min(timed, key=lambda one: (-len(one.turns), ratio(one, self.ours).median))

    @property
    def lead(self) -> Spread | None:
        """Time of the best peer over ours; above 1, ours is faster."""
        return ratio(self.best_peer, self.ours) if self.best_peer else None

    @property
    def of_peak(self) -> float:
        """Median over rounds of our FLOP/s over the peak of as many cores."""
        rates = [self.case.flops * 1e-9 / seconds for seconds in self.ours.medians]
        peaks = self.measurement.peaks
        return spread([rate / (self.threads * peak) for rate, peak in zip(rates, peaks, strict=True)]).median

    @property
    def of_bandwidth(self) -> Spread | None:
        """Time of reading keys and values once over ours; None if the yardstick `read` did not run."""
        read = self.programs_of(READ)
        return ratio(read[0], self.ours) if read else None

    def programs_of(self, contender: str) -> list[Timed]:
        asked = (contender, self.threads)
        return [one for one in self.measurement.timed if (one.program.contender, one.program.threads) == asked]


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
