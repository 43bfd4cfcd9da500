"""Spans of speech against faster-whisper's, and against the recordings whose silence is known."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from matrix import matrix, nightly
from recordings import recording

from mha_native.speech import _voice_activity
from mha_native.speech._audio import Joined, open_audio
from mha_native.speech._voice_activity import SpanTimes, VadOptions, _found, _padded, speech_spans

SECOND = 16_000


def needs_silero() -> None:
    pytest.importorskip("onnxruntime")
    try:
        _voice_activity._session("test")
    except ImportError as error:
        pytest.skip(str(error))


@matrix(seed=nightly(range(40), quick=range(3)))
def test_spans_are_those_of_faster_whisper(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = pytest.importorskip("faster_whisper.vad")
    rng = np.random.default_rng(seed)
    for _ in range(100):
        length = int(rng.integers(1, 300 * 512))
        windows = length // 512 + 1
        # Speech and silence by turns, with doubt between them.
        turns = np.repeat(rng.random(windows), rng.integers(1, 30, windows))[:windows]
        probabilities = np.clip(turns + rng.normal(0, 0.1, windows), 0, 1).astype(np.float32)
        given: dict[str, Any] = {
            "threshold": float(rng.choice([0.3, 0.5, 0.8])),
            "neg_threshold": rng.choice([None, 0.1]),
            "min_speech_duration_ms": int(rng.choice([0, 100, 500])),
            "max_speech_duration_s": float(rng.choice([0.5, 2.0, np.inf])),
            "min_silence_duration_ms": int(rng.choice([0, 100, 300, 2000])),
            "speech_pad_ms": int(rng.choice([0, 30, 111, 400])),
        }
        monkeypatch.setattr(theirs, "get_vad_model", lambda found=probabilities: lambda audio: found)
        expected = theirs.get_speech_timestamps(np.zeros(length, np.float32), theirs.VadOptions(**given))
        options = VadOptions(**given)
        got = _padded(_found(probabilities, length, options), length, options)
        assert got == [(span["start"], span["end"]) for span in expected], given


def test_the_network_finds_the_voices() -> None:
    needs_silero()
    (first, second) = speech_spans(recording("pauses"))
    assert 6 * SECOND < first[0] < 8 * SECOND < first[1] < 13 * SECOND
    assert first[1] + 4 * SECOND < second[0] < second[1] < len(recording("pauses")) - 5 * SECOND
    assert speech_spans(recording("silence")) == speech_spans(recording("noise")) == []
    assert speech_spans(np.zeros(0, np.float32)) == []
    (whole,) = speech_spans(recording("paragraph"))
    assert whole[0] < SECOND
    assert whole[1] > len(recording("paragraph")) - 2 * SECOND


def test_spans_of_recordings_are_those_of_faster_whisper() -> None:
    needs_silero()
    theirs = pytest.importorskip("faster_whisper.vad")
    for name in ("pauses", "second", "german", "music", "silence"):
        for given in ({}, {"min_silence_duration_ms": 100, "speech_pad_ms": 30, "max_speech_duration_s": 3.0}):
            expected = theirs.get_speech_timestamps(recording(name).copy(), theirs.VadOptions(**given))
            got = speech_spans(open_audio(recording(name)), VadOptions(**given))
            assert got == [(span["start"], span["end"]) for span in expected], (name, given)


def test_the_rule_about_energies() -> None:
    energy = VadOptions(method="energy")
    spans = speech_spans(recording("pauses"), energy)
    assert len(spans) == 2
    assert 6 * SECOND < spans[0][0] < 8 * SECOND
    assert spans[0][1] + 4 * SECOND < spans[1][0]
    assert speech_spans(recording("silence"), energy) == speech_spans(np.zeros(5, np.float32), energy) == []
    assert speech_spans(recording("noise"), energy) == [(0, len(recording("noise")))]  # it may be a voice
    quiet = recording("pauses") * np.float32(0.1)
    np.testing.assert_allclose(speech_spans(quiet, energy), spans, rtol=0, atol=1024)


@pytest.mark.parametrize("method", ["silero", "energy"])
def test_blocks_do_not_change_the_spans(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if method == "silero":
        needs_silero()
    options = VadOptions(method=method, min_silence_duration_ms=200)
    expected = speech_spans(recording("pauses"), options)
    for block in (1, 7, 100):
        monkeypatch.setattr(_voice_activity, "_BLOCK", block)
        assert speech_spans(recording("pauses"), options) == expected


def test_times_are_mapped_back(rng: np.random.Generator) -> None:
    theirs = pytest.importorskip("faster_whisper.vad")
    cuts = np.sort(rng.choice(100 * SECOND, 20, replace=False)).tolist()
    spans = list(zip(cuts[::2], cuts[1::2], strict=True))
    oracle = theirs.SpeechTimestampsMap([{"start": start, "end": end} for start, end in spans], SECOND)
    times = SpanTimes(spans)
    ends = np.cumsum([end - start for start, end in spans]) / SECOND
    for time in (*rng.uniform(0, ends[-1] + 1, 50).tolist(), *ends.tolist(), 0.0):
        for is_end in (False, True):
            assert times.index(time, is_end) == oracle.get_chunk_index(time, is_end)
            assert times.original(time, is_end=is_end) == oracle.get_original_time(time, is_end=is_end)
        assert times.original(time, 2) == oracle.get_original_time(time, 2)


def test_joined_speech_has_no_silence() -> None:
    samples = recording("pauses")
    spans = speech_spans(samples, VadOptions(method="energy"))
    joined = Joined(open_audio(samples), spans)
    assert joined.length < len(samples) - 15 * SECOND
    at = spans[0][0] + SECOND
    assert SpanTimes(spans).original(1.0) == pytest.approx(at / SECOND, abs=0.0051)
    assert (joined.read(SECOND, SECOND + 100) == samples[at : at + 100]).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"threshold": 1.5}, ValueError, "threshold must be from 0 to 1; got 1.5"),
        ({"neg_threshold": -1}, ValueError, "neg_threshold must be from 0 to 1; got -1"),
        ({"threshold": math.inf}, ValueError, "threshold"),
        ({"neg_threshold": math.inf}, ValueError, "neg_threshold"),
        ({"speech_pad_ms": -1}, ValueError, "speech_pad_ms must be at least 0; got -1"),
        ({"max_speech_duration_s": float("nan")}, ValueError, "max_speech_duration_s"),
        ({"min_silence_duration_ms": "2"}, TypeError, "min_silence_duration_ms"),
        ({"method": "loudness"}, ValueError, "method must be silero or energy; got 'loudness'"),
    ],
)
def test_options_out_of_their_range(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^speech_spans: .*{message}"):
        speech_spans(np.zeros(10, np.float32), VadOptions(**options))


def test_without_the_package() -> None:
    code = """
import importlib.util, numpy as np
import mha_native.speech._voice_activity as vad
vad.find_spec = lambda name: None
try:
    vad.speech_spans(np.zeros(5, np.float32))
except ImportError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == (
        "speech_spans: the network of method='silero' is in the package silero-vad: "
        "pip install onnxruntime silero-vad; method='energy' needs no package\n"
    )


def test_sources_and_options_of_other_types_are_refused_by_name() -> None:
    for audio, message in ((3, "audio must be"), (b"x", "audio must be"), ("a\0b", "audio must be a path")):
        with pytest.raises((TypeError, ValueError), match=f"^speech_spans: {message}"):
            speech_spans(audio, VadOptions(method="energy"))
    with pytest.raises(TypeError, match=r"^speech_spans: options must be VadOptions; got 0"):
        speech_spans(np.zeros(10, np.float32), 0)  # type: ignore[arg-type]
