"""All that one run of the benchmark found."""

from __future__ import annotations

from dataclasses import dataclass, field

from mha_native_bench.measure.cells import Cell
from mha_native_bench.measure.overheads import Overheads
from mha_native_bench.measure.rounds import Measurement


@dataclass
class Results:
    """What was measured so far.

    `facts` describe the machine and the contenders. `absent` gives for each peer, or kind of case, that does not take
    part the reason. `wrong` has a sentence for each case that a program computes wrongly.
    """

    facts: dict[str, str]
    thread_counts: list[int]
    absent: dict[str, str]
    started: list[Measurement] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    overheads: Overheads | None = None

    @property
    def measurements(self) -> list[Measurement]:
        """The measurements with a complete round."""
        return [measurement for measurement in self.started if measurement.peaks]

    @property
    def cells(self) -> list[Cell]:
        return [Cell(measurement, threads) for measurement in self.measurements for threads in self.thread_counts]
