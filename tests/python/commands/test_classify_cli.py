"""``python -m mha_native classify``: labels and entities of texts typed, or of the lines of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_classifiers
from command_line import assert_refused, run

from mha_native.models import TextClassifier, TokenClassifier
from mha_native.models.text import batching as _batching

TEXTS = ["the dog", "", "cat a b c", "x unknown", "\u00fc \u2028 x"]


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tiny_classifiers.write(tmp_path / "model"))


@pytest.fixture
def entities(tmp_path: Path) -> str:
    return str(tiny_classifiers.write(tmp_path / "entities", tokens=True))


def _lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.split("\n") if line]


def _rounded(value: Any) -> Any:
    """The same with scores of seven digits."""
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    if isinstance(value, dict):
        return {name: round(entry, 7) if name == "score" else _rounded(entry) for name, entry in value.items()}
    return value


def _assert_alike(actual: Any, expected: Any) -> None:
    assert _rounded(actual) == _rounded(expected)


def test_labels_of_texts(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = TextClassifier.from_pretrained(directory)
    code, out, err = run(capsys, "classify", "--model", directory, *TEXTS)
    assert (code, err) == (0, "")
    _assert_alike(_lines(out), [{"text": text} | best for text, best in zip(TEXTS, model(TEXTS), strict=True)])
    code, out, err = run(capsys, "classify", "--model", directory, "--top-k", "2", *TEXTS)
    expected = [{"text": text, "labels": best} for text, best in zip(TEXTS, model(TEXTS, top_k=2), strict=True)]
    _assert_alike(_lines(out), expected)


def test_lines_of_a_file(
    directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_batching, "MOST_TOKENS", 10)
    path, output = tmp_path / "lines.txt", tmp_path / "out.jsonl"
    path.write_text("\n".join(TEXTS), encoding="utf-8")
    arguments = ["classify", "--model", directory, "--file", str(path), "--output", str(output)]
    assert run(capsys, *arguments) == (0, f"5 texts: {output}\n", "")
    expected = TextClassifier.from_pretrained(directory)(TEXTS)
    lines = _lines(output.read_text(encoding="utf-8"))
    _assert_alike(lines, [{"text": text} | best for text, best in zip(TEXTS, expected, strict=True)])


def test_pairs_in_a_file(directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pairs.jsonl"
    given = [{"id": 3, "text": "the dog", "text_pair": "cat"}, {"text": "dog"}]
    path.write_text("".join(f"{json.dumps(value)}\n" for value in given))
    code, out, err = run(capsys, "classify", "--model", directory, "--file", str(path))
    assert (code, err) == (0, "")
    expected = TextClassifier.from_pretrained(directory)([("the dog", "cat"), "dog"])
    _assert_alike(_lines(out), [value | best for value, best in zip(given, expected, strict=True)])


def test_entities(entities: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = TokenClassifier.from_pretrained(entities)
    for strategy in (None, "simple", "first", "none"):
        arguments = [] if strategy is None else ["--aggregation", strategy]
        code, out, err = run(capsys, "classify", "--model", entities, *arguments, *TEXTS)
        assert (code, err) == (0, "")
        found = model(TEXTS, aggregation_strategy=strategy or "simple")
        _assert_alike(_lines(out), [{"text": text, "entities": some} for text, some in zip(TEXTS, found, strict=True)])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("dog", "line 2: no valid JSON"),
        ('{"text": "a", "id": NaN}', "line 2: no valid JSON: NaN is no finite number"),
        ('{"text": "a", "id": -1e999}', "line 2: no valid JSON: -1e999 is no finite number"),
        ('{"text": "a\\ud800"}', r"line 2: text must consist of characters; got half of a surrogate pair, '\ud800'"),
        ("[]", "line 2: it must be a JSON object; got list"),
        ("{}", "line 2: text must be a text; got nothing"),
        ('{"text": 3}', "line 2: text must be a text; got int"),
        ('{"text": "a", "text_pair": null}', "line 2: text_pair must be a text; got NoneType"),
        ('{"text": "\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_a_line_that_is_no_text(
    line: str, words: str, directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = tmp_path / "lines.jsonl", tmp_path / "out.jsonl"
    path.write_text(f'{{"text": "a"}}\n{line}\n', encoding="utf-8")
    output.write_text("as it was")
    arguments = ["classify", "--model", directory, "--file", str(path), "--output", str(output)]
    assert_refused(*run(capsys, *arguments), words)
    assert output.read_text() == "as it was"


def test_what_does_not_go_together(
    directory: str, entities: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(*run(capsys, "classify", "--model", directory, "a", "--aggregation", "max"), "--aggregation is for")
    assert_refused(*run(capsys, "classify", "--model", entities, "a", "--top-k", "2"), "--top-k is for")
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"text": "a", "text_pair": "b"}\n')
    assert_refused(*run(capsys, "classify", "--model", entities, "--file", str(path)), "text_pair must be absent")
    assert_refused(*run(capsys, "classify", "--model", directory, "a", "--output", "out.txt"), "must end in .jsonl")
    nowhere = str(tmp_path / "nowhere")
    assert_refused(*run(capsys, "classify", "--model", nowhere, "a"), nowhere)


@pytest.mark.parametrize(
    "arguments",
    [[], ["dog"], ["--model", "x"], ["--model", "x", "dog", "--file", "y"], ["--model", "x", "a", "--top-k=-1"]],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        run(capsys, "classify", *arguments)
    assert error.value.code == 2
    assert "usage: python -m mha_native classify" in capsys.readouterr().err
