"""The command ``bench``: the benchmarks, which parse their own arguments."""

import argparse

about = "speed of this library and of others, on the same inputs in turns; results are checked first (bench --help)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.prefix_chars = ""  # options are arguments like any other, --help too
    parser.add_argument("arguments", nargs=argparse.REMAINDER)


def run(options: argparse.Namespace) -> int:
    from mha_native_bench.command_line import main  # imports mha_native, so it is imported late

    return main(options.arguments)
