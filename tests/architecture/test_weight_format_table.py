"""The weight formats are one table, weight_formats.def. No other file of the package or the core spells their names."""

import ast
import re
from pathlib import Path

import pytest

from mha_native import _core

ROOT = Path(__file__).resolve().parents[2]
CPP = ROOT / "cpp"
TABLE = CPP / "include" / "mha" / "weight_formats.def"

# But for `plain`, which has no name, and removed formats, which have no features.
ROW = r'^MHA_WEIGHT_FORMAT\(\w+, \w+, "(\w+)", [1-9]\d*, \d+, \w+, \d+, \d+\)$'
SPELLINGS = re.findall(ROW, TABLE.read_text(encoding="utf-8"), re.M)
OF_NUMBERS = set(SPELLINGS) - set(_core.block_formats())

# Names of dtypes, too: a string is a weight format where it is compared with one, or stands in a list of all of them.
# "mxfp4" is a way of config.json to quantize, too.
SHARED = {"bfloat16", "int8", "mxfp4"}

SOURCES = sorted((ROOT / "python" / "mha_native").rglob("*.py")) + sorted(
    path for path in CPP.rglob("*") if path.suffix in (".cpp", ".hpp", ".h")
)


def without_docstrings(module: ast.Module) -> ast.Module:
    """`module` without the strings that are statements."""
    for node in ast.walk(module):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                x for x in body if not (isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant))
            ]
    return module


def strings_in(node: ast.AST) -> set[str]:
    """The string literals below `node`."""
    return {x.value for x in ast.walk(node) if isinstance(x, ast.Constant) and isinstance(x.value, str)}


def spelled_in_python(text: str) -> set[str]:
    """Names of weight formats in code: those that are no dtypes anywhere, the others beside `weight_dtype`."""
    module = without_docstrings(ast.parse(text))
    found = {name for name in SPELLINGS if name not in SHARED and any(name in text for text in strings_in(module))}
    for node in ast.walk(module):
        if isinstance(node, ast.Compare | ast.Assign | ast.keyword | ast.Dict | ast.List | ast.Set | ast.Tuple):
            is_of_weights = isinstance(node, ast.Compare) and "weight_dtype" in ast.unparse(node)
            if is_of_weights or strings_in(node) >= OF_NUMBERS:
                found |= strings_in(node) & set(SPELLINGS)
    return found


def spelled_in_cpp(text: str) -> set[str]:
    """The same of C++, without comments."""
    found = set()
    for line in re.sub(r"//.*|/\*.*?\*/", "", text).splitlines():
        for literal in re.findall(r'"((?:[^"\\]|\\.)*)"', line):
            words = set(re.findall(r"\w+", literal)) & set(SPELLINGS)
            found |= words if re.search(r"weight_dtype|WeightFormat", line) else words - SHARED
    return found


def test_the_table_is_read() -> None:
    rows = re.findall(r"^MHA_WEIGHT_FORMAT\(", TABLE.read_text(encoding="utf-8"), re.M)
    assert len(rows) == len(SPELLINGS) + 2
    assert [*_core.weight_formats(), *_core.block_formats()] == SPELLINGS
    assert set(SPELLINGS) > SHARED


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('x = "an int4 matrix"', {"int4"}),
        ('def f():\n    """As int4."""', set()),
        ('if self._weight_dtype != "int8": pass', {"int8"}),
        ('if cache.dtype == "int8": pass', set()),
        (f"choices = {('float32', *SPELLINGS)}", set(SPELLINGS)),
    ],
)
def test_names_are_found_in_python(text: str, names: set[str]) -> None:
    assert spelled_in_python(text) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('if (weight_dtype == "int8") return 1;', {"int8"}),
        ('wrong("matrices must be int8");', set()),
        ('wrong("int8 or int4");  // "int4"', {"int4"}),
        ('// "int4" is unchanged', set()),
    ],
)
def test_names_are_found_in_cpp(text: str, names: set[str]) -> None:
    assert spelled_in_cpp(text) == names


def test_names_stand_in_the_table_alone() -> None:
    spelled = {}
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        names = spelled_in_python(text) if path.suffix == ".py" else spelled_in_cpp(text)
        if names:
            spelled[path.relative_to(ROOT).as_posix()] = sorted(names)
    assert spelled == {}
