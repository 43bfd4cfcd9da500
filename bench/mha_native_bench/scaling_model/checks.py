"""Runs that were measured, and what the model says of them."""

from __future__ import annotations

from typing import Any

from mha_native_bench.scaling_model.constants import Constants
from mha_native_bench.scaling_model.contexts import Call, step_seconds
from mha_native_bench.scaling_model.corpora import corpus_seconds

# Processes of a run.
PROCESSES = (1, 2, 4)


def name_of(run: dict[str, Any]) -> str:
    """What a run did."""
    if "texts" in run:
        return f"{run['texts']:,} texts by actors of Ray"
    return f"{run['queries']} quer{'ies' if run['queries'] > 1 else 'y'} over {run['keys']:,} keys by ranks of MPI"


def predicted(constants: Constants, run: dict[str, Any]) -> float:
    """Seconds of a run, by the model: of processes on this machine, several of which may share a core."""
    processes = run["processes"]
    if "texts" in run:
        actor = constants.actor_alone if processes == 1 else constants.actor_busy
        return corpus_seconds(actor, run["texts"], processes, cores=constants.cores)
    worker = constants.alone if processes == 1 else constants.busy
    call, on_a_core = Call(run["queries"], run["keys"]), -(-processes // constants.cores)
    return step_seconds(worker, constants.asker, constants.memory, call, processes, on_a_core=on_a_core)
