"""docs/symbols.md: arguments that it names here exist, and it has all arguments of what it compares with."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import mha_native

DOCUMENT = (Path(__file__).parents[2] / "docs" / "symbols.md").read_text(encoding="utf-8")


def _rows(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Of each row of each table: the two heads, and the two cells."""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        (theirs, ours), _, *rows = lines
        yield from ((theirs.strip("`"), ours.strip("`"), *row) for row in rows)


def _arguments_here(text: str) -> list[tuple[str, str]]:
    """What each row names: a function of this library, and an argument of it."""
    return [
        (function or head, argument)
        for _, head, _, cell in _rows(text)
        for function, argument in re.findall(r"`(?:([\w.]+)\()?(\w+)=\)?`", cell)
    ]


def _theirs(head: str) -> set[str]:
    """The arguments of theirs in the tables with that head."""
    return {name for theirs, _, cell, _ in _rows(DOCUMENT) if theirs == head for name in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize(("function", "argument"), sorted(set(_arguments_here(DOCUMENT))))
def test_arguments_here_exist(function: str, argument: str) -> None:
    assert argument in inspect.signature(operator.attrgetter(function)(mha_native)).parameters


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([A-Z][a-zA-Z]\w+\.\w+)[`(]", DOCUMENT))))
def test_members_here_exist(name: str) -> None:
    assert operator.attrgetter(name)(mha_native)


def test_a_row_is_read() -> None:
    table = "| `theirs` | `KVCache` |\n|---|---|\n| `x` | `one=`, and `KVCache.append(two=)` |\n"
    assert _arguments_here(table) == [("KVCache", "one"), ("KVCache.append", "two")]


def test_all_arguments_of_torch_are_there() -> None:
    torch = pytest.importorskip("torch")
    function = torch.nn.functional.scaled_dot_product_attention.__doc__
    signature = re.search(r"scaled_dot_product_attention\((.*?)\) ->", function, re.S)
    assert signature
    assert set(re.findall(r"(\w+)(?:=[^,]*)?(?:,|$)", signature[1])) == _theirs("F.scaled_dot_product_attention")
    module = torch.nn.MultiheadAttention
    assert set(inspect.signature(module).parameters) == _theirs("nn.MultiheadAttention")
    assert set(inspect.signature(module.forward).parameters) - {"self"} == _theirs("nn.MultiheadAttention.forward")


def test_all_arguments_of_onnx_are_there() -> None:
    onnx = pytest.importorskip("onnx")
    schema = onnx.defs.get_schema("Attention")
    assert {*(x.name for x in schema.inputs), *schema.attributes} == _theirs("Attention")
