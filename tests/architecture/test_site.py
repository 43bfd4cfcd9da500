"""The site: its check finds what it should, it has every module, and its pictures are those of the results."""

import importlib
import math
import re
import sys
from pathlib import Path
from types import ModuleType

import check_site
import pytest

import mha_native
from mha_native import distributed, models, reference, sentence_transformers, serving
from mha_native.interop import onnx, transformers

ROOT = Path(__file__).resolve().parents[2]
RESULTS = (ROOT / "bench" / "RESULTS.md").read_text(encoding="utf-8")


def test_a_broken_page_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="mha_native.generate"><a href="#mha_native.generate">x</a> <a href="b.html#here">x</a>'
        '<a href="c.html">x</a>'
        '<a href="b.html#there">x</a> <a href="https://example.org">x</a> <img src="https://example.org/a.png">'
        '<link rel="stylesheet" href="//example.org/a.css">'
    )
    (tmp_path / "b.html").write_text('<p id="here">')
    pages = check_site.pages_of(tmp_path)
    assert [re.findall(r"leads to (\S+),", fault) for fault in check_site.broken_links(pages)] == [
        ["c.html"],
        ["b.html#there"],
    ]
    assert [re.findall(r"loads (\S+) ", fault) for fault in check_site.foreign_resources(pages)] == [
        ["https://example.org/a.png"],
        ["//example.org/a.css"],
    ]
    assert list(check_site.missing_names(pages, ["mha_native.KVCache", "mha_native.generate"])) == [
        "mha_native.KVCache has no entry"
    ]
    assert [re.sub(r"^\S*/", "", fault) for fault in check_site.missing_parts(tmp_path, pages)] == [
        *("a.html has no description", "b.html has no description", "a.html has no icon", "b.html has no icon"),
        f"{tmp_path.name} has no index.html",
        f"{tmp_path.name} has no 404.html",
    ]


def test_a_whole_page_is_accepted(tmp_path: Path) -> None:
    head = '<meta name="description" content="x"><link rel="icon" href="a.svg">'
    for name in ("index.html", "404.html"):
        (tmp_path / name).write_text(head)
    assert list(check_site.missing_parts(tmp_path, check_site.pages_of(tmp_path))) == []
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "layers.html").write_text(head)
    (fault,) = check_site.missing_parts(tmp_path, check_site.pages_of(tmp_path))
    assert fault.endswith("layers.html has no summary table")


def test_public_names_are_those_of_the_modules() -> None:
    names = set(check_site.public_names())
    for module in (mha_native, distributed, models, reference, sentence_transformers, serving, onnx, transformers):
        assert {f"{module.__name__}.{name}" for name in module.__all__ if not name.startswith("__")} <= names
    assert "mha_native.distributed.ray.embed" in names


def _module_of_site(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs" / "site"), *sys.path])
    return importlib.import_module(name)


def _draw_speed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("matplotlib")
    return _module_of_site("draw_speed", monkeypatch)


def test_the_pictures_have_all_cells_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = _draw_speed(monkeypatch).report(RESULTS)
    stated = re.search(r"Of (\d+)\s+cells.*?best peer takes ([\d.]+) times as long", RESULTS, re.S)
    assert stated
    assert len(cells) == len({cell[:2] for cell in cells}) == int(stated[1])
    mean = math.exp(sum(math.log(ratio) for _, _, ratio in cells) / len(cells))
    assert f"{mean:.2f}" == stated[2]


def test_the_pictures_have_all_rows_of_the_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _draw_speed(monkeypatch)
    rows = [row for kind in module.KINDS for row in module.summary(RESULTS, kind)]
    summary = RESULTS.partition("## Summary")[2].partition("\n## ")[0]
    assert len(rows) == len(re.findall(r"^\|.*\d\.\d\d, \d", summary, re.M))
    assert ("attention, B1 H8 T128 D64", 1.08, 2.58) in rows
    assert {row[1:] for row in module.first_rows(RESULTS)} <= {row[1:] for row in rows}


def test_the_pictures_are_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _draw_speed(monkeypatch).draw_speed(ROOT / "bench" / "RESULTS.md", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "speed-all.svg",
        "speed-bf16.svg",
        "speed-f32.svg",
        "speed-int8.svg",
    ]


# Examples of a second at most that need NumPy alone; .ci/run runs the others.
QUICK = ["decode_with_cache", "encoder_decoder", "encoder_layer", "grouped_heads", "padding_and_causal", "ragged_batch"]
QUICK += ["self_attention", "sharded_keys"]


@pytest.mark.parametrize("name", QUICK)
def test_recorded_outputs_are_those_of_the_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, run: python docs/site/record_outputs.py NAME.py"""
    module = _module_of_site("record_outputs", monkeypatch)
    example = ROOT / "examples" / f"{name}.py"
    recorded = module.recorded(example).read_text(encoding="utf-8")
    assert module.words_of(module.output_of(example)) == module.words_of(recorded)


def test_every_example_is_on_a_page_of_tasks() -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "site" / "tasks").glob("*.md"))
    shown = re.findall(r"\{literalinclude\} \.\./\.\./\.\./examples/(\S+)", pages)
    folder = ROOT / "examples"
    files = [*folder.glob("*.py"), *folder.glob("cpp/*.c"), *folder.glob("cpp/*.cpp")]
    missing = {path.relative_to(folder).as_posix() for path in files} - set(shown)
    assert missing == set()
