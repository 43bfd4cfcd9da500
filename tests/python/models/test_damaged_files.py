"""Files of a model that changed under way or hold what no model has: an error that names the file, and no crash."""

from __future__ import annotations

import json
import re
import reprlib
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
from model_files import assert_not_loaded, write_safetensors
from tolerance import assert_same_bits

from mha_native.models import SentenceEncoder
from mha_native.models.files import json_files as _model_files

Array = np.ndarray[Any, Any]
WORDS, QUERY, NORM = (
    "embeddings.word_embeddings.weight",
    "encoder.layer.1.attention.self.query.weight",
    "encoder.layer.0.output.LayerNorm.weight",
)


def test_a_file_that_is_cut_short_while_it_is_read(tmp_path: Path) -> None:
    directory = tiny_bert.write(tmp_path)
    program = (
        "import os, sys\n"
        "from mha_native.models import SentenceEncoder\n"
        "from mha_native.models.files.checkpoint import Checkpoint\n"
        "enter = Checkpoint.__enter__\n"
        "def cut(self):\n"
        "    os.truncate(sys.argv[1] + '/model.safetensors', 4096)  # the header has been read\n"
        "    return enter(self)\n"
        "Checkpoint.__enter__ = cut\n"
        "try:\n"
        "    SentenceEncoder.from_pretrained(sys.argv[1])\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(directory)], capture_output=True, text=True, timeout=60, check=True
    )
    assert f"{directory / 'model.safetensors'} has been cut short: " in result.stdout
    assert re.search(r"(embeddings|encoder)\.\S+ has \d+ of its \d+ bytes$", result.stdout)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("name", [WORDS, QUERY, NORM])
def test_weights_that_are_not_finite(name: str, number: float, dtype: str, tmp_path: Path) -> None:
    weights = tiny_bert.tensors(tiny_bert.config())
    index = (3, 5)[: weights[name].ndim]
    weights[name][index] = number
    path = tiny_bert.write(tmp_path) / "model.safetensors"
    write_safetensors(path, weights, {name: dtype})
    assert_not_loaded(tmp_path, str(path), f"{name} must hold finite numbers; got {number} at {list(index)}")


@pytest.mark.parametrize(
    ("name", "other"),
    [
        (WORDS, f"bert.{WORDS}"),
        (NORM, NORM.replace("weight", "gamma")),
        (NORM, "bert." + NORM.replace("weight", "gamma")),
    ],
)
def test_one_tensor_by_two_names(name: str, other: str, tmp_path: Path) -> None:
    weights = tiny_bert.tensors(tiny_bert.config())
    tiny_bert.write(tmp_path / "one", weights=weights)
    expected = SentenceEncoder.from_pretrained(tmp_path / "one").encode(tiny_bert.TEXTS)
    tiny_bert.write(tmp_path / "same", weights=weights | {other: weights[name]})
    assert_same_bits(SentenceEncoder.from_pretrained(tmp_path / "same").encode(tiny_bert.TEXTS), expected)
    changed = weights[name].copy()
    changed.flat[-1] += 1
    for copy, words in [
        (changed, "must hold the same numbers"),
        (changed[:-1], "wrong shape"),
        (changed.astype(np.float64), f"{other} F64"),
    ]:
        directory = tiny_bert.write(tmp_path / "different", weights=weights | {other: copy})
        assert_not_loaded(directory, str(directory / "model.safetensors"), words, other)


def test_a_name_that_the_header_has_twice(tmp_path: Path) -> None:
    path = tiny_bert.write(tmp_path) / "model.safetensors"
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = raw[8 : 8 + length].replace(b'"embeddings.LayerNorm.bias"', b'"embeddings.LayerNorm.weight"')
    path.write_bytes(struct.pack("<Q", len(header)) + header + raw[8 + length :])
    assert_not_loaded(tmp_path, str(path), "'embeddings.LayerNorm.weight' is in it more than once")


SIZES = [name for name, value in tiny_bert.config().items() if type(value) is int]


@pytest.mark.parametrize("size", [2**63, 10**30, 10**4000], ids=["2^63", "10^30", "10^4000"])
@pytest.mark.parametrize("name", SIZES)
def test_a_size_beyond_all_bounds(name: str, size: int, tmp_path: Path) -> None:
    tiny_bert.write(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(tiny_bert.config(**{name: size})), encoding="utf-8")
    assert_not_loaded(tmp_path, str(tmp_path / "config.json"), name, "at most 2^63 - 1")


@pytest.mark.parametrize("size", [2**62, 2**63 - 1])
@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_the_weights_do_not_have(name: str, size: int, tmp_path: Path) -> None:
    tiny_bert.write(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(tiny_bert.config(**{name: size})), encoding="utf-8")
    assert_not_loaded(tmp_path, str(tmp_path))


@pytest.mark.parametrize("length", [2**63, 10**30])
def test_a_max_seq_length_beyond_all_bounds(length: int, tmp_path: Path) -> None:
    tiny_bert.write(tmp_path, files={"sentence_bert_config.json": {"max_seq_length": length}})
    assert_not_loaded(tmp_path, str(tmp_path / "sentence_bert_config.json"), "max_seq_length")


@pytest.mark.parametrize(
    "folder",
    [
        "../1_Pooling",
        "a/../../b",
        "/1_Pooling",
        "1_Pooling\0",
        "a\nb",
        "\ud800",
        "x" * 256,
        "",
        ".",
        None,
        3,
        ["1_Pooling"],
    ],
)
def test_a_module_outside_of_the_directory(folder: Any, tmp_path: Path) -> None:
    modules = tiny_bert.modules("Transformer", "Pooling")
    modules[1]["path"] = folder
    tiny_bert.write(tmp_path / "model", files={"modules.json": modules})
    pooling = tmp_path / "1_Pooling" / "config.json"
    pooling.parent.mkdir()
    pooling.write_text('{"pooling_mode_mean_tokens": true}', encoding="utf-8")
    assert_not_loaded(tmp_path / "model", str(tmp_path / "model" / "modules.json"), "below it", reprlib.repr(folder))


def test_a_module_that_is_missing(tmp_path: Path) -> None:
    tiny_bert.write(tmp_path, files={"modules.json": tiny_bert.modules("Transformer", "Pooling", pooling="pool")})
    path = str(tmp_path / "pool" / "config.json")
    assert_not_loaded(tmp_path, path, "does not exist", error=FileNotFoundError)
    (tmp_path / "pool").mkdir()
    assert_not_loaded(tmp_path, path, "does not exist", error=FileNotFoundError)


@pytest.mark.parametrize(
    "values", [["x" * 10_000], ["x\ny"], ["x"] * 10_000, [{}] * 10_000], ids=["long", "two lines", "many", "objects"]
)
def test_messages_show_little_of_a_file(values: list[Any], tmp_path: Path) -> None:
    kinds = {"modules.json": [{"type": value} for value in values]}
    pooling = {
        "1_Pooling/config.json": dict.fromkeys((f"pooling_mode_{value}{i}" for i, value in enumerate(values)), True)
    }
    assert_not_loaded(tiny_bert.write(tmp_path / "kinds", files=kinds))
    assert_not_loaded(tiny_bert.write(tmp_path / "pooling", files=pooling))
    tiny_bert.write(tmp_path / "config")
    (tmp_path / "config" / "config.json").write_text(json.dumps({"model_type": values}), encoding="utf-8")
    assert_not_loaded(tmp_path / "config")


def test_too_much_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_model_files, "MAX_JSON_BYTES", 1 << 20)
    tiny_bert.write(tmp_path)
    with open(tmp_path / "config.json", "ab") as file:
        file.write(b" " * (1 << 20))
    assert_not_loaded(tmp_path, str(tmp_path / "config.json"), "at most 1 MiB")


def _damaged_tokenizer(*path: str | int, value: Any) -> dict[str, Any]:
    tokenizer: dict[str, Any] = json.loads(tiny_bert.tokenizer().to_str())
    entry: Any = tokenizer
    for key in path[:-1]:
        entry = entry[key]
    entry[path[-1]] = value
    return tokenizer


def test_a_tokenizer_that_panics(tmp_path: Path) -> None:
    # The library checks few of these names; it ends with PanicException, which derives from BaseException.
    tokenizer = _damaged_tokenizer("post_processor", "single", 0, "SpecialToken", "id", value="none")
    tiny_bert.write(tmp_path, files={"tokenizer.json": tokenizer})
    with pytest.raises(ValueError, match=r"tokenizer: no entry found for key$|tokenizer failed: no entry") as caught:
        SentenceEncoder.from_pretrained(tmp_path).encode(["dog"])
    assert caught.type is ValueError
    with pytest.raises(ValueError, match=r"no entry found for key$"):
        SentenceEncoder.from_pretrained(tmp_path).attention_weights("dog")


def test_a_tokenizer_without_the_token_for_unknown_words(tmp_path: Path) -> None:
    files = {"tokenizer.json": _damaged_tokenizer("model", "unk_token", value="none")}
    model = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path, files=files))
    model.encode("dog")
    with pytest.raises(ValueError, match=r"^SentenceEncoder: the tokenizer failed: WordLevel"):
        model.encode("unknown")


def test_an_interrupt_is_no_error_of_the_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path))

    class Interrupted:
        def encode_batch_fast(self, texts: list[str]) -> None:
            raise KeyboardInterrupt

        def encode(self, text: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(model._tokenizer, "_library", Interrupted())
    for texts in ("dog", ["dog", "cat"]):
        with pytest.raises(KeyboardInterrupt):
            model.encode(texts)
