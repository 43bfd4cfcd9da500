"""`BatchedInferencePipeline`: many windows of a recording at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..functions.messages import in_the_name_of, shown
from ._audio import SAMPLING_RATE, Audio, AudioSource, Joined, open_audio
from ._calls import in_recording, takes_arguments_of, vad_options_of, with_progress
from ._mel import HOP
from ._options import Segment, TranscriptionInfo, checked_seconds
from ._transcribe import FRAMES_PER_SECOND, Transcriber, compression_ratio, filled, language_probabilities
from ._voice_activity import SpanTimes, speech_spans
from ._word_times import HeardWindow, add_words
from .whisper_model import WhisperModel

_USUAL_SILENCE = 160  # milliseconds between windows, by default


class Chunk(NamedTuple):
    """A part of a recording that is read as one window, in samples."""

    start: int
    end: int


class BatchedInferencePipeline:
    """Transcribes many windows of a recording at once, by the call of faster-whisper 1.2.

    A voice-activity filter finds the windows. Each has the text that it has alone.

    Parameters
    ----------
    model : WhisperModel

    Examples
    --------
    >>> from mha_native.speech import BatchedInferencePipeline, WhisperModel
    >>> pipeline = BatchedInferencePipeline(WhisperModel("tiny.en"))
    >>> segments, info = pipeline.transcribe("talk.wav", batch_size=16, vad_filter=False)
    >>> text = "".join(segment.text for segment in segments)
    """

    def __init__(self, model: WhisperModel) -> None:
        if not isinstance(model, WhisperModel):
            raise TypeError(f"BatchedInferencePipeline: model must be a WhisperModel; got {shown(model)}")
        self.model = model

    @takes_arguments_of(WhisperModel.transcribe)
    def transcribe(
        self,
        audio: AudioSource,
        without_timestamps: bool = True,
        vad_filter: bool = True,
        clip_timestamps: Sequence[Mapping[str, float]] | None = None,
        hallucination_silence_threshold: float | None = None,
        batch_size: int = 8,
        **options: Any,
    ) -> tuple[Iterator[Segment], TranscriptionInfo]:
        """Transcribe a recording, `batch_size` windows at once.

        Parameters
        ----------
        audio : path, file object, or array [samples] at 16 kHz
            As for `decode_audio`.
        batch_size : int, default 8
            Windows that are transcribed at once.
        clip_timestamps : list of dicts, optional
            The windows: seconds ``start`` and ``end`` of each, at most 30 s apart. Default: the voice-activity filter
            finds them, whatever `max_speech_duration_s` of `vad_parameters` is above that.
        chunk_length : int, optional
            The most seconds of a window, from 1 to 30.
        temperature : float or list of floats
            Only the first one counts.
        compression_ratio_threshold, log_prob_threshold, no_speech_threshold, condition_on_previous_text, \
prompt_reset_on_temperature
            Without effect: a window does not depend on the one before, and is read once.
        prefix, hallucination_silence_threshold : None
            Not supported.
        language, task, log_progress, beam_size, best_of, patience, length_penalty, repetition_penalty, \
no_repeat_ngram_size, initial_prompt, suppress_blank, suppress_tokens, without_timestamps, max_initial_timestamp, \
word_timestamps, prepend_punctuations, append_punctuations, multilingual, vad_filter, vad_parameters, max_new_tokens, \
hotwords, language_detection_threshold, language_detection_segments
            As for `WhisperModel.transcribe`. The prompt comes before each window.

        Returns
        -------
        segments : iterator of Segment
            The segments of `batch_size` windows are computed when the first of them is asked for.
        info : TranscriptionInfo

        Raises
        ------
        TypeError, ValueError
            If an argument breaks a rule, or the recording is damaged: in this call, before the first segment.
        """
        given = {name: value for name, value in locals().items() if name not in ("self", "audio", "options")} | options
        name = "BatchedInferencePipeline.transcribe"
        vad_parameters = given["vad_parameters"]
        for argument in ("prefix", "hallucination_silence_threshold"):
            if given[argument] is not None:
                raise ValueError(f"{name}: {argument} must be None; got {shown(given[argument])}")
        calls = self.model._calls
        arguments = calls.checked(name, given)
        with in_the_name_of(name, source="audio"):
            source: Audio = open_audio(audio, function=name)
            duration, whole = source.length / SAMPLING_RATE, source
        seconds = arguments["chunk_length"] or calls.model.max_frames / FRAMES_PER_SECOND
        spans: list[tuple[int, int]] | None = None
        vad_options = None
        if clip_timestamps:
            chunks = _clips(name, clip_timestamps, seconds)
            length = sum(min(chunk.end, source.length) - min(chunk.start, source.length) for chunk in chunks)
        elif arguments["vad_filter"]:
            defaults = {"min_silence_duration_ms": _USUAL_SILENCE} if vad_parameters is None else {}
            vad_options = vad_options_of(name, vad_parameters, **defaults)
            longest = min(seconds, vad_options.max_speech_duration_s)
            vad_options = replace(vad_options, max_speech_duration_s=longest)
            spans = speech_spans(source, vad_options)
            chunks = _chunks(spans, round(seconds * SAMPLING_RATE))
            source = Joined(source, spans)
            length = source.length
        elif duration < seconds:
            chunks, length = [Chunk(0, source.length)], source.length
        else:
            raise ValueError(
                f"{name}: a recording of {duration:g} s needs vad_filter or clip_timestamps, since it is not shorter "
                f"than a window of {seconds:g} s"
            )
        detected = calls.language(arguments, calls.windows(source if length else whole, None), 0)
        chosen = calls.options(arguments, clip_timestamps if clip_timestamps else spans)
        chosen.temperatures = chosen.temperatures[:1]
        chosen.condition_on_previous_text = False
        transcriber = Transcriber(name, calls.model, calls.tokens, chosen, detected[0], arguments["task"])
        segments = self._segments(transcriber, source, [c for c in chunks if c.end > c.start], arguments["batch_size"])
        if arguments["log_progress"]:
            segments = with_progress(segments, length / SAMPLING_RATE)
        if spans:
            segments = in_recording(segments, SpanTimes(spans))
        info = TranscriptionInfo(
            language=detected[0],
            language_probability=detected[1],
            duration=duration,
            duration_after_vad=length / SAMPLING_RATE,
            all_language_probs=detected[2],
            transcription_options=chosen,
            vad_options=vad_options,
        )
        return segments, info

    def _segments(
        self, transcriber: Transcriber, source: Audio, chunks: Sequence[Chunk], batch_size: int
    ) -> Iterator[Segment]:
        """Yield the segments of chunks, which are read `batch_size` at once."""
        (model, tokens, mel), options = self.model._calls, transcriber.options
        history, count, last_end = transcriber.initial_prompt(), 0, 0.0
        for place in range(0, len(chunks), batch_size):
            batch = chunks[place : place + batch_size]
            frames = [min(model.max_frames, (chunk.end - chunk.start) // HOP) for chunk in batch]
            features = []
            for chunk, num_frames in zip(batch, frames, strict=True):
                spoken = mel.over(open_audio(source.read(chunk.start, chunk.end)))
                features.append(filled(spoken.window(0, num_frames), model.max_frames))
            encoded = model.encode(np.stack(features))
            languages = [transcriber.language] * len(batch)
            if options.multilingual:
                languages = [found[0][0] for found in language_probabilities(model, tokens, encoded)]
            prompts = [transcriber.prompt(language, history) for language in languages]
            windows = range(len(batch))
            attempts = transcriber.attempts(
                encoded, windows, prompts, options.temperatures[0], [c.start // HOP for c in batch]
            )
            for i, (chunk, attempt) in enumerate(zip(batch, attempts, strict=True)):
                seconds = (chunk.end - chunk.start) / SAMPLING_RATE
                segments, _, _ = transcriber.split(attempt, chunk.start / SAMPLING_RATE, seconds)
                if options.word_timestamps:
                    task = transcriber.task_tokens(languages[i])
                    heard = HeardWindow(model, tokens, task, languages[i], encoded, i, frames[i])
                    last_end = add_words(heard, segments, options, last_end)
                for segment in segments:
                    if segment.text.strip():
                        count += 1
                        segment.id = count
                        segment.start, segment.end = round(segment.start, 3), round(segment.end, 3)
                        segment.compression_ratio = compression_ratio(segment.text)
                        yield segment


def _chunks(spans: Sequence[tuple[int, int]], most: int) -> list[Chunk]:
    """Return the windows of joined spans of speech: each has as many whole spans as `most` samples hold.

    A longer span is cut.
    """
    chunks: list[Chunk] = []
    start = end = 0
    for first, last in spans:
        if end > start and end + last - first - start > most:
            chunks.append(Chunk(start, end))
            start = end
        end += last - first
        while end - start > most:  # the caller's options let a span be longer
            chunks.append(Chunk(start, start + most))
            start += most
    return [*chunks, Chunk(start, end)] if end > start else chunks


def _clips(function: str, given: Any, seconds: float) -> list[Chunk]:
    """Return the windows that a caller gave, of at most so many seconds."""
    if not isinstance(given, Iterable):
        raise TypeError(f"{function}: clip_timestamps must be a list of dicts; got {shown(given)}")
    chunks = []
    for clip in given:
        if not isinstance(clip, Mapping) or set(clip) != {"start", "end"}:
            raise ValueError(f"{function}: clip_timestamps must be dicts of start and end; got {shown(clip)}")
        start, end = (checked_seconds(function, "clip_timestamps", clip[name]) for name in ("start", "end"))
        chunks.append(Chunk(int(start * SAMPLING_RATE), int(end * SAMPLING_RATE)))
        if not 0 <= chunks[-1].end - chunks[-1].start <= seconds * SAMPLING_RATE:
            raise ValueError(
                f"{function}: clip_timestamps must end at most {seconds:g} s after their start; got {shown(clip)}"
            )
    return chunks
