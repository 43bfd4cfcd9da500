"""The layers of docs/architecture.md, in C++: bindings -> api -> checks, execute -> plan -> kernels, never back."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CPP = ROOT / "cpp"
CPP_FILES = sorted(
    path.relative_to(ROOT).as_posix() for path in CPP.rglob("*") if path.suffix in (".cpp", ".h", ".hpp")
)

# The rooms of cpp/src, floor by floor from the top, and those of cpp/src/kernels likewise. A file includes what lies in
# its own room or on a lower floor; files beside the rooms (kernels.cpp) are above all of them.
FLOORS = {
    "cpp/src/": (
        {"api", "c_api"},
        {"checks", "execute"},
        {"cache", "plan", "weights"},
        {"platform"},
        {"kernels", "views"},
    ),
    "cpp/src/kernels/": (
        {"attention", "projection"},
        {"products", "rows"},
        {"vectors"},
    ),
}

# What a folder of ours may include of ours, as regular expressions on paths below cpp/. The longest prefix counts.
OWN_INCLUDES = {
    "cpp/include/mha/": r"include/mha/.*",
    "cpp/src/": r"include/mha/.*|src/(?!kernels/).*|src/kernels/kernel_table\.hpp",
    "cpp/src/c_api/": r"include/mha/.*|src/c_api/.*",
    "cpp/src/kernels/": r"src/kernels/.*|"
    r"include/mha/(activation\.hpp|dtype\.hpp|dtypes\.def|norm_kind\.hpp|tensor_view\.hpp|weight_formats?\.\w+)",
    "cpp/bindings/": r"include/mha/.*|bindings/.*|probes/probes\.hpp",
    # Memory is read on the threads of a call, and errors are worded as in the library.
    "cpp/probes/": r"include/mha/.*|probes/.*|src/platform/(parallel\.hpp|isa_list\.inc)|src/views/describe\.hpp",
    "cpp/reference/": r"include/mha/.*|reference/.*",
}

# Headers of others, and the only files that may include them.
FOREIGN_INCLUDES = {
    r"omp\.h": r"cpp/src/platform/parallel\.cpp",
    r"(unsupported/)?Eigen/.*": r"cpp/src/kernels/vectors/eigen\.hpp|cpp/include/mha/eigen\.hpp",
    r"pybind11/.*|Python\.h|numpy/.*": r"cpp/bindings/.*",
}

# A template of the standard library would be a weak symbol, in every instruction set's object with different code.
KERNEL_STANDARD_HEADERS = {"cstddef", "cstdint", "math.h", "stddef.h", "stdint.h", "type_traits"}

GENERATED = {
    "mha/export.h": "include/mha/export.h",
    "mha/version.hpp": "include/mha/version.hpp",
    "feature_list.inc": "src/platform/feature_list.inc",
    "isa_list.inc": "src/platform/isa_list.inc",
}


def includes(text: str) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text, re.MULTILINE)


@cache
def resolve(path: str, name: str) -> str | None:
    """The file below cpp/ that an include names; None for a header of somebody else."""
    if name in GENERATED:
        return GENERATED[name]
    for folder in ((ROOT / path).parent, CPP / "src", CPP / "include", CPP / "probes"):
        if (folder / name).is_file():
            return (folder / name).resolve().relative_to(CPP).as_posix()
    return None


def room(path: str, house: str) -> str | None:
    """The folder of `house` that a file lies in; None beside the folders, or outside of the house."""
    parts = path.removeprefix(house).split("/")
    return parts[0] if path.startswith(house) and len(parts) > 1 else None


def floor(name: str, house: str) -> int:
    """How far down a room lies: the index of its floor."""
    return next(i for i, rooms in enumerate(FLOORS[house]) if name in rooms)


def points_up(path: str, own: str) -> bool:
    """Whether `path` includes a file of another room that is not on a lower floor; both are paths below the root."""
    for house in FLOORS:
        includer, included = room(path, house), room(own, house)
        if includer and included and includer != included:
            return floor(includer, house) >= floor(included, house)
    return False


def violations(path: str, text: str) -> list[str]:
    """The includes in `text`, the file at `path`, that the rules forbid."""
    prefix = max((p for p in OWN_INCLUDES if path.startswith(p)), key=len)
    found = []
    for name in includes(text):
        own = resolve(path, name)
        if own is not None:
            allowed = re.fullmatch(OWN_INCLUDES[prefix], own) and not points_up(path, f"cpp/{own}")
        else:
            owners = [files for header, files in FOREIGN_INCLUDES.items() if re.fullmatch(header, name)]
            allowed = all(re.fullmatch(files, path) for files in owners)
            if prefix == "cpp/src/kernels/" and not owners:
                allowed = name in KERNEL_STANDARD_HEADERS
        if not allowed:
            found.append(name)
    return found


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """A path that leads back to where it began, or an empty list."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for neighbour in sorted(graph.get(node, set())):
            if found := visit(neighbour, [*path, node]):
                return found
        done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := visit(node, []))), [])


def test_includes_point_down() -> None:
    sources = {path: (ROOT / path).read_text(encoding="utf-8") for path in CPP_FILES}
    assert {path: wrong for path, text in sources.items() if (wrong := violations(path, text))} == {}


@pytest.mark.parametrize("house", FLOORS)
def test_every_file_is_in_a_room_and_every_room_on_a_floor(house: str) -> None:
    rooms = [name for names in FLOORS[house] for name in names]
    assert sorted(rooms) == sorted({name for path in CPP_FILES if (name := room(path, house))})
    beside = [path for path in CPP_FILES if path.startswith(house) and room(path, house) is None]
    assert all(path.startswith("cpp/src/kernels/") for path in beside), "files of cpp/src lie in its rooms"


def test_the_house_stays_small() -> None:
    assert len(FLOORS["cpp/src/"]) <= 5
    assert sum(map(len, FLOORS["cpp/src/"])) <= 10


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("cpp/src/kernels/kernels.cpp", "platform/workspace.hpp"),
        ("cpp/src/kernels/kernels.cpp", "mha/attention.hpp"),
        ("cpp/src/kernels/kernels.cpp", "vector"),
        ("cpp/src/kernels/kernels.cpp", "Eigen/Core"),
        ("cpp/src/kernels/vectors/exp2.hpp", "kernels/products/strips.hpp"),
        ("cpp/src/kernels/products/strips.hpp", "kernels/attention/key_blocks.hpp"),
        ("cpp/src/kernels/projection/project_tile.hpp", "kernels/attention/key_blocks.hpp"),
        ("cpp/src/platform/dispatch.cpp", "kernels/vectors/eigen.hpp"),
        ("cpp/src/platform/dispatch.cpp", "plan/attention_plan.hpp"),
        ("cpp/src/platform/dispatch.cpp", "omp.h"),
        ("cpp/src/platform/dispatch.cpp", "Eigen/Dense"),
        ("cpp/src/platform/dispatch.cpp", "pybind11/pybind11.h"),
        ("cpp/src/plan/make_plan.cpp", "checks/attention.hpp"),
        ("cpp/src/checks/attention.cpp", "execute/run_plan.hpp"),
        ("cpp/src/execute/run_plan.cpp", "checks/attention.hpp"),
        ("cpp/src/views/describe.cpp", "platform/layout.hpp"),
        ("cpp/src/c_api/attention.cpp", "platform/dispatch.hpp"),
        ("cpp/include/mha/attention.hpp", "../../src/platform/dispatch.hpp"),
        ("cpp/include/mha/attention.hpp", "Eigen/Core"),
        ("cpp/bindings/module.cpp", "platform/dispatch.hpp"),
        ("cpp/bindings/module.cpp", "loops.hpp"),
        ("cpp/probes/probes.cpp", "platform/dispatch.hpp"),
        ("cpp/src/platform/dispatch.cpp", "probes.hpp"),
        ("cpp/reference/attention_reference.cpp", "platform/dispatch.hpp"),
    ],
)
def test_an_include_that_points_back_is_found(path: str, name: str) -> None:
    assert violations(path, f'#include "mha/tensor_view.hpp"\n#  include <{name}>\n') == [name]


def test_one_file_of_the_kernels_knows_where_keys_lie() -> None:
    readers = {
        path
        for path in CPP_FILES
        if path.startswith("cpp/src/kernels/")
        and re.search(r"\bKeyValueSource\b|\btile_?\.source\b", (ROOT / path).read_text(encoding="utf-8"))
    }
    assert readers == {"cpp/src/kernels/kernel_table.hpp", "cpp/src/kernels/attention/key_value_source.hpp"}


def test_sources_include_each_other_in_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in CPP_FILES:  # a header and its source are one node
        node = Path(path).relative_to("cpp").with_suffix("").as_posix()
        resolved = (resolve(path, name) for name in includes((ROOT / path).read_text(encoding="utf-8")))
        neighbours = {Path(own).with_suffix("").as_posix() for own in resolved if own}
        graph.setdefault(node, set()).update(neighbours - {node})
    assert cycle(graph) == []


def test_cycles_are_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
