"""Tokenizers of each kind that families of models have: tokens, long texts, prompts, and settings that must agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_families
import tiny_tokenizers
from model_files import assert_not_loaded
from tiny_tokenizers import KINDS, TEXTS
from tolerance import EMBEDDING_BOUND, assert_close, assert_same_bits

from mha_native.models import SentenceEncoder
from mha_native.models.text.long_texts import LongTexts

Array = np.ndarray[Any, Any]


def _write(directory: Path, model_type: str, library: Any, **files: Any) -> Path:
    named = {f"{name}.json": value for name, value in files.items()} | {"tokenizer.json": json.loads(library.to_str())}
    return tiny_families.write(directory, model_type, named)


def _ids(library: Any, text: str, most: int = 20) -> list[int]:
    """The tokens of a text, cut to `most`, by the library alone."""
    library.enable_truncation(most)
    ids: list[int] = library.encode(text).ids
    return ids


@pytest.mark.parametrize("model_type", KINDS)
def test_embeddings_of_texts(model_type: str, tmp_path: Path) -> None:
    library = KINDS[model_type]()
    model = SentenceEncoder.from_pretrained(_write(tmp_path, model_type, library))
    texts = [*TEXTS, "the dog " * 100, "a" * 5000]
    expected = tiny_families.embeddings(model_type, [_ids(library, text) for text in texts])
    actual = model.encode(texts)
    assert_close(actual, expected, np.full(expected.shape, EMBEDDING_BOUND), label=model_type)
    for text, embedding in zip(texts, actual, strict=True):
        assert_same_bits(model.encode(text), embedding, label=text)


@pytest.mark.parametrize("model_type", KINDS)
def test_a_prompt_that_is_not_pooled(model_type: str, tmp_path: Path) -> None:
    library = KINDS[model_type]()
    pooling = {"embedding_dimension": 24, "pooling_mode": "mean", "include_prompt": False}
    directory = _write(tmp_path, model_type, library, **{"1_Pooling/config": pooling})
    model = SentenceEncoder.from_pretrained(directory)
    first = len(_ids(library, "the dog ")) - 1  # without the token at the end
    expected = tiny_families.embeddings(model_type, [_ids(library, "the dog " + text) for text in ("ab", "dog")], first)
    actual = model.encode(["ab", "dog"], prompt="the dog ")
    assert_close(actual, expected, np.full(expected.shape, EMBEDDING_BOUND), label=model_type)


LONG = [
    "the dog " * 3000, "a" * 20_000, " " * 20_000 + "dog", "dog" + " " * 20_000 + "dog", "the\n\n\tdog " * 2000,
    "ab<mask>" * 3000, "<ma" * 8000, "thedog" * 5000, "é" * 20_000, "e\u0301" * 10_000,
]  # fmt: skip


@pytest.mark.parametrize("kind", ["byte_level", "unigram", "word_piece"])
def test_a_long_text_has_the_tokens_of_the_whole(kind: str) -> None:
    library = getattr(tiny_tokenizers, kind)()
    long_texts = LongTexts(library, 20)
    for text in LONG:
        beginning = long_texts.beginning(text)
        assert _ids(library, beginning) == _ids(library, text), text[:20]
        if kind != "word_piece":  # a word may take its tokens from all that is behind it
            assert beginning == text
    assert kind != "word_piece" or len(long_texts.beginning(LONG[0])) < len(LONG[0])


REFUSED: list[tuple[str, Any, dict[str, Any], list[str]]] = [
    ("roberta", {}, {"add_prefix_space": True}, ["add_prefix_space must be False", "pre-tokenizer", "got True"]),
    ("roberta", {"add_prefix_space": True}, {}, ["add_prefix_space must be True", "got False"]),
    ("xlm-roberta", {}, {"add_prefix_space": False}, ["add_prefix_space must be True", "got False"]),
    ("camembert", {"prepend_scheme": "never"}, {}, ["add_prefix_space must be False", "got True"]),
    ("distilbert", {}, {"do_lower_case": False}, ["do_lower_case must be True", "normalizer", "got False"]),
    ("distilbert", {"lowercase": False}, {"do_lower_case": True}, ["do_lower_case must be False", "got True"]),
    ("camembert", {}, {"unk_token": None}, ["unk_token must be a special token of tokenizer.json; got None"]),
    ("mpnet", {}, {"tokenize_chinese_chars": False}, ["tokenize_chinese_chars must be True", "got False"]),
    ("bert", {}, {"strip_accents": True}, ["strip_accents must be None", "got True"]),
    ("bert", {}, {"tokenizer_class": 3}, ["tokenizer_class must be a string; got 3"]),
    *[
        (name, {}, {key: value}, [f"{key} must be a special token of tokenizer.json"])
        for name in KINDS
        for key, value in [
            ("cls_token", ""),
            ("sep_token", "a"),
            ("unk_token", {"content": "<other>"}),
            ("bos_token", 3),
        ]
    ],
    *[(name, {}, {"truncation_side": "left"}, ["truncation_side must be 'right'"]) for name in KINDS],
]
CLASSES = {"bert": "BertTokenizer", "roberta": "RobertaTokenizer", "xlm-roberta": "XLMRobertaTokenizerFast",
           "camembert": "CamembertTokenizer",
           "distilbert": "DistilBertTokenizerFast", "mpnet": "MPNetTokenizer"}  # fmt: skip


@pytest.mark.parametrize(("model_type", "arguments", "values", "words"), REFUSED, ids=str)
def test_settings_that_do_not_agree(
    model_type: str, arguments: Any, values: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    settings = {"tokenizer_class": CLASSES[model_type]} | values
    _write(tmp_path, model_type, KINDS[model_type](**arguments), tokenizer_config=settings)
    assert_not_loaded(tmp_path, str(tmp_path / "tokenizer_config.json"), *words)


@pytest.mark.parametrize("model_type", KINDS)
def test_settings_that_agree(model_type: str, tmp_path: Path) -> None:
    expected = SentenceEncoder.from_pretrained(_write(tmp_path / "a", model_type, KINDS[model_type]())).encode(TEXTS)
    is_bert = KINDS[model_type] is tiny_tokenizers.word_piece
    settings = {
        "tokenizer_class": CLASSES[model_type],
        "cls_token": {"content": "[CLS]" if is_bert else "<s>"},
        "unk_token": "[UNK]" if is_bert else "<unk>",
        "sep_token": None,
        "do_lower_case": True,
        "add_prefix_space": model_type != "roberta",
        "model_max_length": 10**30,
    }
    directory = _write(tmp_path / "b", model_type, KINDS[model_type](), tokenizer_config=settings)
    assert_same_bits(SentenceEncoder.from_pretrained(directory).encode(TEXTS), expected)
    # Of another class tokenizer.json counts there, too.
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": None}
    directory = _write(tmp_path / "c", model_type, KINDS[model_type](), tokenizer_config=settings)
    assert_same_bits(SentenceEncoder.from_pretrained(directory).encode(TEXTS), expected)
