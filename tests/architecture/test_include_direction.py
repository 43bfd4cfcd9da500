"""The layers of docs/architecture.md as tests, in C++: bindings -> api -> plan -> schedule -> kernels, never back."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CPP = ROOT / "cpp"
CPP_FILES = sorted(
    path.relative_to(ROOT).as_posix() for path in CPP.rglob("*") if path.suffix in (".cpp", ".h", ".hpp")
)

# What a folder of ours may include of ours, as regular expressions on paths below cpp/. The longest prefix counts.
OWN_INCLUDES = {
    "cpp/include/mha/": r"include/mha/.*",
    "cpp/src/": r"include/mha/.*|src/[^/]*|src/kernels/kernel_table\.hpp",
    "cpp/src/kernels/": r"src/kernels/.*|"
    r"include/mha/(activation\.hpp|dtype\.hpp|dtypes\.def|tensor_view\.hpp|weight_format\.hpp)",
    "cpp/bindings/": r"include/mha/.*|bindings/.*",
    "cpp/reference/": r"include/mha/.*|reference/.*",
}

# Headers of others, and the only files that may include them.
FOREIGN_INCLUDES = {
    r"omp\.h": r"cpp/src/parallel\.cpp",
    r"(unsupported/)?Eigen/.*": r"cpp/src/kernels/eigen\.hpp|cpp/include/mha/eigen\.hpp",
    r"pybind11/.*|Python\.h|numpy/.*": r"cpp/bindings/.*",
}

# A template of the standard library would be a weak symbol, in every instruction set's object with different code.
KERNEL_STANDARD_HEADERS = {"cstddef", "cstdint", "math.h", "stddef.h", "stdint.h", "type_traits"}

GENERATED = {
    "mha/export.h": "include/mha/export.h",
    "mha/version.hpp": "include/mha/version.hpp",
    "isa_list.inc": "src/isa_list.inc",
}


def includes(text: str) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text, re.MULTILINE)


def resolve(path: str, name: str) -> str | None:
    """The file below cpp/ that an include names; None for a header of somebody else."""
    if name in GENERATED:
        return GENERATED[name]
    for folder in ((ROOT / path).parent, CPP / "src", CPP / "include"):
        if (folder / name).is_file():
            return (folder / name).resolve().relative_to(CPP).as_posix()
    return None


def violations(path: str, text: str) -> list[str]:
    """The includes in `text`, the file at `path`, that the rules forbid."""
    prefix = max((p for p in OWN_INCLUDES if path.startswith(p)), key=len)
    found = []
    for name in includes(text):
        own = resolve(path, name)
        if own is not None:
            allowed = re.fullmatch(OWN_INCLUDES[prefix], own)
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


@pytest.mark.parametrize("path", CPP_FILES)
def test_includes_point_down(path: str) -> None:
    assert violations(path, (ROOT / path).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("cpp/src/kernels/kernels.cpp", "workspace.hpp"),
        ("cpp/src/kernels/kernels.cpp", "mha/attention.hpp"),
        ("cpp/src/kernels/kernels.cpp", "vector"),
        ("cpp/src/kernels/kernels.cpp", "Eigen/Core"),
        ("cpp/src/dispatch.cpp", "kernels/eigen.hpp"),
        ("cpp/src/dispatch.cpp", "omp.h"),
        ("cpp/src/dispatch.cpp", "Eigen/Dense"),
        ("cpp/src/dispatch.cpp", "pybind11/pybind11.h"),
        ("cpp/include/mha/attention.hpp", "../../src/dispatch.hpp"),
        ("cpp/include/mha/attention.hpp", "Eigen/Core"),
        ("cpp/bindings/module.cpp", "dispatch.hpp"),
        ("cpp/reference/attention_reference.cpp", "dispatch.hpp"),
    ],
)
def test_an_include_that_points_back_is_found(path: str, name: str) -> None:
    assert violations(path, f'#include "mha/tensor_view.hpp"\n#  include <{name}>\n') == [name]


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
