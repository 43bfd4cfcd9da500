"""The command ``python -m mha_native bench``, from its arguments to its exit code."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from mha_native.functions.needed_packages import pip_install
from mha_native_bench.errors import UserError
from mha_native_bench.options import parse

if TYPE_CHECKING:
    from mha_native_bench.measure.results import Results


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark and returns the exit code.

    0; 1 if a result was wrong; 2 for a mistake of the user; 130, as shells have it, after Ctrl-C.
    """
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if given[:1] == ["serve"]:
            from mha_native_bench.serve.command import main as serve

            return serve(given[1:])
        return measure_and_show(parse(given))
    except UserError as error:
        complain(str(error))
        return 2
    except KeyboardInterrupt:
        complain("interrupted")
        return 130


def measure_and_show(options: Namespace) -> int:
    try:  # imported here, so that what is missing of the extra "bench" is reported in one sentence
        from mha_native_bench.run import prepare, run
    except ModuleNotFoundError as error:
        raise UserError(f"{error}: {pip_install(str(error.name), extra='bench')}") from error
    plan, results = prepare(options)
    try:
        run(plan, results)
    finally:  # a run that is interrupted, or fails, still reports what it has measured
        show(results, options)
    return 1 if results.wrong else 0


def show(results: Results, options: Namespace) -> None:
    """Prints the report, and writes the files that were asked for."""
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


def complain(sentence: str) -> None:
    print(f"mha_native bench: {sentence}", file=sys.stderr)
