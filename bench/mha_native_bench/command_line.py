"""The command ``python -m mha_native bench``, from its arguments to its exit code."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import TYPE_CHECKING

from mha_native_bench.options import Mendable, complain, parse

if TYPE_CHECKING:
    from mha_native_bench.measure.results import Results


def main(arguments: list[str] | None = None) -> int:
    """Runs, reports, and returns the exit code: 1 for a wrong result, 2 for what the user can mend, 130 if stopped."""
    options = parse(arguments)
    try:
        return measure_and_show(options)
    except Mendable as error:
        complain(str(error))
        return 2
    except KeyboardInterrupt:
        complain("interrupted")
        return 130  # what a shell says of it


def measure_and_show(options: Namespace) -> int:
    try:  # not above: what the benchmark needs beside NumPy need not be installed
        from mha_native_bench.run import prepare, run
    except ModuleNotFoundError as error:
        raise Mendable(f'{error}: pip install "mha_native[bench]"') from error
    plan, results = prepare(options)
    try:
        run(plan, results)
    finally:  # nothing is lost that was measured, whatever ended it
        show(results, options)
    return 1 if results.wrong else 0


def show(results: Results, options: Namespace) -> None:
    """The report, and what goes to files."""
    from mha_native_bench.report.document import as_json
    from mha_native_bench.report.text import text

    if not results.measurements:
        return
    print(text(results, options.markdown), flush=True)
    try:
        if options.json is not None:
            options.json.write_text(json.dumps(as_json(results), indent=1) + "\n", encoding="utf-8")
        if options.plot is not None:
            from mha_native_bench.report.pictures import draw

            draw(results.cells, options.plot)
    except OSError as error:
        complain(str(error))
