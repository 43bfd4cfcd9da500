"""Imports of mha_native_bench run one way, and take only public names of mha_native."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mha_native
import mha_native_bench

PACKAGE = Path(mha_native_bench.__file__).parent
FILES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}

# Modules and folders of the package from the bottom up: each imports itself and what is before it.
LAYERS = [
    "errors", "options", "wording", "progress", "compare", "probes", "machine", "scaling_model", "cases", "contenders",
    "measure", "report", "run", "perplexity", "speech", "serve", "command_line", "__main__", "__init__",
]  # fmt: skip

# Sub-packages that are not in `__all__` are imported by name, so that `import mha_native` takes less time. One
# function of the package writes every hint to install something.
HINTS = "functions.needed_packages.pip_install"
PUBLIC = {
    f"mha_native.{name}" for name in (*mha_native.__all__, "sentence_transformers", "distributed", "speech", HINTS)
}

# Modules that need private names: to measure the machine, for parts of a step over ranks, and for spectrograms.
PRIVATE_USERS = {"probes.py", "scaling_model/ranks.py", "speech.py"}


def imports(text: str) -> Iterator[str]:
    """Full names of what a file imports, in functions and in type checking too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def violations(file: str, text: str) -> list[str]:
    """The imports in `text`, the file of that name, that run up or take what is not public."""
    layer = file.split("/")[0].removesuffix(".py")
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    found = []
    for name in imports(text):
        package, *rest = name.split(".")
        if package == "mha_native_bench" and rest:
            is_allowed = rest[0] in allowed
        elif package == "mha_native" and rest:
            is_public = any(f"{name}.".startswith(f"{public}.") for public in PUBLIC)
            is_allowed = file in PRIVATE_USERS or (is_public and not any(part.startswith("_") for part in rest))
        else:
            is_allowed = package != ""  # which a relative import has
        if not is_allowed:
            found.append(name)
    return found


@pytest.mark.parametrize("file", FILES)
def test_imports_point_down(file: str) -> None:
    assert violations(file, FILES[file].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("file", "line", "name"),
    [
        ("cases/case.py", "from mha_native_bench.contenders import Ours", "mha_native_bench.contenders.Ours"),
        ("cases/case.py", "from mha_native_bench import run", "mha_native_bench.run"),
        ("report/text.py", "import mha_native_bench.run", "mha_native_bench.run"),
        ("machine.py", "from mha_native import _core", "mha_native._core"),
        ("machine.py", "import mha_native._core", "mha_native._core"),
        ("machine.py", "from mha_native.distributed._shard import Shard", "mha_native.distributed._shard.Shard"),
        ("run.py", "from .cases.case import Case", ".cases.case.Case"),
    ],
)
def test_an_import_that_points_up_is_found(file: str, line: str, name: str) -> None:
    assert violations(file, f"import mha_native\n\n\ndef run():\n    {line}\n") == [name]


def test_the_library_does_not_import_its_benchmark() -> None:
    program = (
        "import sys, mha_native.__main__, mha_native.commands.registry; "
        "print([name for name in sys.modules if name.startswith('mha_native_b')])"
    )
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert loaded == "[]\n"
