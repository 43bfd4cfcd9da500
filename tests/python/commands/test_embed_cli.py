"""``python -m mha_native embed``: rows that stand line by line, whole files or none, and what each token attends to."""

from __future__ import annotations

import io
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
import tiny_sparse
from command_line import assert_refused, run
from terminal import Terminal
from tolerance import assert_same_bits

from mha_native.__main__ import main
from mha_native.commands import input_texts
from mha_native.functions import progress as _progress
from mha_native.models import SentenceEncoder, SparseEncoder
from mha_native.models.text import batching as _batching

Array = np.ndarray[Any, Any]
LINES = ["the dog", "", "a b c d e f g", "the cat !", "", "dog"]


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tiny_bert.write(tmp_path / "model"))


@pytest.fixture
def expected(directory: str) -> Array:
    return SentenceEncoder.from_pretrained(directory).encode(LINES)


def _read_json_lines(text: str) -> tuple[list[str], Array]:
    entries = [json.loads(line) for line in text.splitlines()]
    return [entry["text"] for entry in entries], np.array([entry["embedding"] for entry in entries], np.float32)


def test_texts_to_json_lines(directory: str, expected: Array, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "embed", "--model", directory, *LINES)
    assert (code, err) == (0, "")
    texts, embeddings = _read_json_lines(out)
    assert texts == LINES
    assert_same_bits(embeddings, expected)


def test_sparse_embeddings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home, output = str(tiny_sparse.write_files(tmp_path / "model")), tmp_path / "out.jsonl"
    model = SparseEncoder.from_pretrained(home)
    command = ["embed", "--model", home, "--sparse", "--task", "query", "--max-active-dims", "2"]
    code, out, err = run(capsys, *command, "the dog cat", "a")
    found = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    expected = model.encode(["the dog cat", "a"], task="query", max_active_dims=2)
    for i, entry in enumerate(found):
        indices, values = expected.row(i)
        assert entry["indices"] == indices.tolist()
        assert np.array_equal(np.array(entry["values"], np.float32), values)
        assert entry["tokens"] == [tiny_bert.WORDS[index] for index in entry["indices"]]
    code, out, err = run(capsys, "embed", "--model", home, "--sparse", "the dog", "--output", str(output))
    assert (code, out, err) == (0, f"1 sparse embeddings of {model.embed_dim} features: {output}\n", "")
    with Terminal("embed", "--model", home, "--sparse", "the dog") as terminal:
        status, shown = terminal.end()
    (token, number), *_ = model.decode(model.encode("the dog"))[0]
    assert status == 0
    assert shown.splitlines()[1].startswith(f"  {token} {number:.2f}, ")
    assert run(capsys, "embed", "--model", home, "--sparse", "a", "--output", "x.npy")[0] == 2
    with pytest.raises(SystemExit, match="2"):
        main(["embed", "--model", home, "--task", "query", "a"])
    assert "--task and --max-active-dims need --sparse" in capsys.readouterr().err


def test_a_text_stays_as_it_was_typed(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["\ufeffdog\r\n", "dog\n", 'a "quoted" \\ \u2028 😀']
    code, out, err = run(capsys, "embed", "--model", directory, *typed)
    assert (code, err) == (0, "")
    assert _read_json_lines(out)[0] == typed


@pytest.mark.parametrize("ending", ["\n", "\r\n"], ids=["unix", "dos"])
@pytest.mark.parametrize("last", [True, False], ids=["ended", "open"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "bom"])
def test_each_line_is_a_row(
    ending: str,
    last: bool,
    mark: str,
    directory: str,
    expected: Array,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    path, output = tmp_path / "lines.txt", tmp_path / "out.npy"
    path.write_bytes((mark + ending.join(LINES) + ending * last).encode())
    code, out, err = run(capsys, "embed", "--model", directory, "--file", str(path), "--output", str(output))
    assert (code, err) == (0, "")
    assert out == f"6 embeddings of 24 features: {output}\n"
    assert_same_bits(np.load(output), expected)
    assert {entry.name for entry in tmp_path.iterdir()} == {"lines.txt", "model", "out.npy"}


def test_an_output_of_json_lines(
    directory: str, expected: Array, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    code, _, err = run(capsys, "embed", "--model", directory, *LINES, "--output", str(output))
    assert (code, err) == (0, "")
    texts, embeddings = _read_json_lines(output.read_text(encoding="utf-8"))
    assert texts == LINES
    assert_same_bits(embeddings, expected)


def test_standard_input(directory: str, expected: Array) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mha_native", "embed", "--model", directory, "--file", "-"],
        input="\n".join(LINES).encode(),
        capture_output=True,
        timeout=60,
    )
    assert (result.returncode, result.stderr) == (0, b"")
    assert_same_bits(_read_json_lines(result.stdout.decode())[1], expected)


@pytest.mark.parametrize("name", ["out.npy", "out.jsonl"])
def test_an_empty_file(name: str, directory: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, output = tmp_path / "empty.txt", tmp_path / name
    path.write_bytes(b"")
    code, out, err = run(capsys, "embed", "--model", directory, "--file", str(path), "--output", str(output))
    assert (code, err) == (0, "")
    assert out.startswith("0 embeddings")
    if name == "out.npy":
        assert np.load(output).shape == (0, 24)
    else:
        assert output.read_bytes() == b""


def test_lines_that_are_not_utf8(directory: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, output = tmp_path / "lines.txt", tmp_path / "out.npy"
    path.write_bytes(b"the dog\n\xff\xfe the cat\n\nthe \xe2\x82\ndog\n")
    code, out, err = run(capsys, "embed", "--model", directory, "--file", str(path), "--output", str(output))
    assert code == 0
    assert "5 embeddings" in out
    assert err.splitlines() == [
        f"mha_native: {path}, line 2: not UTF-8 at byte 1 (0xff); U+FFFD stands in for what cannot be read",
        f"mha_native: {path}, line 4: not UTF-8 at byte 5 (0xe2); U+FFFD stands in for what cannot be read",
    ]
    texts = ["the dog", "\ufffd\ufffd the cat", "", "the \ufffd", "dog"]
    assert_same_bits(np.load(output), SentenceEncoder.from_pretrained(directory).encode(texts))


def test_many_lines_that_are_not_utf8(directory: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\n" * 1500)
    code, out, err = run(capsys, "embed", "--model", directory, "--file", str(path))
    assert code == 0
    assert out.count("\n") == 1500
    assert err.count("\n") == input_texts.MAX_COMPLAINTS + 1
    assert err.endswith("mha_native: 1,490 more are not UTF-8\n")


def test_a_binary_file_is_refused(directory: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    for content in (b"GGUF\3\0\0\0\nthe dog\n", "the dog\nthe cat\n".encode("utf-16")):
        path.write_bytes(content)
        code, out, err = run(capsys, "embed", "--model", directory, "--file", str(path))
        assert (code, out) == (2, "")
        assert err == f"mha_native: {path}, line 1: the file must be text in UTF-8; it has a NUL byte\n"


def test_an_argument_that_is_not_utf8(directory: str) -> None:
    result = subprocess.run(
        [sys.executable.encode(), b"-m", b"mha_native", b"embed", b"--model", os.fsencode(directory), b"dog", b"\xff"],
        capture_output=True,
        timeout=60,
    )
    assert result.returncode == 0
    assert result.stderr.count(b"\n") == 1
    assert b"text 2: not UTF-8 at byte 1 (0xff); U+FFFD" in result.stderr
    assert result.stdout.count(b"\n") == 2
    assert json.loads(result.stdout.splitlines()[1])["text"] == "\ufffd"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for the memory of a process")
def test_a_long_file_in_little_memory(directory: str, tmp_path: Path) -> None:
    program = (
        "import re, sys\n"
        "from mha_native.__main__ import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "print(re.search(r'VmHWM:\\s*(\\d+) kB', open('/proc/self/status').read())[1])\n"
    )
    path, output, peaks = tmp_path / "lines.txt", tmp_path / "out.npy", []
    for count in (5_000, 40_000):
        path.write_bytes((b"z" * 999 + b"\n") * count)  # 40 MB in all
        arguments = ["embed", "--model", directory, "--file", str(path), "--output", str(output)]
        result = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=300, check=True
        )
        assert np.load(output, mmap_mode="r").shape == (count, 24)
        peaks.append(int(result.stdout.splitlines()[-1]) * 1024)
    assert peaks[1] - peaks[0] < 12 << 20


class _Broken(Exception):
    pass


@pytest.mark.parametrize("error", [_Broken(), KeyboardInterrupt(), OSError(28, "No space left on device")], ids=repr)
@pytest.mark.parametrize("name", ["out.npy", "out.jsonl"])
def test_an_output_is_whole_or_as_it_was(
    name: str,
    error: BaseException,
    directory: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = tmp_path / "results" / name
    output.parent.mkdir()
    output.write_bytes(b"as it was")

    def fails_late(model: SentenceEncoder, texts: Iterable[str]) -> Iterator[Array]:
        next(iter(texts))
        yield np.ones((1, 24), np.float32)
        raise error

    monkeypatch.setattr(SentenceEncoder, "encode_batches", fails_late)
    arguments = ["embed", "--model", directory, "a", "b", "--output", str(output)]
    if isinstance(error, _Broken):
        with pytest.raises(_Broken):
            run(capsys, *arguments)
    elif isinstance(error, OSError):
        assert_refused(*run(capsys, *arguments), str(output), "No space left")
    else:
        assert run(capsys, *arguments) == (130, "", "mha_native: interrupted\n")
    assert output.read_bytes() == b"as it was"
    assert list(output.parent.iterdir()) == [output]


def test_an_output_through_a_link(
    directory: str, expected: Array, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target, link = tmp_path / "target.npy", tmp_path / "link.npy"
    target.write_bytes(b"old")
    link.symlink_to(target)
    assert run(capsys, "embed", "--model", directory, *LINES, "--output", str(link))[0] == 0
    assert link.is_symlink()
    assert_same_bits(np.load(target), expected)


def test_the_permissions_of_an_output(directory: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output, plain = tmp_path / "out.npy", tmp_path / "plain"
    plain.touch()
    assert run(capsys, "embed", "--model", directory, "dog", "--output", str(output))[0] == 0
    assert output.stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize(
    ("name", "words"), [("out.txt", ".npy or .jsonl"), ("no/such/out.npy", "No such file"), ("folder.npy", "directory")]
)
def test_an_output_that_cannot_be(
    name: str, words: str, directory: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "folder.npy").mkdir()
    output = str(tmp_path / name)
    assert_refused(*run(capsys, "embed", "--model", directory, "dog", "--output", output), output, words)


def test_a_file_that_cannot_be_read(directory: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.txt")
    assert_refused(*run(capsys, "embed", "--model", directory, "--file", missing), missing, "No such file")
    assert_refused(*run(capsys, "embed", "--model", directory, "--file", directory), directory, "directory")


def test_a_model_that_cannot_be_read(
    directory: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = str(tmp_path / "nowhere")
    assert_refused(*run(capsys, "embed", "--model", nowhere, "dog"), nowhere, "config.json", "does not exist")
    assert_refused(*run(capsys, "embed", "--model", nowhere, "--explain", "dog"), nowhere)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert_refused(*run(capsys, "embed", "--model", directory, "dog"), "tokenizers", "pip install")
    (Path(directory) / "model.safetensors").write_bytes(b"nothing")
    monkeypatch.undo()
    assert_refused(*run(capsys, "embed", "--model", directory, "dog"), "model.safetensors", "safetensors file")


def test_an_impossible_instruction_set(directory: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mha_native", "embed", "--model", directory, "dog"],
        env=os.environ | {"MHA_NATIVE_ISA": "mmx"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert_refused(result.returncode, result.stdout, result.stderr, "MHA_NATIVE_ISA", "mmx")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["dog"],
        ["--model", "x"],
        ["--model", "x", "dog", "--file", "y"],
        ["--model", "x", "dog", "--explain", "y"],
        ["--model", "x", "--file", "y", "--explain", "z"],
        ["--model", "x", "dog", "--plot", "y.png"],
        ["--model", "x", "--explain", "dog", "--output", "y.npy"],
    ],
    ids=" ".join,
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        run(capsys, "embed", *arguments)
    assert error.value.code == 2
    assert "usage: python -m mha_native embed" in capsys.readouterr().err


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("known", [True, False], ids=["file", "pipe"])
def test_a_progress_bar_on_a_terminal(
    known: bool, directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_batching, "MOST_TOKENS", 40)
    monkeypatch.setattr(_batching, "MOST_TEXTS", 10)
    monkeypatch.setattr(_progress, "PATIENCE", 0)
    monkeypatch.setattr(_progress, "PAUSE", 0)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    if not known:
        monkeypatch.setattr(input_texts, "_size_of", lambda file: None)
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    path = tmp_path / "lines.txt"
    path.write_bytes(b"the dog\n" * 50 + b"\xff\n" + b"dog\n" * 50)
    assert (
        run(capsys, "embed", "--model", directory, "--file", str(path), "--output", str(tmp_path / "out.npy"))[0] == 0
    )
    pictures = terminal.getvalue().split(_progress.CLEAR_LINE)
    assert pictures[-1] == ""  # the line is free at the end
    assert any("line 51: not UTF-8" in picture and picture.endswith("\n") for picture in pictures)
    bars = [picture for picture in pictures if "texts" in picture]
    assert len(bars) > 4
    counts = [int(bar.split(" texts")[0].split()[-1]) for bar in bars]
    assert counts == sorted(counts)
    assert counts[-1] == 101
    shares = [int(bar[: bar.index("%")].split()[-1]) for bar in bars if "%" in bar]
    assert shares == sorted(shares)
    assert len(shares) == (len(bars) if known else 0)
    if known:
        assert shares[-1] == 100
        assert shares[0] < 50


def test_a_progress_bar_of_tqdm_where_it_is_installed(
    directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tqdm")
    monkeypatch.setattr(_batching, "MOST_TOKENS", 40)
    monkeypatch.setattr(_batching, "MOST_TEXTS", 10)
    monkeypatch.setattr(_progress, "PATIENCE", 0)
    monkeypatch.setattr(_progress, "PAUSE", 0)
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    path = tmp_path / "lines.txt"
    path.write_bytes(b"the dog\n" * 100)
    assert (
        run(capsys, "embed", "--model", directory, "--file", str(path), "--output", str(tmp_path / "out.npy"))[0] == 0
    )
    pictures = [picture for picture in terminal.getvalue().split("\r") if "texts/s" in picture]
    assert len(pictures) > 4
    assert "100%" in pictures[-1]
    assert "100/100" in pictures[-1]
    assert terminal.getvalue().endswith("\r")  # the line is free at the end
    assert terminal.getvalue().split("\r")[-2].strip() == ""


def test_no_progress_bar_elsewhere(
    directory: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_progress, "PATIENCE", 0)
    monkeypatch.setattr(_progress, "PAUSE", 0)
    monkeypatch.setattr(_batching, "MOST_TOKENS", 10)
    assert run(capsys, "embed", "--model", directory, *LINES)[::2] == (0, "")


def test_no_progress_bar_among_what_is_printed(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_progress, "PATIENCE", 0)
    monkeypatch.setattr(_progress, "PAUSE", 0)
    monkeypatch.setattr(_batching, "MOST_TOKENS", 10)
    screen = _Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    assert main(["embed", "--model", directory, *LINES]) == 0
    shown = screen.getvalue().splitlines()
    embeddings = SentenceEncoder.from_pretrained(directory).encode(LINES)
    assert [line.split() for line in shown[::2]] == [line.split() for line in LINES]
    for line, row in zip(shown[1::2], embeddings, strict=True):  # eight numbers and the norm, whatever the width
        numbers = " ".join(f"{number:7.4f}" for number in row[:8])
        assert line == f"  {numbers} ... {len(row)} features, norm {np.linalg.norm(row):.4f}"


def test_a_terminal_shows_the_beginning_of_an_embedding(model_directory: Path) -> None:
    with Terminal("embed", "--model", str(model_directory), "A dog\nwas hungry.", "é" * 100) as terminal:
        code, shown = terminal.end()
    lines = shown.splitlines()
    assert (code, lines[0], lines[2]) == (0, "A dog was hungry.", "é" * 78 + "..")
    row = SentenceEncoder.from_pretrained(model_directory).encode("A dog\nwas hungry.")
    assert [float(number) for number in lines[1].split()[:8]] == [round(float(number), 4) for number in row[:8]]
    assert lines[1].endswith(" ... 384 features, norm 1.0000")


def test_what_each_token_attends_to(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "embed", "--model", directory, "--explain", "the dog !")
    assert (code, err) == (0, "")
    assert out.startswith("5 tokens, 2 layers of 3 heads\n")
    model = SentenceEncoder.from_pretrained(directory)
    tokens, weights = model.attention_weights("the dog !")
    tables = out.split("\nLayer ")[1:]
    assert len(tables) == 2
    for table, of_layer in zip(tables, weights, strict=True):
        lines = table.splitlines()
        rows = {line.split()[0]: line.split()[1:] for line in lines[3:] if line}
        assert list(rows) == tokens
        for token, cells, row in zip(tokens, rows.values(), itertools.count()):
            for head in range(3):
                best = of_layer[head, row].argmax()
                assert cells[2 * head] == tokens[best], token
                assert abs(float(cells[2 * head + 1][:-1]) - 100 * of_layer[head, row, best]) < 0.51


def test_the_weights_are_drawn(directory: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "heads.png"
    code, out, err = run(capsys, "embed", "--model", directory, "--explain", "the dog", "--plot", str(path))
    assert (code, err) == (0, "")
    assert f"Plot of all tokens: {path}" in out
    assert path.read_bytes().startswith(b"\x89PNG")
    nowhere = str(tmp_path / "no" / "heads.png")
    assert_refused(*run(capsys, "embed", "--model", directory, "--explain", "dog", "--plot", nowhere), nowhere)
