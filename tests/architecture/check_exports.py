"""Fail if a shared library shows anything but what the public headers mark with ``MHA_API``, or less than that.

Run by tests/consumer/run on the library that it has built and installed.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

# clang-format begins what stands in a namespace at the first column. A function is the first name before a parenthesis.
MARKED = re.compile(r"^(?:class MHA_API (\w+)|MHA_API [^;(]*?(\w+)\()", re.M)
FUNCTION = re.compile(
    r"^(?!MHA_API|class|constexpr|enum|extern|inline|namespace|struct|template|typedef|using)\w[^;(]*?(\w+)\(", re.M
)
CLASS = re.compile(r"^class (?!MHA_API)(\w+)[^;{]*{", re.M)
SHOWN_INNER_CLASS = re.compile(r"^  struct (Impl);", re.M)


def declarations(header: str) -> str:
    """A header without comments and directives, and with templates on one line."""
    header = re.sub(r"/\*[\s\S]*?\*/|//.*|^#(?:.*\\\n)*.*", "", header, flags=re.M)
    return re.sub(r"^(template <.*>)\n", r"\1 ", header, flags=re.M)


def marked(header: str) -> set[str]:
    """Classes and functions that a header marks."""
    return {name for pair in MARKED.findall(declarations(header)) for name in pair if name}


def unmarked(header: str) -> list[str]:
    """Functions that nobody could link, and classes whose members nobody could, or everybody, though inner ones."""
    return [name for rule in (FUNCTION, CLASS, SHOWN_INNER_CLASS) for name in rule.findall(declarations(header))]


def exported(nm_output: str) -> set[str]:
    """Names in the output of ``nm -DC --defined-only``: what stands in mha, without members, or in no namespace."""
    names = set()
    for line in nm_output.splitlines():
        name = re.sub(r"^(typeinfo|vtable)( name)? for ", "", line.split(maxsplit=2)[2])
        inner = re.match(r"mha::\w+::Impl\b", name)
        match = re.match(r"(?:mha::)?(\w+)(?=\(|::|$)", name)
        names.add(name if inner or not match else match[1])
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nm", default="nm")
    parser.add_argument("library", type=Path)
    parser.add_argument("headers", nargs="+", type=Path)
    arguments = parser.parse_args()

    output = subprocess.run(
        [arguments.nm, "-DC", "--defined-only", str(arguments.library)], check=True, capture_output=True, text=True
    ).stdout
    shown, meant = exported(output), set()
    for header in arguments.headers:
        meant |= marked(header.read_text(encoding="utf-8"))
    for name in sorted(shown - meant):
        print(f"{arguments.library}: shows {name}, which no header marks with MHA_API")
    for name in sorted(meant - shown):
        print(f"{arguments.library}: does not show {name}, which a header marks with MHA_API")
    return int(shown != meant)


if __name__ == "__main__":
    sys.exit(main())
