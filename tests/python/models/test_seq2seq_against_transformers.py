"""Encoder-decoders as transformers saves them: the same logits there, and the same texts by any search.

Skipped without it.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saved_families
import saved_seq2seq

from mha_native.models import Seq2SeqLM

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.0")

pytestmark = pytest.mark.filterwarnings("ignore")

TARGET = [5, 88, 12, 9, 9, 70]
PADDING, END = 1, 2


def _texts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [[0, *rng.integers(4, 250, length).tolist(), END] for length in (3, 9, 1, 30)]


@pytest.mark.parametrize("name", saved_seq2seq.MODELS)
def test_logits(name: str, tmp_path: Path) -> None:
    oracle = saved_seq2seq.save(tmp_path, name)
    # The norms of T5, and the positions of M2M-100, are computed in float32 there, whatever the model is in.
    is_exact = not ("t5" in name or "m2m" in name)
    for dtype, bound in (("float32", 1e-5), ("float64", 1e-12 if is_exact else 1e-5)):
        model = Seq2SeqLM.from_pretrained(tmp_path, dtype=dtype)
        assert model.start_token == oracle.generation_config.decoder_start_token_id
        target = [model.start_token, *TARGET]
        for text in _texts():
            with torch.no_grad():
                expected = oracle(input_ids=torch.tensor([text]), decoder_input_ids=torch.tensor([target])).logits[0]
            difference = np.abs(model.logits(text, target) - expected.numpy())
            assert difference.max() <= bound * expected.abs().max()


def _assert_same_texts(oracle: Any, model: Seq2SeqLM, **rules: Any) -> None:
    texts = _texts()
    tokens = torch.full((len(texts), max(map(len, texts))), PADDING)
    mask = torch.zeros_like(tokens)
    for i, text in enumerate(texts):
        tokens[i, : len(text)], mask[i, : len(text)] = torch.tensor(text), 1
    with torch.no_grad():
        expected = oracle.generate(
            input_ids=tokens, attention_mask=mask, do_sample=False, output_scores=True, return_dict_in_generate=True,
            **rules,
        )  # fmt: skip
    found = model.generate_tokens(texts, **rules)
    for i, (row, actual) in enumerate(zip(expected.sequences[:, 1:].tolist(), found, strict=True)):
        length = len(actual.tokens)
        assert actual.tokens.tolist() == row[:length], rules
        assert set(row[length:]) <= {PADDING}, rules
        if rules["num_beams"] > 1:
            assert actual.score == pytest.approx(float(expected.sequences_scores[i]), rel=1e-4, abs=1e-4), rules


SEARCHES = [
    {"num_beams": beams, "length_penalty": penalty, "early_stopping": stopping, "max_new_tokens": 9}
    for beams, penalty, stopping in itertools.product((2, 4), (1.0, 0.0, 2.0, -1.0), (False, True, "never"))
]
OTHERS = [
    {"num_beams": beams, **rules}
    for beams in (1, 3)
    for rules in (
        {"max_new_tokens": 1},
        {"max_new_tokens": 20},
        {"max_new_tokens": 12, "no_repeat_ngram_size": 1},
        {"max_new_tokens": 12, "no_repeat_ngram_size": 2, "min_new_tokens": 8},
        {"max_new_tokens": 12, "no_repeat_ngram_size": 3, "min_new_tokens": 12},
    )
]


def _also(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.exhaustive)


@pytest.mark.parametrize("name", [
    "bart", "marian", "t5", _also("bart, first token"), _also("bart, never"), _also("mbart"), _also("pegasus"),
    _also("t5, gated gelu"), "m2m_100, gelu, unscaled, language", "umt5", _also("mt5"),
])  # fmt: skip
def test_texts(name: str, tmp_path: Path) -> None:
    # Small weights, by which the probabilities of tokens are close to one another and texts end at any length.
    changes = {} if "t5" in name else {"init_std": 0.1}
    oracle = saved_seq2seq.save(tmp_path, name, **changes)
    model = Seq2SeqLM.from_pretrained(tmp_path, dtype="float64")
    for rules in [*SEARCHES[::5], *OTHERS]:
        _assert_same_texts(oracle, model, **rules)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rules", SEARCHES)
@pytest.mark.parametrize("name", saved_seq2seq.MODELS)
def test_every_search(name: str, rules: dict[str, Any], tmp_path: Path) -> None:
    oracle = saved_seq2seq.save(tmp_path, name)
    _assert_same_texts(oracle, Seq2SeqLM.from_pretrained(tmp_path, dtype="float64"), **rules)


def test_texts_of_the_tokenizer(tmp_path: Path) -> None:
    oracle = saved_seq2seq.save(tmp_path, "bart")
    library = transformers.AutoTokenizer.from_pretrained(tmp_path)
    model = Seq2SeqLM.from_pretrained(tmp_path)
    for text in ("the dog", "", " a naïve 東京 façade!\n", "the " * 80):
        given = library(text, return_tensors="pt", truncation=True, max_length=40)
        with torch.no_grad():
            tokens = oracle.generate(**given, do_sample=False, num_beams=2, max_new_tokens=10)[0]
        expected = library.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert model.generate(text, num_beams=2, max_new_tokens=10) == expected


def _nllb(directory: Path, **settings: Any) -> Any:
    """Save a tokenizer of NLLB with three languages, and return it."""
    words = [*saved_families.SPECIAL[:4], "▁", "▁the", "▁dog", *"thedogaï", "th", "the", "do", "dog", "▁a"]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("d", "o"), ("do", "g"), ("▁", "dog"), ("▁", "a")]
    library = transformers.NllbTokenizer(
        vocab={word: i for i, word in enumerate(dict.fromkeys(words))}, merges=merges, model_max_length=40,
        additional_special_tokens=["eng_Latn", "fra_Latn", "deu_Latn"], **settings,
    )  # fmt: skip
    library.save_pretrained(directory)
    return library


@pytest.mark.parametrize("settings", [{}, {"src_lang": "fra_Latn"}, {"legacy_behaviour": True}], ids=str)
def test_translations_of_nllb(settings: dict[str, Any], tmp_path: Path) -> None:
    oracle = saved_seq2seq.save(tmp_path, "m2m_100")
    library = _nllb(tmp_path, **settings)
    model, target = Seq2SeqLM.from_pretrained(tmp_path), library.convert_tokens_to_ids("deu_Latn")
    for text in ("the dog", "", " a naïve 東京 dog\n", "the " * 80):
        given = library(text, return_tensors="pt", truncation=True, max_length=40)
        rules = {"num_beams": 3, "max_new_tokens": 10}
        with torch.no_grad():
            expected = oracle.generate(**given, do_sample=False, forced_bos_token_id=target, **rules)[0]
        assert model.tokenize(text).tolist() == given["input_ids"][0].tolist()
        found = model.generate_tokens(text, forced_first_token=target, **rules)
        assert found.tokens.tolist() == expected[1 : 1 + len(found.tokens)].tolist()
        assert found.tokens[0] == target
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"src_lang": "deu_Latn"}))
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: src_lang must be the language that .*'deu_Latn'"):
        Seq2SeqLM.from_pretrained(tmp_path)
