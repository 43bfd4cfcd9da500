"""Attention, layers and sentence models against other libraries, side by side. The protocol is in ../README.md."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contenders import Contender

SMOKE_CASES = r"T1-|T16-|B8-T128-D32|ragged|decode-S1024|mask|B1-T11"


def main(arguments: list[str] | None = None) -> int:
    """Runs, prints, and returns the exit code: 1 for a wrong result, 2 for what the user can mend."""
    options = parse(arguments)
    if find_spec("threadpoolctl") is None:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", str(options.threads[0]))  # is read when NumPy is imported

    # Not above: NumPy comes with them.
    import report
    from contenders import PEERS, Ours, in_rotation, make_peer
    from encoder_inputs import Models
    from machine import describe_machine
    from measure import Effort, WrongResult, measure
    from model_memory import measure_model_memory
    from overheads import measure_overheads
    from shapes import copies, load_cases, make_inputs, oracle

    import mha_native

    def fail(message: str) -> int:
        print(f"bench_attention: {message}", file=sys.stderr)
        return 2

    cases = [case for case in load_cases() if options.cases.search(case.name)]
    for what, libraries, needs in (
        ("sentences", ("safetensors", "tokenizers"), lambda case: case.kind == "sentences"),
        ("bf16", ("ml_dtypes",), lambda case: case.dtype == "bf16"),
    ):
        missing = [library for library in libraries if find_spec(library) is None]
        if missing and any(map(needs, cases)):
            cases = [case for case in cases if not needs(case)]
            print(f"bench_attention: without {what}, for which {' and '.join(missing)} are missing", file=sys.stderr)
    if not cases:
        return fail(f"no case matches {options.cases.pattern!r}: " + ", ".join(case.name for case in load_cases()))
    if options.isa is not None and options.isa not in mha_native.available_isas():
        return fail(f"--isa {options.isa}: this machine runs {', '.join(mha_native.available_isas())}")
    mha_native.use_isa(options.isa)
    contenders: list[Contender] = [Ours(options.threads)]
    for name in PEERS if options.peers is None else options.peers:
        if name not in PEERS:
            return fail(f"--peers {name}: there are {', '.join(PEERS)}")
        try:
            contenders.append(make_peer(name, options.threads))
        except ImportError as error:
            if options.peers is not None:
                return fail(f"--peers {name}: {error}")
            print(f"bench_attention: without {name}: {error}", file=sys.stderr)
    names = [contender.name for contender in contenders]

    machine = describe_machine()
    machine.update({f"contender {contender.name}": contender.description() for contender in contenders})
    for fact in machine.items():
        print("{:<22}{}".format(*fact))
    effort = Effort(options.rounds, options.seconds / options.rounds)
    if options.smoke:
        effort = Effort(rounds=2, turn_seconds=0, rest_seconds=0)
    print(f"{'effort':<22}{effort.rounds} rounds of {effort.turn_seconds:.3g} s for each program", flush=True)

    measurements, memory = [], []
    measures_overheads = options.overheads or options.smoke
    with Models(options.model) as models:
        for case in cases:
            print(f"{case.name} ...", file=sys.stderr, flush=True)
            try:
                inputs = make_inputs(case, models.directory(case))
            except (OSError, ValueError) as error:
                return fail(f"--model: {error}")
            arrays = copies(case, inputs)
            programs = [
                in_rotation(list(same))
                for threads in options.threads
                for contender in contenders
                for same in zip(*(contender.programs(case, copy, threads) for copy in arrays), strict=True)
            ]
            try:
                measurements.append(measure(case, programs, oracle(case, inputs), effort))
            except WrongResult as error:
                print(f"bench_attention: {error}", file=sys.stderr)
                return 1
            if mha_native.last_used_isa() != mha_native.active_isa():
                print(f"bench_attention: ran on {mha_native.last_used_isa()}", file=sys.stderr)
                return 1
            if case.kind == "sentences" and measures_overheads:
                ran = dict.fromkeys((program.contender, program.threads) for program in programs)
                memory += [found for key in ran for found in measure_model_memory(*key, case, inputs.model)]
    overheads = measure_overheads(options.threads, effort, memory) if measures_overheads else None

    print("\nSpeed. Ratios of times: median [quartiles] best; others: CPUs kept busy by other processes")
    print(report.layout(report.speed_table(measurements, names[1:], options.threads), options.markdown))
    print("\nLargest error against the float64 oracle")
    print(report.layout(report.error_table(measurements, names), options.markdown))
    lines = [
        *report.against_lines(measurements),
        *report.variant_lines(measurements),
        *report.bandwidth_lines(measurements),
        *report.peak_lines(measurements),
    ]
    print("", *lines, *(overheads.lines() if overheads else []), sep="\n")
    if options.json is not None:
        document = {
            "machine": machine,
            "cases": report.as_json(measurements),
            "overheads": overheads.as_json() if overheads else None,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Attention on this machine: this library and others, side by side.")
    parser.add_argument("--cases", metavar="REGEX", type=regex, help="only cases whose name has a match; default: all")
    parser.add_argument("--threads", metavar="N,N", type=counts, default=[1, 2], help="default: 1,2")
    parser.add_argument("--rounds", metavar="N", type=positive, default=9, help="turns of each program; default: 9")
    parser.add_argument(
        "--seconds", metavar="S", type=float, default=0.5, help="of a program's turns together; default: 0.5"
    )
    parser.add_argument(
        "--peers",
        metavar="NAMES",
        type=lambda text: [name for name in text.split(",") if name],
        help="read,against,padded,numpy,torch,onnxruntime,transformers,openvino; default: those that are installed",
    )
    parser.add_argument("--isa", metavar="NAME", help="instruction set of this library; default: its own choice")
    parser.add_argument(
        "--model", metavar="DIR", type=Path, help="of a BERT, for sentences; default: random weights of its sizes"
    )
    parser.add_argument("--overheads", action="store_true", help="also the cost of a tiny call, memory, imports")
    parser.add_argument("--json", metavar="PATH", type=Path, help="write every turn to this file")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--smoke", action="store_true", help="run everything, measure next to nothing: a few seconds")
    options = parser.parse_args(arguments)
    if options.cases is None:
        options.cases = re.compile(SMOKE_CASES if options.smoke else "")
    return options


def regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from error


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {value}")
    return value


def counts(text: str) -> list[int]:
    return sorted({positive(part) for part in text.split(",")})


if __name__ == "__main__":
    sys.exit(main())
