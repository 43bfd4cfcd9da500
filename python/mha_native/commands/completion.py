"""``mha_native --completion SHELL``: a script that completes commands, options and files, by shtab."""

import argparse
from typing import Any

from ..functions.needed_packages import pip_install
from .errors import UserError

SHELLS = ("bash", "zsh", "fish")

_FILES = ("DIR", "FILE", "PATH")  # the names of values that are files


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script for a shell. UserError without shtab."""
    try:
        import shtab
    except ImportError as error:
        raise UserError(f"--completion needs shtab: {pip_install('shtab', extra='completion')}") from error
    for command in (parser, *_commands(parser)):
        for action in command._actions:
            if action.metavar in _FILES:
                action.complete = shtab.FILE
    parser.prog = "mha_native"
    return str(shtab.complete(parser, shell))


def _commands(parser: argparse.ArgumentParser) -> list[Any]:
    subparsers = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [command for action in subparsers for command in action.choices.values()]
