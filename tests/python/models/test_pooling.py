"""Vectors of tokens to one vector: every mode by its definition, in the files of old and new versions."""

from __future__ import annotations

from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import bert_oracle
import numpy as np
import pytest
import tiny_bert
from model_files import assert_not_loaded
from tiny_bert import TEXTS
from tolerance import EMBEDDING_BOUND, assert_close, assert_same_bits

from mha_native.models import SentenceEncoder

Array = np.ndarray[Any, Any]
MODES = list(bert_oracle.POOLINGS)
OLD = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
SETTINGS = tiny_bert.config()
TENSORS = tiny_bert.tensors(SETTINGS)


def _write(directory: Path, pooling: dict[str, Any], *behind: str) -> Path:
    files = {"modules.json": tiny_bert.modules("Transformer", "Pooling", *behind), "1_Pooling/config.json": pooling}
    return tiny_bert.write(directory, files=files)


def _expected(texts: list[str], modes: list[str], prompt_tokens: int = 0) -> Array:
    rows = [bert_oracle.hidden_states(TENSORS, SETTINGS, tiny_bert.ids(text)) for text in texts]
    return np.stack([bert_oracle.pooled(row, modes, prompt_tokens) for row in rows])


def _assert_embeddings(actual: Array, expected: Array) -> None:
    assert actual.dtype == np.float32
    assert_close(actual, expected, EMBEDDING_BOUND * np.maximum(np.abs(expected), 1), label="embeddings")


@pytest.mark.parametrize("mode", MODES)
def test_each_mode(mode: str, tmp_path: Path, isa: str, num_threads: int) -> None:
    expected = _expected(TEXTS, [mode])
    plain = SentenceEncoder.from_pretrained(_write(tmp_path / "plain", tiny_bert.pooling(mode)))
    together = plain.encode(TEXTS, num_threads=num_threads)
    _assert_embeddings(together, expected)
    for text, embedding in zip(TEXTS, together, strict=True):
        assert_same_bits(plain.encode(text), embedding, label=text)
    scaled = SentenceEncoder.from_pretrained(_write(tmp_path / "scaled", tiny_bert.pooling(mode), "Normalize"))
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    _assert_embeddings(scaled.encode(TEXTS), expected / lengths)
    assert_same_bits(scaled.encode(TEXTS, normalize=False), together)


@pytest.mark.parametrize("modes", [*map(list, combinations(MODES, 2)), MODES], ids="+".join)
def test_concatenations_in_old_files_and_new_ones(modes: list[str], tmp_path: Path) -> None:
    flags = {OLD[mode]: mode in modes for mode in MODES}
    contents = [
        {"word_embedding_dimension": 24} | flags,
        tiny_bert.pooling(*modes),
        tiny_bert.pooling("+".join(modes), include_prompt=True),
    ]
    models = [SentenceEncoder.from_pretrained(_write(tmp_path / str(i), content)) for i, content in enumerate(contents)]
    expected = _expected(TEXTS, modes)
    for model in models:
        assert model.embed_dim == 24 * len(modes)
        _assert_embeddings(model.encode(TEXTS), expected)


def test_the_order_of_a_list_counts(tmp_path: Path) -> None:
    for i, modes in enumerate(permutations(["mean", "cls", "max"])):
        model = SentenceEncoder.from_pretrained(_write(tmp_path / str(i), tiny_bert.pooling(*modes)))
        _assert_embeddings(model.encode(TEXTS), _expected(TEXTS, list(modes)))


@pytest.mark.parametrize("content", [{}, {"word_embedding_dimension": 24}, dict.fromkeys(OLD.values(), False)], ids=str)
def test_the_mean_where_nothing_is_chosen(content: dict[str, Any], tmp_path: Path) -> None:
    model = SentenceEncoder.from_pretrained(_write(tmp_path, content))
    _assert_embeddings(model.encode(TEXTS), _expected(TEXTS, ["mean"]))


def test_the_new_key_counts_where_both_are(tmp_path: Path) -> None:
    content = {"pooling_mode_mean_tokens": True, "pooling_mode": "cls"}
    model = SentenceEncoder.from_pretrained(_write(tmp_path, content))
    _assert_embeddings(model.encode(TEXTS), _expected(TEXTS, ["cls"]))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pooling_mode", "median"),
        ("pooling_mode", ["mean", "median"]),
        ("pooling_mode", []),
        ("pooling_mode", ""),
        ("pooling_mode", "mean+"),
        ("pooling_mode", None),
        ("pooling_mode", 3),
        ("pooling_mode", [["mean"]]),
        ("pooling_mode", {"mean": 1}),
        ("pooling_mode", ["mean"] * 1000),
        ("pooling_mode_mean_tokens", "yes"),
        ("pooling_mode_mean_tokens", 1),
        ("pooling_mode_median_tokens", True),
        ("include_prompt", "no"),
        ("include_prompt", None),
        ("embedding_dimension", 25),
        ("embedding_dimension", 24.0),
        ("embedding_dimension", -24),
        ("word_embedding_dimension", 10**30),
        ("module_input_name", "all_layer_embeddings"),
    ],
    ids=lambda x: str(x)[:20],
)
def test_what_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    _write(tmp_path, {key: value})
    assert_not_loaded(tmp_path, str(tmp_path / "1_Pooling" / "config.json"), key)


PROMPT = "the dog"  # [CLS] the dog [SEP], of which all but the last one are left out


@pytest.mark.parametrize("mode", MODES)
def test_tokens_of_a_prompt_that_are_not_pooled(mode: str, tmp_path: Path) -> None:
    model = SentenceEncoder.from_pretrained(_write(tmp_path, tiny_bert.pooling(mode, include_prompt=False)))
    prompted = [f"{PROMPT} {text}" for text in TEXTS]
    together = model.encode(TEXTS, prompt=f"{PROMPT} ")
    _assert_embeddings(together, _expected(prompted, [mode], prompt_tokens=3))
    for text, embedding in zip(TEXTS, together, strict=True):
        assert_same_bits(model.encode(text, prompt=f"{PROMPT} "), embedding, label=text)
    _assert_embeddings(model.encode(TEXTS), _expected(TEXTS, [mode]))
    _assert_embeddings(model.encode(TEXTS, prompt=""), _expected(TEXTS, [mode]))
    included = SentenceEncoder.from_pretrained(_write(tmp_path / "included", tiny_bert.pooling(mode)))
    _assert_embeddings(included.encode(TEXTS, prompt=f"{PROMPT} "), _expected(prompted, [mode]))


@pytest.mark.parametrize("mode", MODES)
def test_a_prompt_longer_than_what_is_read(mode: str, tmp_path: Path) -> None:
    model = SentenceEncoder.from_pretrained(_write(tmp_path, tiny_bert.pooling(mode, include_prompt=False)))
    prompt = "dog " * 30  # the last token of 20 is [SEP], which is left
    _assert_embeddings(model.encode(["cat"], prompt=prompt), _expected([prompt], [mode], prompt_tokens=19))


@pytest.mark.parametrize("mode", MODES)
def test_texts_without_tokens(mode: str, tmp_path: Path) -> None:
    model = SentenceEncoder.from_pretrained(_write(tmp_path, tiny_bert.pooling(mode)))
    alone = model.encode_tokens([[5, 6, 7]])
    zeros = np.zeros((1, 24), np.float32)
    assert_same_bits(model.encode_tokens([[], [5, 6, 7], [], []]), np.concatenate([zeros, alone, zeros, zeros]))
    assert_same_bits(model.encode_tokens([[]]), zeros)
    assert_same_bits(model.encode_tokens([[]], normalize=True), zeros)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_modes_in_other_dtypes(dtype: str, tmp_path: Path) -> None:
    model = SentenceEncoder.from_pretrained(_write(tmp_path, tiny_bert.pooling(*MODES)), dtype=dtype)
    embeddings = model.encode(TEXTS)
    expected = _expected(TEXTS, MODES)
    bound = {"float64": 1e-6, "bfloat16": 0.2, "float16": 0.03}[dtype]
    assert_close(embeddings, expected, bound * np.maximum(np.abs(expected), 1), label=dtype)
    for text, embedding in zip(TEXTS, embeddings, strict=True):
        assert_same_bits(model.encode(text), embedding, label=text)
