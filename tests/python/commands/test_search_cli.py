"""``python -m mha_native search``: the best lines of a file, as JSON lines and on a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")

import tiny_bert
import tiny_sparse
from command_line import assert_refused, run
from terminal import Terminal

from mha_native.commands import search
from mha_native.models import SentenceEncoder, SparseEncoder

NOTES = Path(__file__).resolve().parents[3] / "examples" / "town_notes.txt"
QUERY = "old couch"


def test_the_best_lines_of_a_file(
    model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_LINES", 7)  # in several parts
    notes = NOTES.read_text(encoding="utf-8").splitlines()
    rows = SentenceEncoder.from_pretrained(model_directory).encode([QUERY, *notes])
    scores = rows[1:] @ rows[0]
    expected = np.argsort(-scores)[:5].tolist()
    assert "sofas" in notes[expected[0]]
    command = ["search", "--model", str(model_directory), "--file", str(NOTES), QUERY]
    code, out, err = run(capsys, *command)
    found = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [(entry["corpus_id"], entry["text"]) for entry in found] == [(i, notes[i]) for i in expected]
    np.testing.assert_allclose([entry["score"] for entry in found], scores[expected], rtol=1e-5)
    output = tmp_path / "out.jsonl"
    code, printed, err = run(capsys, *command, "--top-k", "2", "--output", str(output))
    assert (code, printed, err) == (0, f"2 of 30 lines: {output}\n", "")
    assert output.read_text(encoding="utf-8").splitlines() == out.splitlines()[:2]


def test_search_by_sparse_embeddings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An inference-free model: the query is looked up, and lines are computed."""
    directory, file = tiny_sparse.write_files(tmp_path / "model"), tmp_path / "lines.txt"
    lines = ["the dog", "the cat !", "dog dog", "a b c"]
    file.write_text("\n".join(lines), encoding="utf-8")
    model = SparseEncoder.from_pretrained(directory)
    scores = model.encode_query("dog !").dot(model.encode_document(lines))[0]
    code, out, err = run(capsys, "search", "--sparse", "--model", str(directory), "--file", str(file), "dog !")
    found = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [entry["corpus_id"] for entry in found] == np.argsort(-scores, kind="stable").tolist()
    np.testing.assert_allclose(sorted(-entry["score"] for entry in found), sorted(-scores), rtol=1e-6)


def test_lines_of_a_pipe_and_on_a_terminal(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "the dog ", "passage": "a "}}
    directory = str(tiny_bert.write(tmp_path / "model", files={"config_sentence_transformers.json": prompts}))
    lines = ["the dog", "", "\x1b[31mthe   cat !", "dog dog"]
    command = ["search", "--model", directory, "--file", "-", "--top-k", "9", "dog"]
    result = subprocess.run(
        [sys.executable, "-m", "mha_native", *command],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=60,
    )
    found = [json.loads(line) for line in result.stdout.splitlines()]
    model = SentenceEncoder.from_pretrained(directory)
    scores = model.encode(lines, prompt_name="passage") @ model.encode("dog", prompt_name="query")
    assert [entry["corpus_id"] for entry in found] == [i for i in np.argsort(-scores) if lines[i]]
    assert [entry["text"] for entry in found] == [lines[entry["corpus_id"]] for entry in found]
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    with Terminal("search", "--model", directory, "--file", str(path), "dog") as terminal:
        code, shown = terminal.end()
    texts = {0: "the dog", 2: "?[31mthe cat !", 3: "dog dog"}
    rows = [f"{entry['score']:6.3f}  {entry['corpus_id'] + 1:>5}  {texts[entry['corpus_id']]}\n" for entry in found]
    assert (code, shown) == (0, "".join(rows))


def test_what_the_user_can_mend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ["search", "--model", str(tiny_bert.write(tmp_path / "model"))]
    assert_refused(*run(capsys, *model, "--file", "nowhere.txt", "a"), "cannot read nowhere.txt")
    assert_refused(*run(capsys, *model, "--file", "-", "a", "--output", "a.csv"), "--output must end in .jsonl")
    with pytest.raises(SystemExit, match="2"):
        run(capsys, *model, "a")
