"""A cache over ranks of MPI: the bits of the same cut in one process, also after a rank has been stopped or killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import mha_native
from mha_native.distributed import mpi_ranks

PROGRAM = Path(__file__).resolve().parents[1] / "support" / "mpi_contexts.py"

# Seconds for a program of two or three ranks, which takes a few: beyond, it hangs.
LIMIT = 100


def run_ranks(
    count: int, *arguments: str, options: Sequence[str] = ("--enable-recovery",)
) -> subprocess.CompletedProcess[str]:
    """Run the program in `count` ranks. By default they outlive each other.

    Any user may, also with fewer processors.
    """
    pytest.importorskip("mpi4py", exc_type=ImportError)
    if shutil.which("mpiexec") is None:
        pytest.skip("needs mpiexec")
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(mha_native.__file__).parents[1]),
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    command = ["mpiexec", *options, "-n", str(count), sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_compute_what_one_process_does(ranks: int) -> None:
    ended = run_ranks(ranks, "none")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("done\n")


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_late_rank_ends_too_where_the_program_fails(ranks: int) -> None:
    ended = run_ranks(ranks, "stopped and left")
    assert f"WorkerError: ShardedKVCache.attend: worker {ranks - 1} (rank {ranks - 1}, process " in ended.stderr


def test_a_program_that_fails_has_failed() -> None:
    """Open MPI has no status but 0 where ranks outlive each other."""
    ended = run_ranks(2, "stopped and left", options=())
    assert "WorkerError: ShardedKVCache.attend: worker 1 (rank 1, process " in ended.stderr
    assert ended.returncode == 1, ended.stderr


@pytest.mark.parametrize(
    ("ranks", "fault"),
    [
        (2, "killed"),
        (3, "killed"),
        (3, "stopped"),
        (2, "stopped and continued"),
        (3, "killed before append"),
        (3, "stopped before append"),
        (3, "stopped before append and continued"),
    ],
)
def test_a_rank_that_fails_is_named_and_the_rest_goes_on(ranks: int, fault: str) -> None:
    ended = run_ranks(ranks, fault)
    operation = "append" if "append" in fault else "attend"
    told = f"error: ShardedKVCache.{operation}: worker {ranks - 1} (rank {ranks - 1}, process "
    assert told in ended.stdout, ended.stdout + ended.stderr
    assert f"did not answer {operation} within 2 s\n" in ended.stdout
    assert ended.stdout.endswith("done\n"), ended.stdout + ended.stderr


def test_the_former_name_of_run_worker_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(mpi_ranks, "run_worker", calls.append)
    message = r"^mha_native\.distributed\.mpi_ranks\.serve is deprecated; use run_worker$"
    with pytest.warns(DeprecationWarning, match=message):
        mpi_ranks.serve()
    assert calls == [None]
