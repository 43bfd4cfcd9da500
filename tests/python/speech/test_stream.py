"""Transcripts of streams: what stays, what may change, and what is kept in memory."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from recordings import recording

from mha_native.speech import WhisperModel, Word
from mha_native.speech._stream import transcribe_stream

RATE = 16_000


class Scripted:
    """A model that hears a word for each second of sound: its number, by the level of its samples.

    It mishears a word at the end of what it is given.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self.prompts: list[str | None] = []

    def transcribe(self, samples: NDArray[np.float32], **options: Any) -> tuple[list[Any], None]:
        assert options.pop("word_timestamps") is True
        assert options.pop("condition_on_previous_text") is False
        self.prompts.append(options.pop("initial_prompt"))
        assert options == {"temperature": 0.0, "language": "en"}
        self.longest = max(self.longest, len(samples) / RATE)
        levels = np.round(samples * 1000).astype(int)
        places = np.flatnonzero(np.diff(levels, prepend=levels[0] - 1))
        words = []
        for begin, end in zip(places, [*places[1:], len(samples)], strict=True):
            if level := int(levels[begin]):
                words.append(Word(begin / RATE, end / RATE, f" w{level}", 0.9))
        if words and words[-1].end == len(samples) / RATE:
            words[-1].word = f" misheard{len(samples)}"
        return [SimpleNamespace(words=words)], None


def blocks(seconds: int, size: int, silence: range = range(0)) -> Iterator[NDArray[np.float32]]:
    """A sound whose level changes each second."""
    levels = [0 if second in silence else second + 1 for second in range(seconds)]
    samples = np.repeat(np.array(levels, np.float32) / 1000, RATE)
    return (samples[start : start + size] for start in range(0, len(samples), size))


@pytest.mark.parametrize("size", [700, 16_000, 50_001])
def test_stable_text_is_the_transcript_and_memory_is_flat(size: int) -> None:
    model: Any = Scripted()
    texts = list(transcribe_stream(model, blocks(120, size), language="en", initial_prompt="Numbers."))
    whole = "".join(text.stable for text in texts)
    assert whole.split()[:-1] == [f"w{number}" for number in range(1, 120)]
    assert texts[-1].tentative == ""
    assert all("misheard" not in text.stable for text in texts[:-1])
    assert all("misheard" in text.tentative for text in texts[:-1])
    assert model.longest < 15
    assert model.prompts[0] == "Numbers."
    assert model.prompts[-1] in whole


def test_silence_is_dropped() -> None:
    model: Any = Scripted()
    texts = list(transcribe_stream(model, blocks(100, 8_000, range(5, 90)), language="en"))
    words = "".join(text.stable for text in texts).split()
    assert words[:-1] == [f"w{number}" for number in (*range(1, 6), *range(91, 100))]
    assert model.longest < 15


def test_a_stream_has_nearly_the_text_of_the_whole(speech_model_directory: Path) -> None:
    model = WhisperModel(speech_model_directory)
    samples = recording("paragraph")[: 9 * RATE]
    expected = "".join(segment.text for segment in model.transcribe(samples, beam_size=1)[0])
    pieces = (
        np.round(samples[start : start + 8_000] * 32767).astype(np.int16) for start in range(0, len(samples), 8_000)
    )
    texts = list(transcribe_stream(model, pieces, step_seconds=3.0, beam_size=1))
    got = "".join(text.stable for text in texts)
    assert len(texts) == 4
    assert any(text.stable for text in texts[:3])  # not only at the end
    assert difflib.SequenceMatcher(None, got.split(), expected.split()).ratio() > 0.85, (got, expected)


def test_the_rate_of_the_blocks() -> None:
    pytest.importorskip("soxr")
    model: Any = Scripted()
    doubled = (np.repeat(block, 2) for block in blocks(8, 16_000))
    texts = list(transcribe_stream(model, doubled, sampling_rate=2 * RATE, language="en"))
    assert "w3" in "".join(text.stable for text in texts).split()
    assert len(texts) == 9


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"word_timestamps": True}, TypeError, "a stream chooses word_timestamps itself"),
        ({"step_seconds": 0}, ValueError, "step_seconds must be above 0 and at most 14; got 0"),
        ({"sampling_rate": 0}, ValueError, "sampling_rate must be at least 1; got 0"),
    ],
)
def test_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    model: Any = Scripted()
    with pytest.raises(error, match=f"^transcribe_stream: {message}"):
        transcribe_stream(model, [], **arguments)


def test_blocks_that_are_no_audio() -> None:
    model: Any = Scripted()
    with pytest.raises(ValueError, match=r"^transcribe_stream: source must have finite samples; sample 1 is nan$"):
        list(transcribe_stream(model, [np.float32([0, np.nan])]))
    assert [text.stable for text in transcribe_stream(model, [])] == [""]
