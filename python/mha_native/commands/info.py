"""The command ``info``: the build, the machine, and the settings in use."""

import argparse
import json

from ..functions.runtime import configuration, show_config

about = "versions, instruction sets and threads, and the reason for each choice"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as one JSON object, for programs")


def run(options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(configuration(), indent=2))
    else:
        show_config()
