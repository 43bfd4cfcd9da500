"""The call of faster-whisper on Whisper tiny.en and spoken recordings."""

from __future__ import annotations

import inspect
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from recordings import recording

from mha_native.speech import BatchedInferencePipeline, Segment, WhisperModel
from mha_native.speech._transcribe import Transcriber


@pytest.fixture(scope="module")
def model(speech_model_directory: Path) -> WhisperModel:
    return WhisperModel(str(speech_model_directory))


def text(segments: Any) -> str:
    return "".join(segment.text for segment in segments)


def test_a_recording_has_its_text_and_the_facts_about_it(model: WhisperModel) -> None:
    segments, info = model.transcribe(recording("sentence"), beam_size=2, language="en")
    (segment,) = segments
    assert "ancient mariner" in segment.text.lower()
    assert (segment.id, segment.seek, segment.words, segment.temperature) == (1, 0, None, 0.0)
    assert 0 <= segment.start < 1 < segment.end <= 3.2
    assert -1 < segment.avg_logprob < 0 < segment.no_speech_prob < 0.5
    assert segment.tokens[0] >= model._calls.tokens.first_timestamp
    assert (info.language, info.language_probability, info.all_language_probs) == ("en", 1, None)
    assert info.duration == info.duration_after_vad == pytest.approx(len(recording("sentence")) / 16000)
    assert (info.transcription_options.beam_size, info.transcription_options.clip_timestamps) == (2, [0.0])


def test_segments_are_computed_as_they_are_asked_for(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    windows: list[int] = []
    best_attempt = Transcriber.best_attempt

    def counted(self: Transcriber, encoded: Any, prompt: Any, seed: int) -> Any:
        windows.append(seed)
        return best_attempt(self, encoded, prompt, seed)

    monkeypatch.setattr(Transcriber, "best_attempt", counted)
    segments, _ = model.transcribe(recording("five_minutes"), beam_size=1)
    assert windows == []
    assert isinstance(next(segments), Segment)
    assert windows == [0]
    segments.close()  # type: ignore[attr-defined]
    assert list(segments) == []
    assert windows == [0]


def test_a_window_begins_where_the_last_segment_ends_and_reads_the_text_before(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: list[list[int]] = []
    best_attempt = Transcriber.best_attempt

    def kept(self: Transcriber, encoded: Any, prompt: Any, seed: int) -> Any:
        prompts.append(prompt.tokens)
        return best_attempt(self, encoded, prompt, seed)

    monkeypatch.setattr(Transcriber, "best_attempt", kept)
    samples = recording("five_minutes")[: 40 * 16000]
    options: dict[str, Any] = {"beam_size": 1, "temperature": 0.0}
    segments = list(model.transcribe(samples, initial_prompt="A poem.", **options)[0])
    first, second = (list(group) for _, group in itertools.groupby(segments, key=lambda each: each.seek))
    assert 0 < second[0].seek <= round(first[-1].end * 100)
    begin = model._calls.tokens.encode(" A poem.")
    assert prompts[0] == [model._calls.tokens.previous, *begin, model._calls.tokens.start]
    before = [token for segment in first for token in segment.tokens]
    assert prompts[1] == [model._calls.tokens.previous, *begin, *before, model._calls.tokens.start]
    prompts.clear()
    list(model.transcribe(samples, condition_on_previous_text=False, initial_prompt=begin, **options)[0])
    assert prompts == [[model._calls.tokens.previous, *begin, model._calls.tokens.start], [model._calls.tokens.start]]


def test_a_text_that_fails_is_drawn_at_higher_temperatures_the_same_each_time(model: WhisperModel) -> None:
    options: dict[str, Any] = {"temperature": [0.0, 0.4, 0.8], "best_of": 2, "beam_size": 1}
    samples = recording("second")
    first, again = (list(model.transcribe(samples, log_prob_threshold=-1e-3, **options)[0]) for _ in range(2))
    assert first == again
    assert {segment.temperature for segment in first} == {0.8}  # the last one that was tried
    (usual,) = model.transcribe(samples, **options)[0]
    assert usual.temperature == 0
    (repeats,) = model.transcribe(samples, compression_ratio_threshold=0.0, **options)[0]
    assert repeats.temperature == 0.8


def test_silence_has_no_text(model: WhisperModel) -> None:
    samples = np.concatenate([recording("silence"), recording("sentence"), np.zeros(25 * 16000, np.float32)])
    assert list(model.transcribe(recording("silence"), beam_size=1)[0]) == []
    found = list(model.transcribe(samples, beam_size=1, clip_timestamps=[10.0, 14.0])[0])
    assert "mariner" in text(found).lower()
    assert found[0].start == pytest.approx(10, abs=0.5)
    assert found[0].seek == 1000
    # Without the rule, something is written.
    assert list(model.transcribe(recording("silence"), beam_size=1, no_speech_threshold=None, temperature=0.0)[0])


def test_empty_recordings_have_no_segments(model: WhisperModel) -> None:
    for samples in (np.zeros(0, np.float32), np.zeros(100, np.float32)):
        segments, info = model.transcribe(samples)
        assert list(segments) == []
        assert info.duration == len(samples) / 16000


def test_the_prefix_begins_the_text_and_suppressed_tokens_are_not_in_it(model: WhisperModel) -> None:
    samples, greedy = recording("sentence"), {"beam_size": 1, "without_timestamps": True}
    (segment,) = model.transcribe(samples, prefix="Once there was", **greedy)[0]
    assert segment.text.startswith(" Once there was")
    mariner = model._calls.tokens.encode(" mariner")
    (segment,) = model.transcribe(samples, suppress_tokens=[-1, *mariner], **greedy)[0]
    assert not set(mariner) & set(segment.tokens)
    (segment,) = model.transcribe(samples, max_new_tokens=4, **greedy)[0]
    assert len(segment.tokens) == 4


def test_batches_have_the_text_of_windows_alone(model: WhisperModel) -> None:
    samples, pipeline = recording("five_minutes")[: 50 * 16000], BatchedInferencePipeline(model)
    clips = [{"start": float(start), "end": start + 10.0} for start in range(0, 50, 10)]
    options: dict[str, Any] = {"beam_size": 2, "temperature": 0.0}
    segments, info = pipeline.transcribe(samples, clip_timestamps=clips, batch_size=3, **options)
    together = list(segments)
    assert [segment.id for segment in together] == [1, 2, 3, 4, 5]
    assert [segment.seek for segment in together] == [0, 1000, 2000, 3000, 4000]
    assert info.duration_after_vad == 50
    alone = [
        segment
        for clip in clips
        for segment in pipeline.transcribe(samples, clip_timestamps=[clip], batch_size=1, **options)[0]
    ]
    assert [(each.tokens, each.avg_logprob, each.start) for each in together] == [
        (each.tokens, each.avg_logprob, each.start) for each in alone
    ]
    (one,) = model.transcribe(samples[: 10 * 16000], without_timestamps=True, **options)[0]
    assert one.tokens == together[0].tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "beam_size must be at least 1; got 0"),
        ({"patience": 0}, "patience must be above 0; got 0"),
        ({"temperature": []}, "temperature must have at least one number"),
        ({"temperature": [0.0, -0.1]}, "temperature must be at least 0; got -0.1"),
        ({"no_speech_threshold": float("nan")}, "no_speech_threshold must be"),
        ({"chunk_length": 31}, "chunk_length must be from 1 to 30; got 31"),
        ({"task": "sing"}, "task must be 'transcribe' or 'translate'; got 'sing'"),
        ({"task": "translate"}, "task='translate' needs a model of several languages"),
        ({"multilingual": True}, "multilingual=True needs a model of several languages"),
        ({"language": "de"}, "language must be 'en' for a model of English; got 'de'"),
        ({"language": "xx"}, "language must be a code of the model"),
        ({"suppress_tokens": [99999]}, "a token of suppress_tokens must be from -1 to 51863; got 99999"),
        ({"initial_prompt": [-2]}, "a token of initial_prompt must be from 0"),
        ({"prefix": "a\ud800"}, "prefix holds half of a surrogate pair; got 'a\\ud800'"),
        ({"hotwords": "\udc00"}, "hotwords holds half of a surrogate pair"),
        ({"initial_prompt": "\ud800"}, "initial_prompt holds half of a surrogate pair"),
        ({"clip_timestamps": "0,x"}, "clip_timestamps must be seconds with commas between them; got '0,x'"),
        ({"clip_timestamps": [-1.0]}, "a time of clip_timestamps must be from 0 to 1e+09; got -1.0"),
        ({"clip_timestamps": [1e308]}, "a time of clip_timestamps must be from 0 to 1e+09; got 1e+308"),
        ({"task": np.array(["transcribe", "x"])}, "task must be 'transcribe' or 'translate'; got "),
        ({"prefix": "so " * 400, "max_new_tokens": 300}, "max_new_tokens must be at most 223 after a prompt of 225"),
    ],
)
def test_bad_arguments_are_named_at_the_call(model: WhisperModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        model.transcribe(recording("second"), **options)
    assert str(caught.value).startswith("WhisperModel.transcribe: ")


def test_unsupported_settings_are_refused(model: WhisperModel, speech_model_directory: Path) -> None:
    folder = str(speech_model_directory)
    for options, message in (
        ({"device": "cuda"}, "device must be 'cpu'"),
        ({"device_index": 1}, "device_index must be 0"),
        ({"compute_type": "float16"}, "compute_type must be one of default, auto, float32"),
        ({"compute_type": "int8", "weight_dtype": "int8"}, "exclude each other"),
        ({"files": {}}, "files must be None"),
        ({"num_workers": 0}, "num_workers must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            WhisperModel(folder, **options)
    with pytest.raises(TypeError, match="unexpected keyword argument 'flash_attention'"):
        WhisperModel(folder, flash_attention=True)
    with pytest.raises(FileNotFoundError, match=r"Systran/faster-whisper-tiny is not in the cache .*local_files_only"):
        WhisperModel("whisper-tiny", local_files_only=True, download_root="/nonexistent")
    with pytest.raises(ValueError, match="must know several languages"):
        model.detect_language(recording("second"))
    pipeline = BatchedInferencePipeline(model)
    with pytest.raises(ValueError, match="prefix must be None"):
        pipeline.transcribe(recording("second"), prefix="so")
    with pytest.raises(ValueError, match="clip_timestamps must end at most 30 s after their start"):
        pipeline.transcribe(recording("second"), clip_timestamps=[{"start": 1, "end": 31.5}])
    with pytest.raises(ValueError, match=r"30\.1 s needs vad_filter or clip_timestamps"):
        pipeline.transcribe(np.zeros(481600, np.float32), vad_filter=False)
    with pytest.raises(TypeError, match="clip_timestamps must be a list of dicts; got 3"):
        pipeline.transcribe(recording("second"), clip_timestamps=3)  # type: ignore[arg-type]


def test_arguments_are_those_of_faster_whisper() -> None:
    peer = pytest.importorskip("faster_whisper")
    pytest.importorskip("faster_whisper.transcribe")
    for ours, theirs in (
        (WhisperModel.transcribe, peer.WhisperModel.transcribe),
        (WhisperModel.detect_language, peer.WhisperModel.detect_language),
        (BatchedInferencePipeline.transcribe, peer.BatchedInferencePipeline.transcribe),
    ):
        own, other = (inspect.signature(function).parameters for function in (ours, theirs))
        assert list(own) == list(other)
        for name, parameter in other.items():
            default = own[name].default
            if isinstance(default, tuple):  # of a list there
                default = list(default)
            assert default == parameter.default, name
    assert set(inspect.signature(peer.WhisperModel).parameters) <= set(inspect.signature(WhisperModel).parameters)
    for record in ("Segment", "Word", "TranscriptionInfo", "TranscriptionOptions"):
        import mha_native.speech

        own, other = (
            inspect.signature(getattr(module, record)).parameters for module in (mha_native.speech, peer.transcribe)
        )
        assert list(own) == list(other)


def test_an_argument_that_there_is_not_is_named(model: WhisperModel) -> None:
    pipeline = BatchedInferencePipeline(model)
    with pytest.raises(TypeError, match=r"^BatchedInferencePipeline\.transcribe\(\) got an unexpected .*'beams'$"):
        pipeline.transcribe(recording("second"), beams=2)
    with pytest.raises(TypeError, match=r"transcribe\(\) missing a required argument: 'audio'$"):
        pipeline.transcribe()
    with pytest.raises(ValueError, match="language must be 'en' for a model of English; got 'de'"):
        pipeline.transcribe(recording("second"), "de")  # at its place
