"""``python -m mha_native rerank``: documents typed, in a file, or of each query in a file; errors with their line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_classifiers
import tiny_multi_vector
from command_line import assert_refused, run

from mha_native.commands import rerank
from mha_native.models import MultiVectorEncoder
from mha_native.sentence_transformers import CrossEncoder

QUERY = "the dog"
DOCUMENTS = ["cat", "", "dog", "the dog !", "a b c", "cat", "x unknown", "\u00fc \u2028 x"]


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tiny_classifiers.write(tmp_path / "model", labels=1))


def _expected(directory: str, top_k: int | None = None) -> list[dict[str, Any]]:
    return CrossEncoder(directory).rank(QUERY, DOCUMENTS, top_k, return_documents=True)


def _assert_ranking(actual: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [(entry["corpus_id"], entry["text"]) for entry in actual] == [
        (entry["corpus_id"], entry["text"]) for entry in expected
    ]
    for entry, other in zip(actual, expected, strict=True):
        assert abs(entry["score"] - other["score"]) < 1e-8  # nine digits


def _lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.split("\n") if line]


def test_documents_that_are_typed(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "rerank", "--model", directory, "--query", QUERY, *DOCUMENTS)
    assert (code, err) == (0, "")
    _assert_ranking(_lines(out), _expected(directory))
    code, out, err = run(capsys, "rerank", "--model", directory, "--query", QUERY, "--top-k", "2", *DOCUMENTS)
    _assert_ranking(_lines(out), _expected(directory, 2))


def test_a_query_that_is_not_utf8(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "rerank", "--model", directory, "--query", "a\udcff", *DOCUMENTS)
    assert code == 0
    assert err.startswith("mha_native: text 1: not UTF-8 at byte 2 (0xff); U+FFFD")
    assert len(_lines(out)) == len(DOCUMENTS)


def test_documents_in_a_file(
    directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rerank, "_PAIRS", 3)
    path, output = tmp_path / "lines.txt", tmp_path / "out.jsonl"
    path.write_text("\n".join(DOCUMENTS), encoding="utf-8")
    arguments = ["rerank", "--model", directory, "--query", QUERY, "--file", str(path), "--output", str(output)]
    assert run(capsys, *arguments) == (0, f"8 documents: {output}\n", "")
    _assert_ranking(_lines(output.read_text(encoding="utf-8")), _expected(directory))


def test_queries_in_a_file(directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "queries.jsonl"
    queries = [{"id": 7, "query": QUERY, "documents": DOCUMENTS}, {"query": "cat", "documents": []}]
    path.write_text("".join(f"{json.dumps(query)}\n" for query in queries), encoding="utf-8")
    code, out, err = run(capsys, "rerank", "--model", directory, "--file", str(path), "--top-k", "3")
    assert (code, err) == (0, "")
    first, second = _lines(out)
    assert (first["id"], first["query"], "documents" in first) == (7, QUERY, False)
    _assert_ranking(first["ranking"], _expected(directory, 3))
    assert second == {"query": "cat", "ranking": []}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "line 2: no valid JSON"),
        ("{", "line 2: no valid JSON"),
        ("[" * 100_000, "line 2: no valid JSON"),
        ("3", "line 2: it must be a JSON object; got int"),
        ('{"query": "\\udfff", "documents": []}', "line 2: query must consist of characters; got half"),
        ('{"query": "a", "documents": ["b", "\\udfff"]}', "line 2: documents must consist of characters; got half"),
        ("{}", "line 2: query must be a text; got nothing"),
        ('{"query": 3}', "line 2: query must be a text; got int"),
        ('{"query": "a"}', "line 2: documents must be a list of texts"),
        ('{"query": "a", "documents": "b"}', "line 2: documents must be a list of texts"),
        ('{"query": "a", "documents": ["b", 3]}', "line 2: documents must be a list of texts"),
        ('{"query": "a", "documents": ["\\ud800"]}', "half of a surrogate pair"),
    ],
    ids=range(12),
)
def test_a_line_that_is_no_query(
    line: str, words: str, directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = tmp_path / "queries.jsonl", tmp_path / "out.jsonl"
    path.write_text(f'{{"query": "a", "documents": ["b"]}}\n{line}\n', encoding="utf-8")
    output.write_text("as it was")
    arguments = ["rerank", "--model", directory, "--file", str(path), "--output", str(output)]
    assert_refused(*run(capsys, *arguments), words)
    assert output.read_text() == "as it was"


def test_what_cannot_be(directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text("dog\n")
    query = ["rerank", "--model", directory, "--query", "a"]
    assert_refused(*run(capsys, *query, "b", "--output", str(tmp_path / "out.npy")), "must end in .jsonl")
    assert_refused(*run(capsys, *query, "--file", str(path), "--output", str(path)), "another file")
    assert_refused(*run(capsys, *query, "--file", str(tmp_path / "no")), "cannot read")
    several = str(tiny_classifiers.write(tmp_path / "several", labels=3))
    assert_refused(*run(capsys, "rerank", "--model", several, "--query", "a", "b"), "a single label; it has 3")
    nowhere = str(tmp_path / "nowhere")
    assert_refused(*run(capsys, "rerank", "--model", nowhere, "--query", "a", "b"), nowhere)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--model", "x", "dog"],
        ["--model", "x", "--query", "a"],
        ["--model", "x", "--query", "a", "dog", "--file", "y"],
        ["--model", "x", "--query", "a", "dog", "--top-k", "0"],
        ["--model", "x", "--query", "a", "dog", "--top-k", "many"],
    ],
    ids=" ".join,
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        run(capsys, "rerank", *arguments)
    assert error.value.code == 2
    assert "usage: python -m mha_native rerank" in capsys.readouterr().err


def test_a_multi_vector_encoder_ranks_by_late_interaction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rerank, "_PAIRS", 3)
    folder = str(tiny_multi_vector.write_pylate(tmp_path / "model"))
    expected = MultiVectorEncoder.from_pretrained(folder).rank(QUERY, DOCUMENTS, return_documents=True)
    for entry in expected:
        entry["score"] = float(f"{entry['score']:.9g}")
    code, out, err = run(capsys, "rerank", "--model", folder, "--query", QUERY, *DOCUMENTS)
    assert (code, err) == (0, "")
    _assert_ranking(_lines(out), expected)
    lines = tmp_path / "queries.jsonl"
    lines.write_text(json.dumps({"query": QUERY, "documents": DOCUMENTS}))
    code, out, err = run(capsys, "rerank", "--model", folder, "--file", str(lines))
    _assert_ranking(_lines(out)[0]["ranking"], expected)
