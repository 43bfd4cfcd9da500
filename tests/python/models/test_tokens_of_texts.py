"""The tokens of texts with their places: as of transformers, and as the models read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saved_families
import tiny_bert
import tiny_classifiers
import tiny_generators
from tolerance import assert_same_bits

from mha_native.models import CausalLM, SentenceEncoder, Seq2SeqLM, TextClassifier, TokenClassifier
from mha_native.sentence_transformers import CrossEncoder

TEXTS = [
    "", "a", "the dog", "THE  Dog", "naïve 東京 😀 the dog", "dog. " * 20,
    "\0 \ufffd  " * 2000 + "the dog",  # characters and blanks that the encoder leaves out of long texts
]  # fmt: skip
PAIRS = [("the dog", "a"), ("", "the dog. " * 20)]


def _assert_consistent(model: Any, texts: list[Any]) -> None:
    together = model.tokens_of(texts)
    assert model.count_tokens(texts).tolist() == [len(found.ids) for found in together]
    for text, found in zip(texts, together, strict=True):
        given = {"text": text[0], "text_pair": text[1]} if isinstance(text, tuple) else text
        for alone, same in zip(model.tokens_of(given), found, strict=True):
            np.testing.assert_array_equal(alone, same)
        assert model.count_tokens(given) == len(found.ids)
        inner = model.tokens_of(given, add_special_tokens=False)
        assert model.count_tokens(given, add_special_tokens=False) == len(inner.ids)
        assert not inner.special.any()
        if isinstance(given, str):
            own = found.ids[~found.special]
            assert inner.ids[: len(own)].tolist() == own.tolist()  # there is more room without special tokens
        np.testing.assert_array_equal(found.parts < 0, found.special)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "xlm-roberta", "deberta-v2"])
def test_tokens_and_places_are_those_of_transformers(model_type: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    saved_families.save(tmp_path, model_type, "ForSequenceClassification", num_labels=1)
    library = transformers.AutoTokenizer.from_pretrained(tmp_path)
    encoder, reranker = SentenceEncoder.from_pretrained(tmp_path), CrossEncoder(str(tmp_path))
    classifier = TextClassifier.from_pretrained(tmp_path)
    for model in (encoder, reranker, classifier):
        _assert_consistent(model, TEXTS if model is encoder else [*TEXTS, *PAIRS])
    for text in [*TEXTS, *PAIRS]:
        parts = (text,) if isinstance(text, str) else text
        expected = library(
            *parts, truncation=True, max_length=24, return_offsets_mapping=True, return_special_tokens_mask=True,
            return_token_type_ids=True,
        )  # fmt: skip
        for model in (encoder, classifier) if isinstance(text, str) else (classifier, reranker):
            (found,) = model.tokens_of([text])
            assert found.ids.tolist() == expected["input_ids"]
            assert found.tokens == expected.tokens()
            assert [tuple(each) for each in found.offsets.tolist()] == expected["offset_mapping"]
            assert found.special.astype(int).tolist() == expected["special_tokens_mask"]
            assert found.types.tolist() == expected["token_type_ids"]
            assert [None if part < 0 else part for part in found.parts.tolist()] == expected.sequence_ids()


def test_tokens_are_what_the_encoder_reads(tmp_path: Path) -> None:
    files = {"config_sentence_transformers.json": {"prompts": {"query": "the dog "}}}
    model = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path, files=files))
    arguments: dict[str, str]
    for arguments in ({}, {"prompt_name": "query"}, {"prompt": "a "}):
        found = model.tokens_of(TEXTS, **arguments)
        assert_same_bits(model.encode_tokens([each.ids for each in found]), model.encode(TEXTS, **arguments))
        assert model.count_tokens(TEXTS, **arguments).tolist() == [len(each.ids) for each in found]
    text, found = "a cat", model.tokens_of("cat", prompt="a ")
    assert [text[begin:end] for begin, end in found.offsets[~found.special].tolist()] == ["a", "cat"]


def test_other_models(tmp_path: Path) -> None:
    tokens = TokenClassifier.from_pretrained(tiny_classifiers.write(tmp_path / "a", tokens=True))
    _assert_consistent(tokens, TEXTS)
    assert tokens.count_tokens("the " * 100) == 102  # which is read in windows
    causal = CausalLM.from_pretrained(tiny_generators.write(tmp_path / "b", tiny_generators.config("llama")))
    pair = Seq2SeqLM.from_pretrained(tiny_generators.write(tmp_path / "c", tiny_generators.config("t5")))
    for model in (causal, pair):
        _assert_consistent(model, TEXTS)
        for special in (True, False):
            for text in TEXTS:
                found = model.tokens_of(text, add_special_tokens=special)
                assert found.ids.tolist() == model.tokenize(text, add_special_tokens=special).tolist()
    directory = tiny_generators.write(tmp_path / "d", tiny_generators.config("marian"))
    (directory / "tokenizer.json").unlink()
    for method in ("tokens_of", "count_tokens"):
        with pytest.raises(ValueError, match=rf"^Seq2SeqLM\.{method}: texts need a tokenizer\.json"):
            getattr(Seq2SeqLM.from_pretrained(directory), method)("a")
        for wrong, error, message in (
            (["a", 3], TypeError, "texts must be str; got int at 1"),
            (["\ud800"], ValueError, "texts: text 0 holds half of a surrogate pair"),
            (3, TypeError, "texts must be texts in an order"),
        ):
            with pytest.raises(error, match=rf"^CausalLM\.{method}: {message}"):
                getattr(causal, method)(wrong)
        with pytest.raises(TypeError, match=rf"^CausalLM\.{method}: add_special_tokens must be"):
            getattr(causal, method)("a", add_special_tokens="no")
