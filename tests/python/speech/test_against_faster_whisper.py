"""Tokens of Whisper tiny.en are those of faster-whisper in float32, with timestamps and without, greedy and by beams.

The suite compares a few recordings with tokens that faster-whisper gave. With faster-whisper installed, this writes
them again, after a comparison of all recordings, also of the times of words:

    PYTHONPATH=python:tests/python/support MHA_NATIVE_SPEECH_MODEL=... \
        python tests/python/speech/test_against_faster_whisper.py
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import RECORDINGS, recording

pytest.importorskip("tokenizers")

from mha_native.speech import BatchedInferencePipeline, WhisperModel

FILE = Path(__file__).with_name("whisper_tokens.json")

# Options of a call by their names in the file.
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"beam_size": 1},
    "greedy, without timestamps": {"beam_size": 1, "without_timestamps": True},
    "beams": {"beam_size": 5},
    "beams, without timestamps": {"beam_size": 5, "without_timestamps": True},
    "every rule": {
        **{"beam_size": 3, "patience": 2.0, "length_penalty": 0.6, "repetition_penalty": 1.2},
        **{"no_repeat_ngram_size": 3, "suppress_tokens": [], "suppress_blank": False, "max_initial_timestamp": 0.4},
        **{"initial_prompt": "A poem about the sea.", "prefix": "So", "hotwords": "harbour kirk", "chunk_length": 20},
    },
    "words": {"beam_size": 5, "word_timestamps": True, "hallucination_silence_threshold": 1.0},
}
# What the suite compares.
CASES = [
    *(("sentence", options) for options in OPTIONS),
    *(("pauses", options) for options in ("every rule", "words")),
    *((name, "beams") for name in ("second", "silence", "german")),
]

Result = list[list[Any]]


def transcribed(model: Any, samples: np.ndarray, options: str) -> Result:
    """The segments of a recording: the frame of the window, the tokens, and the words with their times."""
    segments, _ = model.transcribe(samples, temperature=0.0, **OPTIONS[options])
    found: Result = []
    for segment in segments:
        words = [[word.word, round(float(word.start), 2), round(float(word.end), 2)] for word in segment.words or ()]
        found.append([segment.seek, list(segment.tokens), words])
    return found


def digest(samples: np.ndarray) -> str:
    return hashlib.sha256(samples.tobytes()).hexdigest()[:16]


@pytest.fixture(scope="module")
def model(speech_model_directory: Path) -> WhisperModel:
    return WhisperModel(str(speech_model_directory))


@pytest.mark.parametrize(("name", "options"), CASES)
def test_tokens_and_words_are_those_of_faster_whisper(model: WhisperModel, name: str, options: str) -> None:
    kept = json.loads(FILE.read_text())
    samples = recording(name)
    if kept["recordings"][name] != digest(samples):
        pytest.skip("another version of the programs that speak made another recording")
    assert transcribed(model, samples, options) == kept["segments"][f"{name}: {options}"]


def main() -> None:
    import faster_whisper

    folder = os.environ["MHA_NATIVE_SPEECH_MODEL"]
    ours = WhisperModel(folder, cpu_threads=2)

    def new_peer() -> Any:
        """A model of its own for each call: chunk_length changes it for later calls."""
        return faster_whisper.WhisperModel(folder, device="cpu", compute_type="float32", cpu_threads=2)

    kept: dict[str, dict[str, Any]] = {"recordings": {}, "segments": {}}
    for name in RECORDINGS:
        samples = recording(name)
        for options in OPTIONS:
            expected = transcribed(new_peer(), samples, options)
            found = transcribed(ours, samples, options)
            apart = 0.0
            for (seek, tokens, words), (peer_seek, peer_tokens, peer_words) in zip(found, expected, strict=True):
                assert (seek, tokens) == (peer_seek, peer_tokens), (name, options, seek)
                for word, peer_word in zip(words, peer_words, strict=True):
                    assert word[0] == peer_word[0]
                    apart = max(apart, abs(word[1] - peer_word[1]), abs(word[2] - peer_word[2]))
            print(f"{name}, {options}: {len(found)} segments are equal, words at most {apart:.2f} s apart", flush=True)
            assert apart <= 0.02
            if (name, options) in CASES:
                kept["recordings"][name] = digest(samples)
                kept["segments"][f"{name}: {options}"] = expected
    FILE.write_text(json.dumps(kept, separators=(",", ":")).replace('],"', '],\n"') + "\n")
    for beam_size in (1, 5):  # windows at once
        samples = recording("five_minutes")
        clips = [{"start": float(start), "end": start + 20.0} for start in range(0, 300, 20)]
        given: dict[str, Any] = {"clip_timestamps": clips, "beam_size": beam_size, "batch_size": 5, "temperature": 0.0}
        found, expected = (
            [list(segment.tokens) for segment in pipeline.transcribe(samples, **given)[0]]
            for pipeline in (BatchedInferencePipeline(ours), faster_whisper.BatchedInferencePipeline(new_peer()))
        )
        assert found == expected
        print(f"15 windows at once, {beam_size} beams: equal")


if __name__ == "__main__":
    main()
