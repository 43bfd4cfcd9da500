"""Sentence models whose weights are in fewer bits: against float32, in any company, and from the command line."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tiny_bert
from command_line import run
from tolerance import LEAST_COSINE, assert_same_bits

from mha_native.models import SentenceEncoder

Array = np.ndarray[Any, Any]

TEXTS = ["dog", "the dog", "a b c d e f g h", "the cat !", " ".join("abcdefghijklmnopqrstuvwxyz")]
every_format = pytest.mark.parametrize("weight_dtype", ["bfloat16", "int8", "int4"])


def _sentences() -> list[str]:
    """Statements, questions, orders; names and numbers; from three words to sixty."""
    subjects = [
        "The old engineer",
        "My sister",
        "Nobody in Lisbon",
        "A flock of starlings",
        "The European Central Bank",
    ]
    subjects += ["Water", "She", "The defendant's lawyer"]
    acts = ["repaired the bridge", "is boiling", "raised interest rates by 0.25 %", "never answered", "sang until dawn"]
    ends = [".", "?", " because it was raining in Bergen on 14 March 2019.", " - or so the newspaper said!"]
    ends += [
        ", although the contract, which nobody had read, said otherwise, and the court of appeal in The Hague agreed."
    ]
    ends += [f" {' and then '.join(['went home', 'read the manual', 'called the doctor', 'slept'] * 4)}."]
    return [subject + " " + act + end for subject, act, end in product(subjects, acts, ends)]


def test_the_pretrained_model_says_the_same(model_directory: Path) -> None:
    entries = json.loads((Path(__file__).parents[2] / "data/all_minilm_l6_v2.json").read_text(encoding="utf-8"))[
        "texts"
    ]
    sentences = _sentences() + [entry["text"] for entry in entries if len(entry["text"].split()) > 2]
    assert len(set(sentences)) >= 200
    exact = SentenceEncoder.from_pretrained(model_directory).encode(sentences)
    for weight_dtype in ("bfloat16", "int8", "int4"):
        model = SentenceEncoder.from_pretrained(model_directory, weight_dtype=weight_dtype)
        cosines = (exact * model.encode(sentences)).sum(1)
        worst = int(np.argmin(cosines))
        assert cosines[worst] > LEAST_COSINE[weight_dtype], f"{weight_dtype}: {cosines[worst]} at {sentences[worst]!r}"
        assert cosines[worst] < 1 - 1e-6, "the format has no effect"


def test_bfloat16_is_float32_with_rounded_weights(tmp_path: Path, isa: str) -> None:
    settings = tiny_bert.config()
    rounded = {
        name: array.astype(ml_dtypes.bfloat16).astype(np.float32)
        if name.startswith("encoder") and array.ndim == 2
        else array
        for name, array in tiny_bert.tensors(settings).items()
    }
    model = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path / "a"), weight_dtype="bfloat16")
    expected = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path / "b", settings, rounded))
    assert_same_bits(model.encode(TEXTS), expected.encode(TEXTS))


@every_format
def test_a_text_has_the_same_bits_alone_and_in_any_batch(
    weight_dtype: str, tmp_path: Path, isa: str, num_threads: int
) -> None:
    model = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path), weight_dtype=weight_dtype)
    together = model.encode(TEXTS * 9, num_threads=num_threads)
    for text, embedding in zip(TEXTS * 9, together, strict=True):
        assert_same_bits(model.encode(text), embedding, label=text)


@every_format
def test_it_says_how_its_weights_are_stored(weight_dtype: str, tmp_path: Path) -> None:
    model = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path), weight_dtype=weight_dtype)
    assert model.weight_dtype == weight_dtype
    assert f"weight_dtype='{weight_dtype}'" in repr(model)


def test_what_is_no_format(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"weight_dtype .* 'int4'.*; got 'int2'"):
        SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path), weight_dtype="int2")


@every_format
def test_the_command_line(weight_dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(tiny_bert.write(tmp_path))
    expected = SentenceEncoder.from_pretrained(directory, weight_dtype=weight_dtype).encode(["the dog"])
    code, out, err = run(capsys, "embed", "--model", directory, "--weight-dtype", weight_dtype, "the dog")
    assert (code, err) == (0, "")
    assert_same_bits(np.array([json.loads(out)["embedding"]], np.float32), expected)
    code, out, _ = run(capsys, "embed", "--model", directory, "--weight-dtype", weight_dtype, "--explain", "the dog")
    assert code == 0
    assert "4 tokens" in out


def test_another_format_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(capsys, "embed", "--model", str(tmp_path), "--weight-dtype", "int2", "dog")
    assert "invalid choice: 'int2'" in capsys.readouterr().err
