"""Fail if an instruction set's object defines a symbol that another instruction set's object could define as well.

The linker keeps one of several weak symbols of the same name, so a function outside the object's own namespaces could
end up as AVX-512 code that a baseline caller runs. Every symbol that is visible to the linker must therefore live in
``mha::<isa>`` or in the renamed Eigen, ``mha_eigen_<isa>``. Run by ctest on each kernel object.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path


def own_symbol(isa: str) -> re.Pattern[str]:
    """Itanium-mangled names inside the namespaces of `isa`: functions, their statics, tables and type information."""
    eigen = f"mha_eigen_{isa}"
    return re.compile(rf"_Z(?:T[VTISC]|GV|GR|Z)*N[rVK]*[RO]?(?:3mha{len(isa)}{isa}|{len(eigen)}{eigen})")


def leaks(nm_output: str, isa: str) -> list[str]:
    """Names in the output of ``nm --defined-only`` that the linker sees and that are not the instruction set's own."""
    own = own_symbol(isa)
    names = []
    for line in nm_output.splitlines():
        fields = line.split()
        if len(fields) != 3:  # a blank line or the heading of a file
            continue
        _, kind, name = fields
        is_visible = kind.isupper() or kind in "iuvw"  # lower case is local, save for weak, unique and indirect
        if is_visible and not own.match(name):
            names.append(name)
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--isa", required=True)
    parser.add_argument("objects", nargs="+", type=Path)
    arguments = parser.parse_args()

    failed = False
    for path in arguments.objects:
        command = [arguments.nm, "--defined-only", str(path)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        if f"3mha{len(arguments.isa)}{arguments.isa}5tableEv" not in output:
            print(f"{path}: does not define mha::{arguments.isa}::table()")
            failed = True
        for name in leaks(output, arguments.isa):
            print(f"{path}: {name} is outside mha::{arguments.isa} and mha_eigen_{arguments.isa}")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
