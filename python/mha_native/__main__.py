"""``python -m mha_native``: the command line."""

import argparse
import os
import sys
from pathlib import Path

from . import demo
from .runtime import show_config

_EXAMPLE = "A dog ate the food because it was hungry"

# Of the C++ library that is in the package, for builds in other languages: cmake -Dmha_native_DIR=$(... --cmake-dir)
_PLACES = {
    "--cmake-dir": ("lib/cmake/mha_native", "folder of the CMake package, for mha_native_DIR"),
    "--include-dir": ("include", "folder of the C and C++ headers"),
    "--pkgconfig-dir": ("lib/pkgconfig", "folder of mha_native.pc, for PKG_CONFIG_PATH"),
}


class _PrintPlace(argparse.Action):
    """Prints a path below the package as it is, which the action "version" would wrap."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(Path(__file__).parent / str(self.const))
        parser.exit()


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns the exit code: 2 for what the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m mha_native", description="Multi-head attention on a CPU.")
    for option, (place, about) in _PLACES.items():
        parser.add_argument(option, action=_PrintPlace, const=place, nargs=0, help=f"print the {about}, and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser("info", help="versions, instruction sets, threads, and why they are what they are")
    about = "self-attention over the words of a text: what each word attends to in each head, the error, the time"
    demo_parser = commands.add_parser("demo", help=about, description=about[0].upper() + about[1:] + ".")
    source = demo_parser.add_mutually_exclusive_group()
    source.add_argument("--text", default=_EXAMPLE, help='default: "%(default)s"')
    source.add_argument("--file", metavar="PATH", help="take the text from a UTF-8 file")
    demo_parser.add_argument("--plot", metavar="PATH", help="draw the weights of each head, to heads.png for example")
    demo_parser.add_argument("--seed", type=int, default=0, help="of embeddings and weights; default: %(default)s")
    options = parser.parse_args(arguments)

    try:
        if options.command == "info":
            show_config()
        else:
            text = options.text if options.file is None else demo.read_text(options.file)
            demo.run(text, options.seed, options.plot)
        sys.stdout.flush()
    except demo.BadInput as error:
        print(f"mha_native: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader has seen enough, as in `| head`; keep the interpreter from flushing into it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
