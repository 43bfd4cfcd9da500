"""``python -m mha_native``: the command line."""

import argparse
import sys
from pathlib import Path

from .commands import completion
from .commands.exit_codes import run_to_end
from .functions.runtime import configuration

_ABOUT = "Sentence embeddings, language models, speech, images and attention on a CPU."

# Folders of the C++ library in the package, for builds of C++ programs: cmake -Dmha_native_DIR=$(... --cmake-dir)
_PLACES = {
    "--cmake-dir": ("lib/cmake/mha_native", "folder of the CMake package, for mha_native_DIR"),
    "--include-dir": ("include", "folder of the C and C++ headers"),
    "--pkgconfig-dir": ("lib/pkgconfig", "folder of mha_native.pc, for PKG_CONFIG_PATH"),
}


class _PrintPlace(argparse.Action):
    """Print a path below the package. The action "version" would wrap a long one."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        place = Path(__file__).parent / str(self.const)
        if not place.is_dir():
            parser.error(
                f"{self.option_strings[0]}: this wheel came without the C++ library; "
                "pip install --force-reinstall . in a clone of the repository compiles it"
            )
        print(place)
        parser.exit()


class _PrintCompletion(argparse.Action):
    """Print a script for a shell with all commands of the parser."""

    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: object, *__: object) -> None:
        print(completion.script(parser, str(shell)))
        parser.exit()


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit code: 2 for a mistake of the user."""
    given = sys.argv[1:] if arguments is None else arguments
    return run_to_end(lambda: _run(given))


def _run(given: list[str]) -> int:
    from .commands.registry import COMMANDS  # takes a second, in which an interrupt must end as in a command

    parser = argparse.ArgumentParser(prog="python -m mha_native", description=_ABOUT)
    version = f"mha_native {configuration()['mha_native']}"
    parser.add_argument("--version", action="version", version=version, help="print the version, and exit")
    about = "print a script that completes the program mha_native in a shell, bash by default, and exit"
    shells = completion.SHELLS
    parser.add_argument("--completion", action=_PrintCompletion, nargs="?", const="bash", choices=shells, help=about)
    for option, (place, about) in _PLACES.items():
        parser.add_argument(option, action=_PrintPlace, const=place, nargs=0, help=f"print the {about}, and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for command in COMMANDS:
        name, about = command.__name__.rpartition(".")[2], command.about
        own = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
        command.add_arguments(own)
        own.set_defaults(run=command.run, usage_error=own.error)
    options = parser.parse_args(given)
    return options.run(options) or 0


if __name__ == "__main__":
    sys.exit(main())
