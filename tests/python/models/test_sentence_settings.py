"""Settings of a SentenceEncoder that may change, and the vectors of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
from tiny_bert import TEXTS
from tolerance import assert_same_bits

from mha_native.models import SentenceEncoder
from mha_native.models.text import batching as _batching

LONG = "a b c d e f g h"


@pytest.fixture
def model(tmp_path: Path) -> SentenceEncoder:
    files = {
        "config_sentence_transformers.json": {"prompts": {"query": "cat "}, "default_prompt_name": "query"},
        "modules.json": tiny_bert.modules("Transformer", "Pooling"),
    }
    return SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path, files=files))


@pytest.mark.parametrize("length", [3, 6, 10, 20])
def test_max_seq_length(length: int, model: SentenceEncoder) -> None:
    whole = model.encode(LONG, prompt="")
    words = [*LONG.split(), *["x"] * 20]
    expected = model.encode(" ".join(words[: length - 2]), prompt="")
    before, model.max_length = model.max_length, length
    assert model.max_length == length
    assert_same_bits(model.encode(" ".join(words), prompt=""), expected)
    assert f"max_length={length}," in repr(model)
    assert_same_bits(model.astype("float32").encode(" ".join(words), prompt=""), expected)
    model.max_length = before
    assert_same_bits(model.encode(LONG, prompt=""), whole)


def test_max_seq_length_of_very_long_texts(model_directory: Path) -> None:
    model = SentenceEncoder.from_pretrained(model_directory)
    model.max_length = 16
    assert_same_bits(model.encode("dog " * 50_000), model.encode("dog " * 14))
    model.max_length = 512
    assert_same_bits(model.encode("dog " * 50_000), model.encode("dog " * 510))


@pytest.mark.parametrize(
    ("length", "problem"),
    [(21, "at most 20, the positions of the model; got 21"), (2, "leave room beside 2 special tokens; got 2"),
     (0, "at least 1"), (None, "integer"), (2.5, "integer")],
)  # fmt: skip
def test_lengths_that_cannot_be(length: Any, problem: str, model: SentenceEncoder) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^SentenceEncoder: max_length must .*{problem}"):
        model.max_length = length
    assert model.max_length == 20


def test_truncate_dim(model: SentenceEncoder) -> None:
    whole = model.encode(TEXTS)
    assert (model.truncate_dim, model.embed_dim) == (None, 24)
    model.truncate_dim = 5
    assert (model.truncate_dim, model.embed_dim) == (5, 5)
    assert_same_bits(model.encode(TEXTS), np.ascontiguousarray(whole[:, :5]))
    assert_same_bits(model.encode(TEXTS, truncate_dim=24), whole)
    model.truncate_dim = None
    assert_same_bits(model.encode(TEXTS), whole)
    with pytest.raises(ValueError, match=r"^SentenceEncoder: truncate_dim must be .*at least 1"):
        model.truncate_dim = 0


def test_default_prompt_name(model: SentenceEncoder, tmp_path: Path) -> None:
    assert model.default_prompt_name == "query"
    assert SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path / "plain")).default_prompt_name is None


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_rows_of_tokens(dtype: str, model: SentenceEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_batching, "MOST_TOKENS", 30)
    model = model.astype(dtype)
    found = list(model.encode_to_rows(iter(TEXTS), prompt="dog "))
    assert len(found) == len(TEXTS)
    for text, (tokens, rows) in zip(TEXTS, found, strict=True):
        assert tokens.tolist() == tiny_bert.ids(f"dog {text}")
        assert rows.dtype == np.float32
        assert_same_bits(next(iter(model.encode_to_rows([text], prompt="dog ")))[1], rows)
        bound = 1e-6 if dtype != "bfloat16" else 0.02
        np.testing.assert_allclose(rows.mean(axis=0), model.encode(text, prompt="dog "), atol=bound)
    ((tokens, _),) = model.encode_to_rows(["a"])
    assert tokens.tolist() == tiny_bert.ids("cat a")


def test_rows_of_tokens_name_their_arguments(model: SentenceEncoder) -> None:
    for arguments, problem in (
        ({"texts": "dog"}, "texts must be texts in an order"), ({"prompt_name": "x"}, "prompt_name must be one of"),
        ({"num_threads": 0}, "num_threads must be"), ({"texts": [1]}, "texts must be str; got int at 0"),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError), match=rf"^SentenceEncoder\.encode_to_rows: {problem}"):
            list(model.encode_to_rows(**{"texts": TEXTS} | arguments))
