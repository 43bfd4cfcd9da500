"""``python -m mha_native embed``: models and texts that cannot be embedded are one sentence, not a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tiny_bert
from command_line import assert_refused, run

SOURCES = [["dog"], ["--explain", "dog"]]


def _tokenizer(*path: str, value: Any) -> dict[str, Any]:
    """tokenizer.json of the tiny model with another value somewhere."""
    tokenizer: dict[str, Any] = json.loads(tiny_bert.tokenizer().to_str())
    entry = tokenizer
    for key in path[:-1]:
        entry = entry[key]
    entry[path[-1]] = value
    return tokenizer


@pytest.mark.parametrize("text", ["", " "])
def test_a_text_without_tokens_explains_nothing(text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = {"tokenizer.json": _tokenizer("post_processor", value=None)}  # which adds [CLS] and [SEP]
    directory = str(tiny_bert.write(tmp_path, files=files))
    assert_refused(*run(capsys, "embed", "--model", directory, "--explain", text), "the text has no tokens")
    assert run(capsys, "embed", "--model", directory, text)[0] == 0


@pytest.mark.parametrize("source", SOURCES)
def test_a_token_beyond_the_table(source: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = {"tokenizer.json": _tokenizer("model", "vocab", "dog", value=1000)}
    directory, output = str(tiny_bert.write(tmp_path / "model", files=files)), tmp_path / "out.npy"
    assert_refused(*run(capsys, "embed", "--model", directory, *source), "token 1 is 1000", "[37, 24]")
    if source == ["dog"]:
        assert_refused(*run(capsys, "embed", "--model", directory, *source, "--output", str(output)), "token 1 is 1000")
        assert not output.exists()


@pytest.mark.parametrize("source", SOURCES)
def test_a_tokenizer_that_fails(source: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = {"tokenizer.json": _tokenizer("model", "vocab", value={"the": 0})}  # without the token for unknown words
    directory = str(tiny_bert.write(tmp_path, files=files))
    assert_refused(*run(capsys, "embed", "--model", directory, *source), "the tokenizer failed")


@pytest.mark.parametrize("source", SOURCES)
def test_a_size_beyond_all_bounds(source: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = tiny_bert.config(max_position_embeddings=10**30)
    directory = tiny_bert.write(tmp_path, files={"config.json": settings})
    result = run(capsys, "embed", "--model", str(directory), *source)
    assert_refused(*result, str(directory / "config.json"), "max_position_embeddings")


# Root may read everything. The program is warm when it becomes somebody else, who may not read its modules either.
AS_NOBODY = (
    "import contextlib, os, sys\n"
    "from mha_native.__main__ import main\n"
    "with open(os.devnull, 'w') as null, contextlib.redirect_stdout(null):\n"
    "    assert main(['embed', '--model', sys.argv[1], 'dog']) == 0\n"
    "if os.geteuid() == 0:\n"
    "    os.setegid(65534)\n"
    "    os.seteuid(65534)\n"
    "sys.exit(main(sys.argv[2:]))\n"
)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "model.safetensors", "modules.json", "1_Pooling", "lines.txt", "."]
)
def test_a_file_that_may_not_be_read(name: str) -> None:
    files = {
        "modules.json": tiny_bert.modules("Transformer", "Pooling"),
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
    }
    with tempfile.TemporaryDirectory() as folder:  # the folders of pytest are for their owner alone
        Path(folder).chmod(0o755)
        directory = tiny_bert.write(Path(folder) / "model", files=files)
        (directory / "lines.txt").write_text("dog\n", encoding="utf-8")
        hidden, readable = directory / name, tiny_bert.write(Path(folder) / "readable")
        arguments = ["embed", "--model", str(directory), "--file", str(directory / "lines.txt")]
        program = [sys.executable, "-c", AS_NOBODY, str(readable), *arguments]
        hidden.chmod(0)
        try:
            result = subprocess.run(program, capture_output=True, text=True, timeout=60)
        finally:
            hidden.chmod(0o755)
    assert_refused(result.returncode, result.stdout, result.stderr, str(hidden), "Permission denied")
