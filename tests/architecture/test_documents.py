"""Documents: every relative link leads to a file and a heading that exist, and every file named in the text exists."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (".github", "LICENSES", "bench", "cpp", "docs", "examples", "python", "tests")
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    if path.is_file()
)
DOCUMENTS = [name for name in FILES if name.endswith(".md")]
HISTORY = {"CHANGELOG.md"}  # names files as they were
GENERATED = {"isa_list.inc", "mha/export.h", "mha/version.hpp"}  # by CMake
OF_OTHERS = {"llama.cpp", "omp.h"}

LINK = re.compile(r"\[[^\]\[]*\]\(([^()\s]+)\)")
FILE_NAME = re.compile(r"`((?:[\w.*]+/)*[\w*]+\.(?:cpp|hpp|h|c|def|inc|py|pyi|md|toml|cmake|map|\*))`")


def prose(text: str) -> str:
    """The text without its fenced blocks of code."""
    return re.sub(r"^(```+).*?^\1\s*$", "", text, flags=re.M | re.S)


def anchors(text: str) -> set[str]:
    """What links to the headings of a text end in, as code hosts make it of them."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(document: str, text: str) -> Iterator[str]:
    for link in LINK.findall(prose(text)):
        if re.match(r"[a-z]+:", link):  # https: and the like
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / document).parent / path if path else ROOT / document
        found = target.exists()
        if found and anchor:
            found = anchor in anchors(text if not path else target.read_text(encoding="utf-8"))
        if not found:
            yield link


def missing_files(text: str) -> Iterator[str]:
    """Files that the text names in backticks, by any last part of their path, also with `.../` before it.

    `*` stands for any part of a name.
    """
    for name in FILE_NAME.findall(prose(text)):
        last_part = re.escape(name.removeprefix(".../")).replace(re.escape("*"), "[^/]*")
        if name not in GENERATED | OF_OTHERS and not any(re.fullmatch(rf"(?:.*/)?{last_part}", path) for path in FILES):
            yield name


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    assert list(broken_links(document, (ROOT / document).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name not in HISTORY])
def test_files_named_in_the_text_exist(document: str) -> None:
    assert list(missing_files((ROOT / document).read_text(encoding="utf-8"))) == []


def test_a_broken_link_is_found() -> None:
    text = (
        "# One heading\n[a](docs/nowhere.md) [b](docs/numerics.md) [c](#one-heading) [d](#another) [e](https://x.org/y)"
    )
    assert list(broken_links("README.md", text)) == ["docs/nowhere.md", "#another"]


def test_a_missing_file_is_found() -> None:
    text = "`nowhere.cpp`, `platform/parallel.cpp`, `parallel.*`, `nowhere.*`, `checks/parallel.cpp`"
    text += "\n```\n`in_a_block_of_code.cpp`\n```\n"
    assert list(missing_files(text)) == ["nowhere.cpp", "nowhere.*", "checks/parallel.cpp"]
