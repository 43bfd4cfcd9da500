"""Encoder-decoders."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tiny_generators

from mha_native.models import Seq2SeqLM

from .entry import Arguments, Generator, Made, entry, some


@functools.cache
def _folder() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    folder = tempfile.TemporaryDirectory()
    return folder, tiny_generators.write(Path(folder.name), tiny_generators.config("bart"))


@functools.cache
def seq2seq_model() -> Seq2SeqLM:
    return Seq2SeqLM.from_pretrained(_folder()[1])


def _rules(rng: Generator) -> Arguments:
    more = {
        "num_beams": 2,
        "length_penalty": 0.5,
        "early_stopping": True,
        "no_repeat_ngram_size": 2,
        "min_new_tokens": 2,
        "forced_first_token": 7,
        "num_threads": 1,
    }
    return {"max_new_tokens": 4} | some(rng, more)


@entry("Seq2SeqLM.from_pretrained")
def _from_pretrained(rng: Generator) -> Made:
    more = {"dtype": "float32", "weight_dtype": "int8"}
    return Seq2SeqLM.from_pretrained, {"model": _folder()[1]} | some(rng, more)


@entry("Seq2SeqLM.generate")
def _generate(rng: Generator) -> Made:
    texts: Any = ["the dog", ["the", "a b c"]][rng.integers(2)]
    return seq2seq_model().generate, {"texts": texts} | _rules(rng)


@entry("Seq2SeqLM.generate_tokens")
def _generate_tokens(rng: Generator) -> Made:
    return seq2seq_model().generate_tokens, {
        "texts": [[[2, 5, 3], np.array([7])], "the", ["the", [5]], np.array([2, 3])][rng.integers(4)]
    } | _rules(rng)


@entry("Seq2SeqLM.logits")
def _logits(rng: Generator) -> Made:
    return seq2seq_model().logits, {"text": [2, 5, 3], "target": np.array([2, 7])} | some(rng, {"num_threads": 1})


@entry("Seq2SeqLM.tokens_of")
def _tokens_of(rng: Generator) -> Made:
    return seq2seq_model().tokens_of, {"texts": ["a", "b"]} | some(rng, {"add_special_tokens": False})


@entry("Seq2SeqLM.count_tokens")
def _count_tokens(rng: Generator) -> Made:
    return seq2seq_model().count_tokens, {"texts": ["a", "b"]} | some(rng, {"add_special_tokens": False})


@entry("Seq2SeqLM.tokenize")
def _tokenize(rng: Generator) -> Made:
    return seq2seq_model().tokenize, {"texts": ["the dog", ["a", "b"]][rng.integers(2)]} | some(
        rng, {"add_special_tokens": False}
    )


@entry("Seq2SeqLM.decode")
def _decode(_: Generator) -> Made:
    return seq2seq_model().decode, {"tokens": np.array([9, 3])}


@entry("Seq2SeqLM.astype")
def _astype(_: Generator) -> Made:
    return seq2seq_model().astype, {"dtype": "float16"}


@entry("Seq2SeqLM.quantize")
def _quantize(_: Generator) -> Made:
    return seq2seq_model().quantize, {"weight_dtype": "int8"}
