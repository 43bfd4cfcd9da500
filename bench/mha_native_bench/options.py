"""The options of the command line."""

from __future__ import annotations

import argparse
import re
from importlib.util import find_spec
from pathlib import Path

from mha_native.functions.needed_packages import pip_install

PROGRAM = "python -m mha_native bench"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Attention, layers and models on this machine: this library and whatever peers are installed, "
        "on the same inputs, in turns. Every result is checked before anything is timed.",
    )
    what = parser.add_argument_group("what to run")
    what.add_argument(
        "--quick", action="store_true", help="the cases that show most, in 2 minutes; default: all, in 20"
    )
    what.add_argument("--cases", metavar="REGEX", type=regex, help="only cases whose name has a match")
    what.add_argument("--threads", metavar="N,N", type=counts, default=[1, 2], help="default: 1,2")
    what.add_argument(
        "--peers",
        metavar="NAMES",
        type=lambda text: [name for name in text.split(",") if name],
        help="numpy,torch,onnxruntime,transformers,sentence-transformers,openvino,llama.cpp, and the yardsticks "
        "read,against,padded; default: read, and those that are installed",
    )
    what.add_argument("--rounds", metavar="N", type=positive, help="turns of each program; default: 9, with --quick 5")
    what.add_argument(
        "--model", metavar="DIR", type=Path, help="of a BERT, for sentences; default: random weights of its sizes"
    )
    what.add_argument("--overheads", action="store_true", help="also the cost of a tiny call, memory, imports")
    how = parser.add_argument_group("how to report")
    how.add_argument("--markdown", action="store_true", help="print the report as Markdown")
    how.add_argument("--json", metavar="PATH", type=in_a_folder, help="write every turn of every program to this file")
    how.add_argument(
        "--plot",
        metavar="PATH.png",
        type=picture,
        help="draw the ratios, and beside it PATH-roofline.png; needs matplotlib",
    )
    return parser.parse_args(arguments)


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


def in_a_folder(text: str) -> Path:
    """A path that can be written to, checked before anything is measured."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write {text}: no file in a folder that exists")
    return path


def picture(text: str) -> Path:
    if find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError(f"needs matplotlib: {pip_install('matplotlib', extra='plot')}")
    return in_a_folder(text)
