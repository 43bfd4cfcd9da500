"""The command ``python -m mha_native bench serve``: a server under load, in turns with other servers."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from mha_native_bench.errors import UserError
from mha_native_bench.machine import describe_machine
from mha_native_bench.options import PROGRAM, in_a_folder, positive
from mha_native_bench.serve.servers import KINDS


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    from mha_native_bench.serve.figures import Figure, Plan, figures

    plan = Plan(
        options.model, options.language_model, dict(options.peer or ()), options.seconds, options.overload_seconds,
        options.rounds,
    )  # fmt: skip
    for name, value in describe_machine().items():
        print(f"{name}: {value}")
    print(f"{'figure':44} {'ratio':>8}  {'at least':>9}  value", flush=True)
    found: list[Figure] = []
    try:
        for figure in figures(plan):
            found.append(figure)
            print(f"{figure.name:44} {figure.ratio:8.2f}  {figure.bar:>9}  {figure.value}", flush=True)
    finally:
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n", encoding="utf-8")
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    about = "A server of this library under load over HTTP, in turns with the library in this process and with others."
    parser = argparse.ArgumentParser(prog=f"{PROGRAM} serve", description=about)
    parser.add_argument("--model", metavar="DIR", type=Path, help="of embeddings")
    parser.add_argument("--language-model", metavar="GGUF", type=Path, help="of texts")
    names = ", ".join(name for name in KINDS if name != "mha_native")
    peer = f"another server, one of {names}, with the Python that has it; may be given repeatedly"
    parser.add_argument("--peer", metavar="NAME[=PYTHON]", type=_peer, action="append", help=peer)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn; default: %(default)s")
    parser.add_argument("--rounds", type=positive, default=3, help="turns of each program; default: %(default)s")
    overload = "of four times the best rate; default: %(default)s"
    parser.add_argument("--overload-seconds", type=float, default=60.0, help=overload)
    parser.add_argument("--json", metavar="PATH", type=in_a_folder, help="write the figures to this file")
    options = parser.parse_args(arguments)
    if options.model is None and options.language_model is None:
        raise UserError("serve: --model or --language-model is required")
    return options


def _peer(text: str) -> tuple[str, str | None]:
    name, _, python = text.partition("=")
    if name not in KINDS or name == "mha_native":
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(KINDS)}; got {name}")
    return name, python or None
