"""Reads `cases.toml`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mha_native_bench.cases.case import Case

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# A wheel installs the file into the package; a checkout has it in bench/, where the benchmark in C++ reads it, too.
PACKAGE = Path(__file__).resolve().parents[1]
CASES_FILE = (PACKAGE if (PACKAGE / "cases.toml").exists() else PACKAGE.parent) / "cases.toml"


def load_cases(path: Path = CASES_FILE) -> list[Case]:
    """All rows. A row that goes against another takes from it the fields that it leaves out.

    Raises
    ------
    ValueError
        If a row breaks a rule of the file.
    """
    rows: dict[str, dict[str, Any]] = {}
    cases: dict[str, Case] = {}
    for given in tomllib.loads(path.read_text(encoding="utf-8"))["case"]:
        name, plain = given["name"], given.get("against", "")
        if name in rows or (plain and plain not in rows):
            raise ValueError(f"{path}: {name} must be a new name, and go against a case above it")
        rows[name] = row = {**rows.get(plain, {}), "quick": False, "extra": False, **given}
        width = {"D": row["E"] // row["H"]} if "E" in row else {"E": 0}
        if row["kind"] == "sentences":
            width["shortest"] = row["Tq"]
        window = {"window": tuple(row["window"])} if "window" in row else {}
        cases[name] = Case(**{"Hk": row["H"], "Tk": row["Tq"], "causal": False, **width, **row, **window})
        if plain and sizes(cases[plain]) != sizes(cases[name]):
            raise ValueError(f"{path}: {name} must have the sizes of {plain}, which it goes against")
    return list(cases.values())


def sizes(case: Case) -> tuple[Any, ...]:
    """What two cases have in common if they compute on the same arrays."""
    return case.kind, case.B, case.H, case.Hk, case.Tq, case.Tk, case.D, case.E, case.shortest, case.prefix


def plain_case(case: Case) -> Case:
    """The case that `case` goes against."""
    return next(plain for plain in load_cases() if plain.name == case.against)
