"""What the calls of `WhisperModel` and `BatchedInferencePipeline` share: checked arguments, options, and languages."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import wraps
from typing import Any, NamedTuple, TypeVar

from ..functions.messages import in_the_name_of, listed, shown
from ..functions.progress import progress_bar
from ..models.speech_seq2seq import SpeechSeq2Seq
from ._audio import Audio
from ._mel import HOP, LogMel
from ._options import Segment, TranscriptionOptions, checked_arguments
from ._prompt import SpeechTokens
from ._transcribe import FRAMES_PER_SECOND, Windows, detect
from ._voice_activity import SpanTimes, VadOptions

_logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class Calls(NamedTuple):
    """A model of speech with its tokens and its spectrograms."""

    model: SpeechSeq2Seq
    tokens: SpeechTokens
    mel: LogMel

    def windows(self, source: Audio, chunk_length: int | None) -> Windows:
        """Return the windows of a recording, of `chunk_length` seconds; None: of as many as the model reads."""
        frames = source.length // HOP
        most = self.model.max_frames
        if chunk_length is not None:
            most = min(most, chunk_length * FRAMES_PER_SECOND)
        return Windows(self.model, self.mel.over(source), frames, most)

    def checked(self, function: str, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call in their types, or raise TypeError or ValueError."""
        arguments = checked_arguments(function, given, self.tokens, self.model.vocab_size)
        if not self.model.multilingual:
            language = given["language"]
            if language not in (None, "en"):
                raise ValueError(f"{function}: language must be 'en' for a model of English; got {shown(language)}")
            if given["task"] != "transcribe" or arguments["multilingual"]:
                argument = "task" if given["task"] != "transcribe" else "multilingual"
                raise ValueError(
                    f"{function}: {argument}={given[argument]!r} needs a model of several languages; "
                    "this one is a model of English"
                )
        return arguments

    def language(
        self, arguments: dict[str, Any], windows: Windows, first: int
    ) -> tuple[str, float, list[tuple[str, float]] | None]:
        """Return the language of a recording, its probability, and the ones of all languages, if it is detected."""
        if arguments["language"] is not None or not self.model.multilingual:
            return arguments["language"] or "en", 1, None
        found = detect(
            self.model,
            self.tokens,
            windows,
            first,
            arguments["language_detection_segments"],
            arguments["language_detection_threshold"],
        )
        _logger.info("the language is %s, with probability %.2f", *found[:2])
        return found

    def options(self, arguments: dict[str, Any], clip_timestamps: Any) -> TranscriptionOptions:
        """Return the options of a call by its checked arguments."""
        given = dict(arguments, temperatures=arguments["temperature"], clip_timestamps=clip_timestamps)
        given["suppress_tokens"] = self.tokens.suppressed(arguments["suppress_tokens"])
        names = [field.name for field in fields(TranscriptionOptions)]
        return TranscriptionOptions(**{name: given[name] for name in names})


def takes_arguments_of(other: Callable[..., Any]) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Return a decorator: the method has the parameters of the method `other`, in its ``**options``.

    A parameter that both have is the method's own, at the place in `other`. One that `other` lacks follows the
    parameter before it.
    """

    def decorate(method: Callable[..., _Result]) -> Callable[..., _Result]:
        parameters = list(inspect.signature(other).parameters.values())
        own = inspect.signature(method)
        place = 0
        for parameter in own.parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD:
                names = [each.name for each in parameters]
                is_new = parameter.name not in names
                place = place + 1 if is_new else names.index(parameter.name)
                parameters[place : place + (not is_new)] = [parameter]
        signature = own.replace(parameters=parameters)

        @wraps(method)
        def call(*args: Any, **options: Any) -> _Result:
            try:
                given = signature.bind(*args, **options)
            except TypeError as error:
                raise TypeError(f"{method.__qualname__}() {error}") from None
            given.apply_defaults()
            return method(**given.arguments)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate


def vad_options_of(function: str, given: Any, **defaults: Any) -> VadOptions:
    """Return the options of the voice-activity filter that a caller gave, or the default ones with `defaults`."""
    if isinstance(given, VadOptions):
        return given
    if given is not None and not isinstance(given, dict):
        raise TypeError(f"{function}: vad_parameters must be a dict or VadOptions; got {shown(given)}")
    known = [field.name for field in fields(VadOptions)]
    for name in given or ():
        if name not in known:
            raise TypeError(f"{function}: vad_parameters must have names of {listed(known)}; got {shown(name)}")
    with in_the_name_of(function):
        return VadOptions(**{**defaults, **(given or {})})


def in_recording(segments: Iterator[Segment], times: SpanTimes) -> Iterator[Segment]:
    """Yield segments of joined spans, with their times in the recording."""
    for segment in segments:
        if segment.words:
            for word in segment.words:
                span = times.index((word.start + word.end) / 2)  # both ends in one span
                word.start, word.end = times.original(word.start, span), times.original(word.end, span)
            segment.start, segment.end = segment.words[0].start, segment.words[-1].end
        else:
            segment.start, segment.end = times.original(segment.start), times.original(segment.end, is_end=True)
        yield segment


def with_progress(segments: Iterator[Segment], duration: float) -> Iterator[Segment]:
    """Yield segments under a bar of the seconds that are transcribed."""
    done = 0
    with progress_bar(max(1, round(duration)), "seconds") as advance:
        for segment in segments:
            yield segment
            new = max(0, round(segment.end) - done)
            advance(new)
            done += new
        advance(max(0, round(duration) - done))
