"""Measures the constants on this machine's own processes, and whole runs to compare the model with."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import Any

from mha_native_bench.machine import cpu_model
from mha_native_bench.scaling_model.checks import PROCESSES
from mha_native_bench.scaling_model.constants import Actor, Asker, Constants, Network, Worker

_HERE = "mha_native_bench.scaling_model"

# Ranks that share cores, of any user, each of one thread; and messages by TCP in place of shared memory.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
_BY_TCP = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}

# How often ranks are run, for the constants and for whole calls in turns. Medians count: for minutes at a time cores
# of a virtual machine read memory a fifth faster or slower, and both must have met the same.
_RUNS = 5


def measured(model: str) -> tuple[Constants, list[dict[str, Any]]]:
    """The constants, and whole runs."""
    cores = len(os.sched_getaffinity(0))
    turns = [(_ranks(2, "parts"), [_ranks(n, "steps")["steps"] for n in PROCESSES]) for _ in range(_RUNS)]
    found = [parts for parts, _ in turns]
    parts = sorted(found, key=lambda one: one["busy"]["decode_block"])[_RUNS // 2]
    delays = [(p, statistics.median(one["delays"][i][1] for one in found)) for i, (p, _) in enumerate(parts["delays"])]
    alone, busy = (_actor_alone(model, count) for count in (1, cores))
    ray = _output([sys.executable, "-m", f"{_HERE}.actors", model, "ray"], {})
    constants = Constants(
        processor=cpu_model(),
        cores=cores,
        alone=Worker(**parts["alone"], delays=[(0.0, 0.0), (1.0, 0.0)], delays_over=1.0),
        busy=Worker(**parts["busy"], delays=delays, delays_over=statistics.median(one["delays_over"] for one in found)),
        asker=Asker(**parts["asker"]),
        memory=Network(**_ranks(2, "exchange")),
        sockets=Network(**_ranks(2, "exchange", _BY_TCP)),
        actor_alone=Actor(text=alone, **ray["parts"]),
        actor_busy=Actor(text=busy, **ray["parts"]),
    )
    runs = [
        {"processes": n, **call[0], "measured": statistics.median(one["measured"] for one in call)}
        for i, n in enumerate(PROCESSES)
        for call in zip(*(steps[i] for _, steps in turns), strict=True)
    ]
    return constants, runs + ray["runs"]


def _ranks(count: int, what: str, more: dict[str, str] | None = None) -> Any:
    program = [sys.executable, "-m", f"{_HERE}.ranks", what]
    return _output(["mpiexec", "-n", str(count), *program], _ENVIRONMENT | (more or {}))


def _output(command: list[str], environment: dict[str, str]) -> Any:
    """The last line that a command prints, as JSON."""
    ended = subprocess.run(command, env=os.environ | environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(ended.stdout.splitlines()[-1])


def _actor_alone(model: str, count: int) -> float:
    """Seconds of a text in each of so many processes of one thread, which work at once."""
    command = [sys.executable, "-m", f"{_HERE}.actors", model, "alone"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes) for _ in range(count)]
    for one in started:  # each waits for the line when its model is loaded, or has it by then
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    return sum(float(json.loads(one.communicate()[0])["text"]) for one in started) / count
