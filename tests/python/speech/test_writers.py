"""Transcripts as files, against the writers of openai-whisper."""

from __future__ import annotations

import io
import itertools
import json
from typing import Any

import numpy as np
import pytest
from matrix import matrix, nightly

from mha_native.speech import Segment, Word
from mha_native.speech._writers import WRITERS, Layout

WORDS = (" It", " is", " an", " ancient", " Mariner,", " --> and", " he\tstoppeth", " one", " of", " three.", "'s", " ")


def drawn(rng: np.random.Generator, has_words: bool) -> list[Segment]:
    """Segments of a transcript, some without words, some after a pause."""
    found, time = [], float(rng.choice([0.0, 3599.5]))
    for number in range(int(rng.integers(0, 6))):
        words = []
        for text in rng.choice(WORDS, int(rng.integers(0, 25))).tolist():
            end = round(time + float(rng.choice([0.0, 0.2, 0.514])), 2)
            words.append(Word(time, end, text, 0.5))
            time = round(end + float(rng.choice([0.0, 0.0, 0.1, 3.5])), 2)
        text = "".join(word.word for word in words)
        start, end = (words[0].start, words[-1].end) if words else (time, time)
        segment = Segment(
            number + 1, 300, start, end, text, [7, 8], -0.25, 1.1, 0.01, words if has_words else None, 0.0
        )
        found.append(segment)
    return found


def as_openai(segments: list[Segment]) -> dict[str, Any]:
    """The result that openai-whisper has for the same transcript."""
    found = []
    for segment in segments:
        names = ("id", "seek", "start", "end", "text", "tokens", "temperature")
        names += ("avg_logprob", "compression_ratio", "no_speech_prob")
        each = {name: getattr(segment, name) for name in names}
        each["id"] -= 1
        if segment.words is not None:
            names = ("word", "start", "end", "probability")
            each["words"] = [{name: getattr(word, name) for name in names} for word in segment.words]
        found.append(each)
    return {"text": "".join(segment.text for segment in segments), "segments": found, "language": "en"}


@matrix(seed=nightly(range(50), quick=range(2)))
def test_files_are_those_of_openai(seed: int) -> None:
    utils = pytest.importorskip("whisper.utils")
    rng = np.random.default_rng(seed)
    for _, has_words in itertools.product(range(25), (False, True)):
        segments = drawn(rng, has_words)
        given: dict[str, Any] = {
            "max_line_width": rng.choice([None, 10, 42]),
            "max_line_count": rng.choice([None, 1, 2]),
            "max_words_per_line": rng.choice([None, 1, 4]),
            "highlight_words": bool(rng.integers(2)),
        }
        for form, write in WRITERS.items():
            expected = io.StringIO()
            utils.get_writer(form, ".").write_result(as_openai(segments), expected, given)
            assert "".join(write(iter(segments), "en", Layout(**given))) == expected.getvalue(), (form, given)


def test_text_appears_while_it_is_transcribed() -> None:
    """Each segment is written before the next one is asked for."""
    segment = Segment(1, 0, 0.0, 1.5, " Hello.", [1], -0.2, 0.5, 0.01, None, 0.0)
    asked = 0

    def segments() -> Any:
        nonlocal asked
        for _ in range(3):
            asked += 1
            yield segment

    for form, head in (("txt", 0), ("srt", 0), ("tsv", 1), ("vtt", 1)):
        asked = 0
        pieces = WRITERS[form](segments(), "en", Layout())
        for _ in range(head):
            next(pieces)
        for count in (1, 2, 3):
            next(pieces)
            assert asked == count
    assert json.loads("".join(WRITERS["json"](segments(), "en", Layout())))["text"] == " Hello. Hello. Hello."
