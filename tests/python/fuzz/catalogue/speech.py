"""Transcripts of speech, and recordings."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import tiny_whisper

from mha_native.speech import (
    BatchedInferencePipeline,
    VadOptions,
    WhisperModel,
    audio_blocks,
    decode_audio,
    speech_spans,
    transcribe_stream,
)

from .entry import Arguments, Generator, Made, entry, normal, some


@functools.cache
def _folder() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    folder = tempfile.TemporaryDirectory()
    return folder, tiny_whisper.write(Path(folder.name))


@functools.cache
def _model() -> WhisperModel:
    return WhisperModel(_folder()[1])


def _vad(rng: Generator) -> Arguments:
    times = {"min_speech_duration_ms": 20, "max_speech_duration_s": 0.2, "min_silence_duration_ms": 40}
    more = {"threshold": 0.4, "neg_threshold": 0.1, "speech_pad_ms": 10}
    return {"method": "energy"} | some(rng, times | more)


def _rules(rng: Generator) -> Arguments:
    given = {
        "audio": normal(rng, 8000) / 4,
        "temperature": [0.0, [0.0, 0.5]][rng.integers(2)],
        "clip_timestamps": "0",
    }
    more = {
        "language": "en", "task": "translate", "log_progress": False, "beam_size": 2, "best_of": 2, "patience": 1.5,
        "length_penalty": 0.5, "repetition_penalty": 1.1, "no_repeat_ngram_size": 2,
        "compression_ratio_threshold": 2.0, "log_prob_threshold": None, "no_speech_threshold": 0.5,
        "condition_on_previous_text": False, "prompt_reset_on_temperature": 0.4, "initial_prompt": "red",
        "suppress_blank": False, "suppress_tokens": [-1, 2], "without_timestamps": True,
        "max_initial_timestamp": 0.2, "prepend_punctuations": "(", "append_punctuations": ")", "multilingual": True,
        "vad_filter": True, "vad_parameters": _vad(rng), "max_new_tokens": 3, "hotwords": "blue",
        "language_detection_threshold": 0.4, "language_detection_segments": 2,
    }  # fmt: skip
    return given | some(rng, more)


@entry("WhisperModel")
def _open(rng: Generator) -> Made:
    more = {"device": "cpu", "device_index": 0, "weight_dtype": "int8", "cpu_threads": 1, "num_workers": 2}
    return WhisperModel, {"model_size_or_path": _folder()[1], "local_files_only": True} | some(rng, more)


@entry("WhisperModel.transcribe")
def _transcribe(rng: Generator) -> Made:
    return _model().transcribe, _rules(rng) | some(rng, {"prefix": "green"})


@entry("WhisperModel.detect_language")
def _detect_language(rng: Generator) -> Made:
    given: Arguments = {"audio": normal(rng, 8000)} if rng.random() < 0.5 else {"features": normal(rng, 80, 60)}
    more = {"language_detection_segments": 2, "language_detection_threshold": 0.9}
    return _model().detect_language, given | some(rng, more)


@entry("BatchedInferencePipeline.transcribe")
def _batched(rng: Generator) -> Made:
    clips = [{"start": 0.0, "end": 0.3}, {"start": 0.3, "end": 0.5}]
    given = _rules(rng) | {"clip_timestamps": clips, "temperature": 0.0}
    return BatchedInferencePipeline(_model()).transcribe, given | some(rng, {"batch_size": 2})


@entry("BatchedInferencePipeline")
def _pipeline(_: Generator) -> Made:
    return BatchedInferencePipeline, {"model": _model()}


def _source(rng: Generator) -> Arguments:
    given: Arguments = {
        "source": [normal(rng, 800) / 4, np.arange(800, dtype=np.int16).reshape(-1, 2)][rng.integers(2)]
    }
    return given | some(rng, {"sampling_rate": 8000, "source_rate": 16_000})


@entry("decode_audio")
def _decode_audio(rng: Generator) -> Made:
    return decode_audio, _source(rng) | some(rng, {"split_stereo": True})


@entry("audio_blocks")
def _audio_blocks(rng: Generator) -> Made:
    return audio_blocks, _source(rng) | some(rng, {"seconds": 0.1})


@entry("speech_spans")
def _speech_spans(rng: Generator) -> Made:
    return speech_spans, {"audio": normal(rng, 8000) / 4, "options": VadOptions(**_vad(rng))}


@entry("transcribe_stream")
def _transcribe_stream(rng: Generator) -> Made:
    given: Arguments = {"model": _model(), "blocks": [normal(rng, 1600) / 4, normal(rng, 800) / 4]}
    return transcribe_stream, given | some(rng, {"sampling_rate": 16_000, "step_seconds": 0.5, "language": "en"})
