"""The commands of ``python -m mha_native``, in the order of its help: a new command is a module and a line here."""

import argparse
from typing import Protocol

from . import bench, chat, classify, demo, embed, generate, info, models, rerank, search, selftest, serve, transcribe


class Command(Protocol):
    """A module of this folder. The last part of its name is the command."""

    __name__: str
    about: str  # one line of the help, without capital and full stop

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the command."""

    def run(self, options: argparse.Namespace) -> int | None:
        """Run the command and return its exit code; None stands for 0. `options.usage_error` refuses arguments."""


COMMANDS: tuple[Command, ...] = (
    *(info, models, selftest, demo, embed, search, rerank, classify, generate, chat, transcribe, serve, bench),
)
