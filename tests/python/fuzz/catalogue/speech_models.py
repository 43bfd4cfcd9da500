"""Speech models."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import tiny_speech

from mha_native.models import EncodedSpeech, SpeechSeq2Seq

from .entry import Arguments, Generator, Made, entry, some

_CONFIG = tiny_speech.config()


@functools.cache
def _folder() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    folder = tempfile.TemporaryDirectory()
    return folder, tiny_speech.write(Path(folder.name), _CONFIG)


@functools.cache
def speech_model() -> SpeechSeq2Seq:
    return SpeechSeq2Seq.from_pretrained(_folder()[1])


@functools.cache
def _encoded() -> EncodedSpeech:
    return speech_model().encode(np.random.default_rng(0).standard_normal((2, 80, 12), dtype=np.float32))


@entry("SpeechSeq2Seq.from_pretrained")
def _from_pretrained(rng: Generator) -> Made:
    more = {"dtype": "float32", "weight_dtype": "int8", "num_threads": 1}
    return SpeechSeq2Seq.from_pretrained, {"model": _folder()[1]} | some(rng, more)


@entry("SpeechSeq2Seq.encode")
def _encode(rng: Generator) -> Made:
    features = rng.standard_normal((rng.integers(1, 3), 80, 2 * rng.integers(1, 20)), dtype=np.float32)
    return speech_model().encode, {"features": features} | some(rng, {"num_threads": 1})


@entry("SpeechSeq2Seq.decoder")
def _decoder(rng: Generator) -> Made:
    given: Arguments = {"encoded": _encoded(), "sequences": [np.array([0, 1]), [1, 1, 0]][rng.integers(2)]}
    return speech_model().decoder, given | some(rng, {"num_threads": 1})


@entry("SpeechSeq2Seq.alignment")
def _alignment(rng: Generator) -> Made:
    given: Arguments = {"encoded": _encoded(), "window": 1, "tokens": np.array([3, 4, 5])}
    return speech_model().alignment, given | some(rng, {"heads": [(0, 1)], "logits": True, "num_threads": 1})


@entry("SpeechDecoder.step")
def _step(rng: Generator) -> Made:
    decoder = speech_model().decoder(_encoded(), [0, 1])
    return decoder.step, {"tokens": [np.array([3, 4]), [5]]} | some(rng, {"last_only": True})


@entry("SpeechDecoder.select")
def _select(rng: Generator) -> Made:
    decoder = speech_model().decoder(_encoded(), [0, 1])
    decoder.step([[3], [4, 5]])
    return decoder.select, {"indices": [np.array([1, 0, 1]), [1]][rng.integers(2)]}


@entry("SpeechSeq2Seq.tokens_of")
def _tokens_of(rng: Generator) -> Made:
    return speech_model().tokens_of, {"texts": ["a", "b"]} | some(rng, {"add_special_tokens": False})


@entry("SpeechSeq2Seq.count_tokens")
def _count_tokens(rng: Generator) -> Made:
    return speech_model().count_tokens, {"texts": ["a", "b"]} | some(rng, {"add_special_tokens": False})


@entry("SpeechSeq2Seq.astype")
def _astype(_: Generator) -> Made:
    return speech_model().astype, {"dtype": "float16"}


@entry("SpeechSeq2Seq.quantize")
def _quantize(_: Generator) -> Made:
    return speech_model().quantize, {"weight_dtype": "int8"}
