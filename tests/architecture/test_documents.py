"""Documents: relative links lead to files and headings, files named in the text exist, and so do names in these files.

The README states the figures of bench/RESULTS.md, and its picture shows them.

To have a name checked, write it in one form: `name` of `file.py`, or `name` and `other_name` in `folder/file.hpp`.
"""

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
PATH = r"(?:[\w.*]+/)*[\w*]+\.(?:cpp|hpp|h|c|def|inc|py|pyi|md|toml|cmake|map|\*)"
FILE_NAME = re.compile(rf"`({PATH})`")
SPANS = r"`[^`]+`(?:(?:,|,? and|,? or)\s+`[^`]+`)*"  # one code span, or a list of them
NAMES_OF_FILE = re.compile(rf"({SPANS})\s+(?:of|in)\s+`({PATH})`")
NAME = re.compile(r"`((?:\w+(?:\.|::))*\w+)(?:\(.*?\))?`", re.S)  # also Class.method, Class::method(), call(argument)


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


def files_named(name: str) -> list[str]:
    """Return the files whose path ends in `name`, where `*` stands for any part and `.../` at the start is ignored."""
    last_part = re.escape(name.removeprefix(".../")).replace(re.escape("*"), "[^/]*")
    return [path for path in FILES if re.fullmatch(rf"(?:.*/)?{last_part}", path)]


def missing_files(text: str) -> Iterator[str]:
    for name in FILE_NAME.findall(prose(text)):
        if name not in GENERATED | OF_OTHERS and not files_named(name):
            yield name


def missing_names(text: str) -> Iterator[str]:
    """Names that the text says to be in a file, and that are words of no file of this name."""
    for spans, file in NAMES_OF_FILE.findall(prose(text)):
        texts = [(ROOT / path).read_text(encoding="utf-8") for path in files_named(file)]
        for name in NAME.findall(FILE_NAME.sub("", spans)):
            words = [rf"\b{word}\b" for word in re.split(r"\.|::", name)]
            if not any(all(re.search(word, text) for word in words) for text in texts):
                yield f"{name} of {file}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    assert list(broken_links(document, (ROOT / document).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name not in HISTORY])
def test_files_named_in_the_text_exist(document: str) -> None:
    assert list(missing_files((ROOT / document).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name not in HISTORY])
def test_names_in_files_exist(document: str) -> None:
    assert list(missing_names((ROOT / document).read_text(encoding="utf-8"))) == []


def test_a_broken_link_is_found() -> None:
    text = (
        "# One heading\n[a](docs/nowhere.md) [b](docs/numerics.md) [c](#one-heading) [d](#another) [e](https://x.org/y)"
    )
    assert list(broken_links("README.md", text)) == ["docs/nowhere.md", "#another"]


def test_a_missing_file_is_found() -> None:
    text = "`nowhere.cpp`, `platform/parallel.cpp`, `parallel.*`, `nowhere.*`, `checks/parallel.cpp`"
    text += "\n```\n`in_a_block_of_code.cpp`\n```\n"
    assert list(missing_files(text)) == ["nowhere.cpp", "nowhere.*", "checks/parallel.cpp"]


def test_a_missing_name_is_found() -> None:
    text = """`run_region` in `parallel.cpp`. `nowhere.py`, `NAME`, `nowhere` and `Nobody::nothing()` of
    `platform/parallel.cpp`. `nobody` of `parallel.hpp`, `run_region(anything)` in
    `platform/parallel.*`, `any-thing` of `parallel.cpp`"""
    names = ["NAME of", "nowhere of", "Nobody::nothing of"]
    assert list(missing_names(text)) == [*(f"{name} platform/parallel.cpp" for name in names), "nobody of parallel.hpp"]


README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "bench" / "RESULTS.md").read_text(encoding="utf-8")


def cells_of(text: str, columns: int) -> list[list[str]]:
    """Return the rows of the tables with this number of columns, cell by cell."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if len(row) == columns]


def summary_rows() -> set[tuple[str, ...]]:
    """Return (time, ratio of the best peer, ratio of torch) of each row of the summary, on one thread."""
    rows = cells_of(RESULTS.partition("## Summary")[2].partition("\n## ")[0], 7)
    return {(row[1], row[4].split(",")[0], row[6].split(",")[0]) for row in rows}


def test_the_table_of_the_readme_is_of_the_results() -> None:
    rows = cells_of(README.partition("## Results")[2].partition("\n## ")[0], 5)[2:]
    assert len(rows) > 5
    assert [row for row in rows if (row[1], row[3].split()[0], row[4]) not in summary_rows()] == []
    assert re.findall(r"commit +(\w{12})", RESULTS) == re.findall(r"\b([0-9a-f]{12})\b", README)


def test_the_figures_of_the_readme_are_of_the_results() -> None:
    speed = " ".join(README.partition("## Speed")[2].partition("\n## ")[0].split())
    time, torch = re.findall(r"\*\*([\d.]+ ms)\*\* for .*? torch takes ([\d.]+) times", speed)[0]
    assert (time, torch) in {(row[0], row[2]) for row in summary_rows()}
    (tokens,) = re.findall(r"\*\*(\d+) tokens a second\*\*", speed)
    (token,) = [row[3].split("/")[0] for row in cells_of(RESULTS, 6) if row[0] == "float32, weights in int8"]
    assert int(tokens) == round(1000 / float(token))
    means = re.findall(r"\*\*([\d.]+) times\*\*.*?(\d+) cases.*?torch ([\d.]+) times", speed)
    stated = "Of .*? cells, (\\d+) cases.*?best peer takes ([\\d.]+) times as long, and torch ([\\d.]+) times"
    assert means == [(mean, count, other) for count, mean, other in re.findall(stated, " ".join(RESULTS.split()))]


def test_the_picture_of_the_readme_is_of_the_results() -> None:
    """If it fails, run: python docs/site/draw_speed.py"""
    picture = (ROOT / "docs" / "site" / "speed.svg").read_text(encoding="utf-8")
    numbers = re.findall(r">(\d+\.\d\d)</text>", picture)
    assert len(numbers) == 12
    shown = set(zip(numbers[::2], numbers[1::2], strict=True))
    assert shown <= {row[1:] for row in summary_rows()}


def test_the_times_of_measured_models_are_of_the_results() -> None:
    page = (ROOT / "docs" / "measured_models.md").read_text(encoding="utf-8")
    times = re.findall(r"[\d./ ]+(?= (?:s|ms|us)\b)", prose(page))
    numbers = [number for time in times for number in re.findall(r"[\d.]+", time)]
    assert len(numbers) > 20
    assert [number for number in numbers if not re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.])", RESULTS)] == []
    for token, rate in re.findall(r"\| ([\d.]+ / [\d.]+) ms \| (\d+ / \d+) \|", page):
        assert [round(1000 / float(one)) for one in token.split("/")] == [int(one) for one in rate.split("/")]
