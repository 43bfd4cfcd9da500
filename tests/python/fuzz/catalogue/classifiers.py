"""Classifiers of texts and of tokens."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import tiny_classifiers

from mha_native.models import TextClassifier, TokenClassifier

from .entry import Arguments, Generator, Made, entry, some


@functools.cache
def _folder(of_tokens: bool) -> tuple[tempfile.TemporaryDirectory[str], Path]:
    folder = tempfile.TemporaryDirectory()
    return folder, tiny_classifiers.write(Path(folder.name), tokens=of_tokens)


@functools.cache
def _text_classifier() -> TextClassifier:
    return TextClassifier.from_pretrained(_folder(False)[1])


@functools.cache
def _token_classifier() -> TokenClassifier:
    return TokenClassifier.from_pretrained(_folder(True)[1])


@entry("TextClassifier.from_pretrained")
def _of_texts(rng: Generator) -> Made:
    more = {"dtype": "float32", "weight_dtype": "int8"}
    return TextClassifier.from_pretrained, {"model": _folder(False)[1]} | some(rng, more)


@entry("TokenClassifier.from_pretrained")
def _of_tokens(rng: Generator) -> Made:
    more = {"dtype": "float32", "weight_dtype": "int8"}
    return TokenClassifier.from_pretrained, {"model": _folder(True)[1]} | some(rng, more)


def _texts(rng: Generator) -> Arguments:
    texts: Any = ["the dog", "", ("a", "b c")] if rng.random() < 0.5 else ["the dog"]
    return {"texts": texts} | some(rng, {"function_to_apply": "softmax", "num_threads": 1})


@entry("TextClassifier")
def _labels(rng: Generator) -> Made:
    return _text_classifier(), _texts(rng) | some(rng, {"top_k": 2})


@entry("TextClassifier.predict_proba")
def _scores(rng: Generator) -> Made:
    return _text_classifier().predict_proba, _texts(rng)


@entry("TextClassifier.predict_proba_batches")
def _predict_proba_batches(rng: Generator) -> Made:
    return lambda **given: list(_text_classifier().predict_proba_batches(**given)), _texts(rng)


@entry("TextClassifier.astype")
def _texts_astype(_: Generator) -> Made:
    return _text_classifier().astype, {"dtype": "float64"}


@entry("TextClassifier.quantize")
def _texts_quantize(_: Generator) -> Made:
    return _text_classifier().quantize, {"weight_dtype": "int8"}


def _counted(rng: Generator) -> Arguments:
    return {"texts": ["the dog", ""]} | some(rng, {"add_special_tokens": False})


@entry("TextClassifier.tokens_of")
def _text_tokens(rng: Generator) -> Made:
    return _text_classifier().tokens_of, _counted(rng)


@entry("TextClassifier.count_tokens")
def _text_counts(rng: Generator) -> Made:
    return _text_classifier().count_tokens, _counted(rng)


@entry("TokenClassifier.tokens_of")
def _token_tokens(rng: Generator) -> Made:
    return _token_classifier().tokens_of, _counted(rng)


@entry("TokenClassifier.count_tokens")
def _token_counts(rng: Generator) -> Made:
    return _token_classifier().count_tokens, _counted(rng)


def _entity_options(rng: Generator) -> Arguments:
    more = {"aggregation_strategy": "first", "ignore_labels": ["O"], "stride": 3, "num_threads": 1}
    return {"texts": ["the dog", "", "a b c"]} | some(rng, more)


@entry("TokenClassifier")
def _entities(rng: Generator) -> Made:
    return _token_classifier(), _entity_options(rng)


@entry("TokenClassifier.iter_entities")
def _iter_entities(rng: Generator) -> Made:
    return lambda **given: list(_token_classifier().iter_entities(**given)), _entity_options(rng)


@entry("TokenClassifier.astype")
def _tokens_astype(_: Generator) -> Made:
    return _token_classifier().astype, {"dtype": "float64"}


@entry("TokenClassifier.quantize")
def _tokens_quantize(_: Generator) -> Made:
    return _token_classifier().quantize, {"weight_dtype": "int8"}
