"""A folder of a language model: what is read of its files, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tiny_bert
import tiny_generators

from mha_native.models.files.folder import FolderSource

CONFIG = tiny_generators.config("gpt2")
SETTINGS = {"add_bos_token": False, "tokenizer_class": "PreTrainedTokenizerFast"}


def _write(directory: Path, **files: Any) -> Path:
    return tiny_generators.write(directory, CONFIG, files={name.replace("__", "."): x for name, x in files.items()})


def test_what_a_folder_has(tmp_path: Path) -> None:
    plain = FolderSource(_write(tmp_path / "plain", tokenizer_config__json=None))
    assert (plain.path, plain.config) == (tmp_path / "plain" / "config.json", CONFIG)
    assert (plain.generation, plain.tokenizer_config, plain.chat_template) == ({}, {}, None)
    files = {"generation_config__json": {"eos_token_id": [1, 2]}, "tokenizer_config__json": SETTINGS}
    whole = FolderSource(_write(tmp_path / "whole", **files))
    assert (whole.generation, whole.tokenizer_config) == ({"eos_token_id": [1, 2]}, SETTINGS)
    assert whole.tokenizer().encode("the dog").ids == tiny_bert.ids("the dog")


def test_the_tokenizer_neither_pads_nor_cuts(tmp_path: Path) -> None:
    library = tiny_bert.tokenizer()
    library.enable_padding(length=50)
    library.enable_truncation(3)
    files = {"tokenizer__json": json.loads(library.to_str()), "tokenizer_config__json": {"truncation_side": "left"}}
    assert len(FolderSource(_write(tmp_path, **files)).tokenizer().encode("a b c d").ids) == 6


NAMED = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config__json": {"chat_template": "one"}}, "one"),
        ({"tokenizer_config__json": {"chat_template": None}}, None),
        ({"tokenizer_config__json": {"chat_template": NAMED}}, "plain"),
        ({"tokenizer_config__json": {"chat_template": NAMED[:1]}}, None),
        ({"chat_template__jinja": "{{ messages }} ä\n"}, "{{ messages }} ä\n"),
        ({"chat_template__jinja": "file", "tokenizer_config__json": {"chat_template": "one"}}, "file"),
    ],
    ids=str,
)
def test_the_chat_template(files: dict[str, Any], expected: str | None, tmp_path: Path) -> None:
    assert FolderSource(_write(tmp_path, **files)).chat_template == expected


def _read_all(directory: Path) -> None:
    source = FolderSource(directory)
    for read in (lambda: source.generation, lambda: source.chat_template, source.tokenizer):
        read()


def _assert_refused(directory: Path, *words: str, error: type[Exception] = ValueError) -> None:
    with pytest.raises(error, match=re.escape(words[0])) as caught:
        _read_all(directory)
    assert len(str(caught.value).splitlines()) == 1
    for word in words:
        assert word in str(caught.value)


def test_files_that_are_missing(tmp_path: Path) -> None:
    _assert_refused(tmp_path / "nothing", "config.json does not exist", error=FileNotFoundError)
    (_write(tmp_path) / "tokenizer.json").unlink()
    _assert_refused(tmp_path, "tokenizer.json does not exist", error=FileNotFoundError)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"config__json": "{"}, "config.json is not valid JSON"),
        ({"config__json": "[]"}, "config.json must hold an object; got list"),
        ({"generation_config__json": "7"}, "generation_config.json must hold an object"),
        ({"tokenizer_config__json": "x"}, "tokenizer_config.json is not valid JSON"),
        (
            {"tokenizer_config__json": {"chat_template": 7}},
            "json: chat_template must be a string; got 7",
        ),
        ({"tokenizer_config__json": {"chat_template": [{"name": "default"}, 3]}}, None),
        ({"tokenizer_config__json": {"bos_token": "<not there>"}}, "bos_token must be a special token"),
        ({"tokenizer__json": "{}"}, "tokenizer.json is not a valid tokenizer"),
        ({"adapter_config__json": "{}"}, "merge the adapter into the model"),
        ({"chat_template__jinja": "x" * ((1 << 24) + 1)}, "chat_template.jinja must have at most 16 MiB"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_files_that_are_refused(files: dict[str, Any], words: str | None, tmp_path: Path) -> None:
    directory = _write(tmp_path, **files)
    if words is None:
        assert FolderSource(directory).chat_template is None
    else:
        _assert_refused(directory, words)


def test_a_template_that_is_no_text(tmp_path: Path) -> None:
    (_write(tmp_path) / "chat_template.jinja").write_bytes(b"\xff")
    _assert_refused(tmp_path, "chat_template.jinja must be text in UTF-8")
