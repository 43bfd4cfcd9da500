"""Imports inside the Python package point down: commands -> models -> layers -> functions -> core, never back."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "mha_native"
FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))

# The rooms of the package: (modules at the top of the package, or folders; the rooms that they may import).
ROOMS: dict[str, tuple[set[str], set[str]]] = {
    "core": ({"_core"}, set()),
    "reference": ({"reference"}, set()),  # the specification, which shares no code with what it judges
    "functions": ({"functions"}, {"core"}),
    "layers": ({"layers"}, {"functions", "core"}),
    "training": ({"optim"}, {"functions", "core"}),
    "models": ({"models"}, {"layers", "functions", "core"}),
    "serving": ({"serving"}, {"models", "layers", "functions", "core"}),
    "server": ({"server"}, {"serving", "speech", "models", "layers", "functions", "core"}),
    "drop-in": ({"sentence_transformers"}, {"models", "layers", "functions", "core"}),
    "speech": ({"speech"}, {"models", "layers", "functions", "core"}),
    "distributed": ({"distributed"}, {"models", "layers", "functions", "core"}),
    "interop": ({"interop"}, {"drop-in", "models", "layers", "functions", "core"}),
    "commands": (
        {"commands"},
        {"distributed", "server", "serving", "drop-in", "speech", "models", "layers", "functions", "core", "reference"},
    ),
    "command line": ({"__main__"}, {"commands", "functions"}),
    "public names": (
        {"__init__", "compat"},
        {
            *("serving", "models", "interop", "layers", "training", "functions", "core", "reference", "distributed"),
            *("drop-in", "speech"),
        },
    ),
}


def room_of(module: str) -> str:
    """The room of a module; KeyError for a module or folder that the table does not have."""
    top = module.partition(".")[0]
    rooms = [room for room, (members, _) in ROOMS.items() if top in members]
    if len(rooms) != 1:
        raise KeyError(f"{module} must be in one room; it is in {rooms}")
    return rooms[0]


@cache
def is_module(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file() or path.with_suffix(".pyi").is_file()


def module_of(path: str) -> str:
    """The name of the module at `path`, below mha_native: "layers" for layers/__init__.py."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def imports(path: str, text: str) -> frozenset[str]:
    """The modules of the package that a file imports, also inside functions; "__init__" for the package itself."""
    return frozenset(_imports(path, text))


def _imports(path: str, text: str) -> Iterator[str]:
    folders = path.split("/")[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module else []
            if node.level:
                parts = folders[: len(folders) + 1 - node.level] + parts
            elif parts[0] == "mha_native":
                parts = parts[1:]
            else:
                continue
            for alias in node.names:  # a name is a module, or something inside of one
                name = ".".join([*parts, alias.name])
                yield name if is_module(name) else ".".join(parts) or "__init__"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                first, _, rest = alias.name.partition(".")
                if first == "mha_native":
                    yield rest or "__init__"


def violations(path: str, text: str) -> list[str]:
    """The modules that `text`, the file at `path`, imports against the table."""
    room = room_of(module_of(path))
    allowed = ROOMS[room][1] | {room}
    return sorted(module for module in imports(path, text) if room_of(module) not in allowed)


def source(path: str) -> str:
    return (PACKAGE / path).read_text(encoding="utf-8")


def test_imports_point_down() -> None:
    assert {path: wrong for path in FILES if (wrong := violations(path, source(path)))} == {}


@pytest.mark.parametrize(
    ("path", "line", "module"),
    [
        ("functions/attention.py", "from ..layers.encoder import Encoder", "layers.encoder"),
        ("functions/kv_cache.py", "from ..layers import _module_state", "layers._module_state"),
        ("functions/runtime.py", "from .. import models", "models"),
        ("reference/attention.py", "from .. import _core", "_core"),
        (
            "reference/transformer.py",
            "from ..functions.attention import scaled_dot_product_attention",
            "functions.attention",
        ),
        ("layers/encoder.py", "from ..models import SentenceEncoder", "models"),
        ("layers/encoder.py", "from .. import __version__", "__init__"),
        ("layers/encoder.py", "import mha_native", "__init__"),
        ("layers/encoder.py", "from mha_native.interop import onnx", "interop.onnx"),
        ("layers/__init__.py", "from ..commands import demo", "commands.demo"),
        ("models/generation/generate.py", "import mha_native.commands.errors", "commands.errors"),
        ("models/causal_lm.py", "from ..serving import Batcher", "serving"),
        ("serving/batcher.py", "from ..sentence_transformers import CrossEncoder", "sentence_transformers"),
        ("models/sentence_encoder.py", "from ..sentence_transformers import CrossEncoder", "sentence_transformers"),
        ("sentence_transformers/__init__.py", "from ..commands import embed", "commands.embed"),
        ("models/sentence_encoder.py", "from ..distributed import ray", "distributed.ray"),
        ("distributed/ray.py", "from ..commands import output", "commands.output"),
        ("interop/onnx.py", "from ..serving import Batcher", "serving"),
        ("serving/batcher.py", "from ..server import app", "server"),
        ("commands/demo.py", "from .. import compat", "compat"),
        ("__main__.py", "from .models import SentenceEncoder", "models"),
    ],
)
def test_an_import_that_points_up_is_found(path: str, line: str, module: str) -> None:
    assert violations(path, f"import numpy\n\ndef late():\n    {line}\n") == [module]


def test_the_table_is_in_order() -> None:
    TopologicalSorter({room: allowed for room, (_, allowed) in ROOMS.items()}).prepare()


def test_the_table_has_nothing_that_is_gone() -> None:
    assert [name for members, _ in ROOMS.values() for name in sorted(members) if not is_module(name)] == []


@pytest.mark.parametrize("path", ["helpers.py", "tools/__init__.py", "tools/timing.py"])
def test_a_module_in_no_room_is_found(path: str) -> None:
    with pytest.raises(KeyError, match="must be in one room"):
        violations(path, "")


def require_no_circle(sources: dict[str, str]) -> None:
    """CycleError if the files, by their paths, import each other in a circle."""
    TopologicalSorter({module_of(path): imports(path, text) for path, text in sources.items()}).prepare()


def test_modules_import_each_other_in_no_circle() -> None:
    require_no_circle({path: source(path) for path in FILES})


def test_a_circle_is_found() -> None:
    with pytest.raises(CycleError):
        require_no_circle({"layers/encoder.py": "from . import decoder", "layers/decoder.py": "from .encoder import x"})


def test_core_is_the_only_compiled_module() -> None:
    imported = {module for path in FILES for module in imports(path, source(path))}
    assert {module for module in imported if PACKAGE.joinpath(f"{module}.pyi").is_file()} == {"_core"}


def is_of_an_init(node: ast.stmt) -> bool:
    """Return whether a statement is a docstring, an import, a list of names, or loads a name on first use (PEP 562)."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Name) and target.id.startswith("_") for target in node.targets)
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return (
        isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.FunctionDef) and node.name in ("__getattr__", "__dir__"))
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    )


def test_init_only_imports() -> None:
    inits = [path for path in FILES if path.endswith("__init__.py")]
    others = [(path, node) for path in inits for node in ast.parse(source(path)).body if not is_of_an_init(node)]
    assert [f"{path}: {ast.unparse(node)}" for path, node in others] == []
