"""Encoders and classifiers of images, and encoders of images and texts."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tiny_images

from mha_native.models import ImageClassifier, ImageEncoder, ImageTextEncoder

from .entry import Arguments, Generator, Made, entry, some


@functools.cache
def _folder(model_type: str, labels: int | None = None) -> tuple[tempfile.TemporaryDirectory[str], Path]:
    folder = tempfile.TemporaryDirectory()
    return folder, tiny_images.write(Path(folder.name), tiny_images.config(model_type, labels))


@functools.cache
def _encoder() -> ImageEncoder:
    return ImageEncoder.from_pretrained(_folder("dinov2")[1])


@functools.cache
def _classifier() -> ImageClassifier:
    return ImageClassifier.from_pretrained(_folder("vit", 3)[1])


@functools.cache
def _pair() -> ImageTextEncoder:
    return ImageTextEncoder.from_pretrained(_folder("clip")[1])


def _images(rng: Generator) -> Arguments:
    return {"images": rng.integers(0, 256, (2, 20, 17, 3), dtype=np.uint8)} | some(rng, {"num_threads": 1})


def _more(rng: Generator) -> Arguments:
    return some(rng, {"dtype": "float32", "weight_dtype": "int8"})


@entry("ImageEncoder.from_pretrained")
def _of_images(rng: Generator) -> Made:
    return ImageEncoder.from_pretrained, {"model": _folder("dinov2")[1]} | _more(rng)


@entry("ImageClassifier.from_pretrained")
def _of_labels(rng: Generator) -> Made:
    return ImageClassifier.from_pretrained, {"model": _folder("vit", 3)[1]} | _more(rng)


@entry("ImageTextEncoder.from_pretrained")
def _of_pairs(rng: Generator) -> Made:
    return ImageTextEncoder.from_pretrained, {"model": _folder("clip")[1]} | _more(rng)


@entry("ImageEncoder.encode")
def _encode(rng: Generator) -> Made:
    return _encoder().encode, _images(rng)


@entry("ImageEncoder.encode_batches")
def _encode_batches(rng: Generator) -> Made:
    return lambda **given: list(_encoder().encode_batches(**given)), _images(rng)


@entry("ImageEncoder.hidden_states")
def _states(rng: Generator) -> Made:
    return _encoder().hidden_states, _images(rng)


@entry("ImageEncoder.attention_weights")
def _weights(rng: Generator) -> Made:
    given = _images(rng)
    return _encoder().attention_weights, {"image": given.pop("images")[0]} | given


@entry("ImageClassifier.classify")
def _classify(rng: Generator) -> Made:
    return _classifier().classify, _images(rng) | some(rng, {"top_k": 2})


@entry("ImageClassifier.predict_proba")
def _scores(rng: Generator) -> Made:
    return _classifier().predict_proba, _images(rng)


@entry("ImageClassifier.predict_proba_batches")
def _score_batches(rng: Generator) -> Made:
    return lambda **given: list(_classifier().predict_proba_batches(**given)), _images(rng)


@entry("ImageTextEncoder.encode_images")
def _encode_images(rng: Generator) -> Made:
    return _pair().encode_images, _images(rng) | some(rng, {"normalize": False})


@entry("ImageTextEncoder.encode_texts")
def _encode_texts(rng: Generator) -> Made:
    more = {"normalize": False, "num_threads": 1}
    return _pair().encode_texts, {"texts": ["a b", "", "c d e"]} | some(rng, more)


def _both(rng: Generator) -> Arguments:
    return _images(rng) | {"texts": ["a b", ""]}


@entry("ImageTextEncoder.logits")
def _logits(rng: Generator) -> Made:
    return _pair().logits, _both(rng)


@entry("ImageTextEncoder.probabilities")
def _probabilities(rng: Generator) -> Made:
    return _pair().probabilities, _both(rng)


def _texts(rng: Generator) -> Arguments:
    return {"texts": ["a b", ""]} | some(rng, {"add_special_tokens": False})


@entry("ImageTextEncoder.tokens_of")
def _tokens_of(rng: Generator) -> Made:
    return _pair().tokens_of, _texts(rng)


@entry("ImageTextEncoder.count_tokens")
def _count_tokens(rng: Generator) -> Made:
    return _pair().count_tokens, _texts(rng)


def _convert(name: str, make: Any) -> None:
    @entry(f"{name}.astype")
    def _astype(_: Generator) -> Made:
        return make().astype, {"dtype": "float64"}

    @entry(f"{name}.quantize")
    def _quantize(_: Generator) -> Made:
        return make().quantize, {"weight_dtype": "int8"}


_convert("ImageEncoder", _encoder)
_convert("ImageClassifier", _classifier)
_convert("ImageTextEncoder", _pair)
