"""Languages, and the words and batches that depend on them, on a tiny Whisper of two languages with random weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

import tiny_whisper

from mha_native.speech import BatchedInferencePipeline, WhisperModel
from mha_native.speech._transcribe import Transcriber

SAMPLES = np.random.default_rng(3).standard_normal(16000 * 3 // 2).astype(np.float32) / 4  # four windows
# Texts of random weights are improbable. They are words here, and each window is a segment.
OPTIONS: dict[str, Any] = {
    **{"temperature": 0.0, "no_speech_threshold": None, "beam_size": 2, "without_timestamps": True},
    "suppress_tokens": range(6, tiny_whisper.SIZE),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> WhisperModel:
    return WhisperModel(tiny_whisper.write(tmp_path_factory.mktemp("tiny_whisper")))


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The prompts of all windows that are transcribed."""
    kept: list[list[int]] = []
    attempts = Transcriber.attempts

    def keep(self: Transcriber, encoded: Any, windows: Any, given: Any, *more: Any) -> Any:
        kept.extend(prompt.tokens for prompt in given)
        return attempts(self, encoded, windows, given, *more)

    monkeypatch.setattr(Transcriber, "attempts", keep)
    return kept


def test_the_language_is_the_first_probable_one_or_the_most_frequent(model: WhisperModel) -> None:
    assert model.supported_languages == ["de", "en"]
    likely, probability, shares = model.detect_language(SAMPLES)
    assert shares[0] == (likely, probability)
    assert sum(share for _, share in shares) == pytest.approx(1)
    assert sorted(share for _, share in shares) == [share for _, share in shares[::-1]]
    features = model._calls.mel(SAMPLES, padding=160)[:, :150]
    assert model.detect_language(features=features)[:2] == pytest.approx((likely, probability))
    windows = [model.detect_language(features=features[:, first : first + 40]) for first in range(0, 150, 40)]
    voted, highest, last = model.detect_language(
        SAMPLES, language_detection_segments=4, language_detection_threshold=1.1
    )
    names = [language for language, _, _ in windows]
    assert voted == max(dict.fromkeys(names), key=names.count)
    assert highest == pytest.approx(max(share for language, share, _ in windows if language == voted), abs=1e-6)
    assert dict(last) == pytest.approx(dict(windows[-1][2]), abs=1e-6)


@pytest.mark.parametrize(
    ("features", "error", "message"),
    [
        (
            np.zeros((80, 0), np.float32),
            ValueError,
            r"features must be \[80, frames\] with a frame at least; got \[80, 0\]",
        ),
        (np.zeros((128, 9), np.float32), ValueError, r"features must be .*; got \[128, 9\]"),
        (np.zeros((80, 9), int), TypeError, "features must be an array of a float dtype"),
        (None, ValueError, "needs audio or features"),
    ],
)
def test_bad_features_are_named(model: WhisperModel, features: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^WhisperModel.detect_language: {message}"):
        model.detect_language(features=features)


def test_prompts_have_the_language_and_the_task(model: WhisperModel, prompts: list[list[int]]) -> None:
    tokens = model._calls.tokens
    segments, info = model.transcribe(SAMPLES, task="translate", condition_on_previous_text=False, **OPTIONS)
    assert prompts == []
    list(segments)
    language = model.detect_language(SAMPLES)
    assert (info.language, info.language_probability, info.all_language_probs) == language
    translate = tokens.tasks["translate"]
    begin = [tokens.start, tokens.languages[info.language], translate, tokens.no_timestamps]
    assert prompts == [begin] * 4
    prompts.clear()
    options = OPTIONS | {"condition_on_previous_text": False}
    list(model.transcribe(SAMPLES, language="de", multilingual=True, **options)[0])
    features = model._calls.mel(SAMPLES, padding=160)
    names = [
        model.detect_language(features=features[:, first : min(first + 40, 150)])[0] for first in range(0, 150, 40)
    ]
    assert [prompt[1] for prompt in prompts] == [tokens.languages[name] for name in names]
    prompts.clear()
    list(model.transcribe(SAMPLES, language="de", **options)[0])
    assert {prompt[1] for prompt in prompts} == {tokens.languages["de"]}


def test_windows_at_once_have_their_languages_and_words(model: WhisperModel, prompts: list[list[int]]) -> None:
    pipeline = BatchedInferencePipeline(model)
    clips = [{"start": 0.4 * i, "end": 0.4 * i + 0.3} for i in range(4)]
    options = OPTIONS | {"multilingual": True, "word_timestamps": True, "language": "en"}
    together = list(pipeline.transcribe(SAMPLES, clip_timestamps=clips, batch_size=3, **options)[0])
    first = list(prompts)
    prompts.clear()
    alone = [
        segment
        for clip in clips
        for segment in pipeline.transcribe(SAMPLES, clip_timestamps=[clip], batch_size=1, **options)[0]
    ]
    assert first == prompts
    assert len(first) == 4
    assert [segment.tokens for segment in together] == [segment.tokens for segment in alone]
    assert together
    for segment in together:
        assert segment.words
        assert "".join(word.word for word in segment.words).split() == segment.text.split()
        times = [time for word in segment.words for time in (word.start, word.end)]
        assert times == sorted(times)
        assert segment.start <= times[0]


def test_the_filter_of_voices_leaves_out_silence_and_times_are_those_of_the_recording(model: WhisperModel) -> None:
    silence = np.zeros(16000 * 3, np.float32)
    loud = np.sin(np.arange(16000) / 10, dtype=np.float32)
    samples = np.concatenate([silence, loud, silence, loud, silence])
    filtered: dict[str, Any] = {"vad_filter": True, "vad_parameters": {"method": "energy", "speech_pad_ms": 0}}
    for call in (model.transcribe, BatchedInferencePipeline(model).transcribe):
        segments, info = call(samples, **filtered, language="en", **OPTIONS)
        found = list(segments)
        assert info.duration == 11
        assert info.duration_after_vad == pytest.approx(2, abs=0.2)
        assert info.vad_options.method == "energy"
        assert found
        for segment in found:
            assert 2.9 < segment.start < 4.1 or 6.9 < segment.start < 8.1
            assert 2.9 < segment.end < 4.1 or 6.9 < segment.end < 8.1
        quiet, info = call(silence, **filtered, **OPTIONS)
        assert list(quiet) == []
        assert info.duration_after_vad == 0
