"""``python -m mha_native_bench.scaling_model``: the tables of docs/scaling.md, and their constants."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mha_native_bench.scaling_model import constants, tables


def main(arguments: list[str] | None = None) -> int:
    """Print tables of the constants; measure these first, if that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m mha_native_bench.scaling_model", description=__doc__)
    parser.add_argument("--constants", type=Path, default=constants.MEASURED, help="the file that has them")
    parser.add_argument(
        "--measure",
        metavar="MODEL",
        help="measure and write them first: 5 minutes; needs mpiexec, mpi4py, Ray, a model",
    )
    options = parser.parse_args(arguments)
    if options.measure:
        from mha_native_bench.scaling_model.measure import measured

        found, runs = measured(options.measure)
        constants.save(found, runs, options.constants)
    print(tables.all_of(options.constants))
    return 0


if __name__ == "__main__":
    sys.exit(main())
