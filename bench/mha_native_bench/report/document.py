"""The report as JSON: every turn of every program, and the figures of the table."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mha_native_bench.measure.cells import Cell, Spread, ratio, spread
from mha_native_bench.measure.results import Results
from mha_native_bench.measure.rounds import Measurement, Timed


def as_json(results: Results) -> dict[str, Any]:
    return {
        "machine": results.facts,
        "absent": results.absent,
        "wrong": results.wrong,
        "cases": [case_as_json(measurement, results.thread_counts) for measurement in results.measurements],
        "overheads": results.overheads.as_json() if results.overheads else None,
    }


def case_as_json(measurement: Measurement, thread_counts: list[int]) -> dict[str, Any]:
    return {
        **asdict(measurement.case),
        "flops": measurement.case.flops,
        "least_bytes": measurement.case.least_bytes,
        "tolerance": measurement.tolerance,
        "peak_gflops": measurement.peaks,
        "cpus_of_others": measurement.cpus_of_others,
        "cannot": measurement.cannot,
        "cells": [cell_as_json(Cell(measurement, threads)) for threads in thread_counts],
        "programs": [program_as_json(timed) for timed in measurement.timed],
    }


def cell_as_json(cell: Cell) -> dict[str, Any]:
    best, read = cell.best_peer, cell.of_bandwidth
    return {
        "threads": cell.threads,
        "seconds": asdict(spread(cell.ours.medians)),
        "of_peak": cell.of_peak,
        "of_bandwidth": as_dict(read),
        "best_peer": best.program.label if best else None,
        "best_over_ours": as_dict(cell.lead),
        "peers_over_ours": {name: asdict(ratio(peer, cell.ours)) for name, peer in cell.peers.items()},
    }


def program_as_json(timed: Timed) -> dict[str, Any]:
    return {
        "contender": timed.program.contender,
        "variant": timed.program.variant,
        "threads": timed.program.threads,
        "largest_error": timed.error,
        "median_seconds": timed.medians,
        "best_seconds": [turn.best for turn in timed.turns],
    }


def as_dict(found: Spread | None) -> dict[str, float] | None:
    return None if found is None else asdict(found)
