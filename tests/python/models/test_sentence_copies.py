"""A sentence model goes through pickle and copies as layers do: what comes out gives the same bits."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
from tiny_bert import TEXTS
from tolerance import assert_same_bits

from mha_native.models import SentenceEncoder

COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    **{
        f"pickle-{protocol}": lambda model, protocol=protocol: pickle.loads(pickle.dumps(model, protocol))
        for protocol in (2, pickle.HIGHEST_PROTOCOL)
    },
}

KINDS = [("float32", None), ("float64", None), ("float16", None), ("bfloat16", None), ("float32", "int8")]


def _assert_same(ours: SentenceEncoder, expected: SentenceEncoder) -> None:
    assert repr(ours) == repr(expected)
    assert_same_bits(ours.encode(TEXTS), expected.encode(TEXTS))
    assert_same_bits(ours.encode(TEXTS, normalize=False), expected.encode(TEXTS, normalize=False))
    tokens, weights = expected.attention_weights(TEXTS[3])
    assert ours.attention_weights(TEXTS[3])[0] == tokens
    assert_same_bits(ours.attention_weights(TEXTS[3])[1], weights)


@pytest.mark.parametrize(("computed", "stored"), KINDS, ids=str)
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_gives_the_same_bits(how: str, computed: str, stored: str | None, tmp_path: Path) -> None:
    model = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path), dtype=computed, weight_dtype=stored)
    other = COPIES[how](model)
    _assert_same(other, model)
    _assert_same(other.astype("float16"), model.astype("float16"))


@pytest.mark.parametrize("how", ["deepcopy", "pickle-5"])
def test_a_copy_has_the_settings_of_the_files(how: str, tmp_path: Path) -> None:
    files = {
        "modules.json": tiny_bert.modules("Transformer", "Pooling"),
        "1_Pooling/config.json": {"pooling_mode_cls_token": True},
        "sentence_bert_config.json": {"max_seq_length": 7, "do_lower_case": True},
        "config_sentence_transformers.json": {"prompts": {"query": "cat "}, "truncate_dim": 5},
    }
    model = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path, files=files))
    other = COPIES[how](model)
    assert other.max_length == 7
    assert_same_bits(other.encode([*TEXTS, "THE DOG"]), model.encode([*TEXTS, "the dog"]))
    assert_same_bits(other.encode(TEXTS, prompt_name="query"), model.encode(TEXTS, prompt_name="query"))
    assert other.embed_dim == 5
    assert not np.allclose(np.linalg.norm(other.encode(TEXTS[3])), 1)


def test_a_copy_keeps_nothing_of_the_files(tmp_path: Path) -> None:
    directory = tiny_bert.write(tmp_path)
    model = SentenceEncoder.from_pretrained(directory)
    expected, saved = model.encode(TEXTS), pickle.dumps(model)
    del model
    for path in filter(Path.is_file, directory.rglob("*")):
        path.write_text(json.dumps(None), encoding="utf-8")
    assert_same_bits(pickle.loads(saved).encode(TEXTS), expected)


def test_the_pretrained_model(model_directory: Path) -> None:
    model = SentenceEncoder.from_pretrained(model_directory)
    text = " ".join(["a long text, of which the first tokens count"] * 500)
    assert_same_bits(pickle.loads(pickle.dumps(model)).encode(text), model.encode(text))
