"""The transcription of a recording, one window after another."""

import logging
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._decode import Decoded, SearchOptions, decode
from ._options import APPENDED, PREPENDED, Segment, TranscriptionOptions, check_room
from ._prompt import SECONDS_PER_TIMESTAMP, Prompt, SpeechTokens
from ._rules import TokenRules
from ._word_times import HeardWindow, add_words

FRAMES_PER_SECOND = 100
_FRAMES_PER_TIMESTAMP = 2

# Segments of words that are very short, long or improbable were probably not spoken.
_MOST_JUDGED = 8
_LEAST_PROBABILITY, _SHORT_WORD, _LONG_WORD = 0.15, 0.133, 2.0

_logger = logging.getLogger(__name__)


class Part(NamedTuple):
    """A part of the text of a window: seconds from the begin of the recording, and tokens."""

    start: float
    end: float
    tokens: list[int]


def split(
    tokens: Sequence[int], first_timestamp: int, offset: float, duration: float
) -> tuple[list[Part], int | None, bool]:
    """Cut the text of a window of `duration` seconds, which begins at `offset` seconds, at its pairs of timestamps.

    Return the parts, the frame of the window where the next one begins, and whether the text ends with a single
    timestamp, after which nobody speaks in the window. None instead of a frame: the next one begins at its end.
    """
    times = [token - first_timestamp for token in tokens]  # from 0: timestamps
    is_closed = len(times) > 1 and times[-2] < 0 <= times[-1]
    cuts = [i for i in range(1, len(times)) if times[i] >= 0 and times[i - 1] >= 0]
    if not cuts:
        last = next((time for time in reversed(times) if time >= 0), 0)
        length = last * SECONDS_PER_TIMESTAMP or duration
        return [Part(offset, offset + length, list(tokens))], None, is_closed
    advance = None
    if is_closed:
        cuts.append(len(times))
    else:  # the text after the last pair is read again, from its begin
        advance = times[cuts[-1] - 1] * _FRAMES_PER_TIMESTAMP
    parts = [
        Part(
            offset + times[begin] * SECONDS_PER_TIMESTAMP,
            offset + times[end - 1] * SECONDS_PER_TIMESTAMP,
            list(tokens[begin:end]),
        )
        for begin, end in zip([0, *cuts], cuts, strict=False)
    ]
    return parts, advance, is_closed


class Windows:
    """The windows of a recording, by their first frames of 10 ms and numbers of frames. The last one stays encoded."""

    def __init__(self, model: Any, features: Any, num_frames: int, most_frames: int | None = None) -> None:
        self._model, self._features, self.num_frames = model, features, num_frames
        self.most_frames = model.max_frames if most_frames is None else most_frames  # of a window
        self._place: tuple[int, int] | None = None
        self._encoded: Any = None

    def encode(self, first: int, num_frames: int) -> Any:
        """Return what the encoder makes of a window: a batch of one."""
        if self._place != (first, num_frames):
            found = self._features.window(first, first + num_frames)
            self._encoded = self._model.encode(filled(found, self._model.max_frames)[None])
            self._place = first, num_frames
        return self._encoded


class Attempt(NamedTuple):
    """The text of a window at a temperature."""

    decoded: Decoded
    text: str
    compression_ratio: float
    temperature: float


class Transcriber:
    """Transcribes windows of a recording.

    `task` are the tokens of language and task, which depend on the window with `options.multilingual`.
    """

    def __init__(
        self, function: str, model: Any, tokens: SpeechTokens, options: TranscriptionOptions, language: str, task: str
    ) -> None:
        self._function, self._model, self.tokens, self.options = function, model, tokens, options
        self._task, self.language = task, language
        suppressed_first = model.suppress_ids_begin or [*tokens.encode(" ")[:1], tokens.end]
        last_initial = tokens.first_timestamp + round(options.max_initial_timestamp / SECONDS_PER_TIMESTAMP)
        self._rules = TokenRules(
            tokens.end,
            tokens.first_timestamp,
            not options.without_timestamps,
            last_initial,
            np.array(options.suppress_tokens or (), np.int64),
            np.array(suppressed_first if options.suppress_blank else (), np.int64),
            options.repetition_penalty,
            options.no_repeat_ngram_size,
        )
        check_room(function, self.prompt(language, (), options.prefix), options.max_new_tokens)

    def task_tokens(self, language: str) -> list[int]:
        """Return the tokens of language and task; none for a model of English."""
        tokens = self.tokens
        return [tokens.languages[language], tokens.tasks[self._task]] if self._model.multilingual else []

    def prompt(self, language: str, previous: Sequence[int], prefix: str | None = None) -> Prompt:
        """Return the prompt of a window."""
        options = self.options
        return self.tokens.prompt(
            self.task_tokens(language),
            previous,
            without_timestamps=options.without_timestamps,
            prefix=prefix,
            hotwords=options.hotwords,
            room=options.max_new_tokens or 1,
        )

    def initial_prompt(self) -> list[int]:
        """Return the tokens of the text before the first window."""
        given = self.options.initial_prompt
        if isinstance(given, str):
            return self.tokens.encode(" " + given.strip())
        return list(given or ())

    def attempts(
        self, encoded: Any, windows: Sequence[int], prompts: Sequence[Prompt], temperature: float, seeds: Sequence[int]
    ) -> list[Attempt]:
        """Return the text of each window at a temperature."""
        options = self.options
        search = SearchOptions(
            options.beam_size,
            options.best_of,
            options.patience,
            options.length_penalty,
            options.max_new_tokens,
            temperature,
        )
        no_speech = self.tokens.no_speech
        found = decode(self._model, encoded, windows, prompts, self._rules, no_speech, search, seeds)
        texts = [self.tokens.text(decoded.tokens) for decoded in found]
        return [
            Attempt(decoded, text, compression_ratio(text.strip()), temperature)
            for decoded, text in zip(found, texts, strict=True)
        ]

    def best_attempt(self, encoded: Any, prompt: Prompt, seed: int) -> Attempt:
        """Return the text of a window at the first temperature that gives a probable one that repeats little."""
        options, attempts = self.options, []
        for temperature in options.temperatures:
            (attempt,) = self.attempts(encoded, [0], [prompt], temperature, [seed])
            attempts.append(attempt)
            if not self._fails(attempt):
                return attempt
        most = options.compression_ratio_threshold
        varied = [each for each in attempts if most is not None and each.compression_ratio <= most]
        best = max(varied or attempts, key=lambda each: each.decoded.avg_logprob)
        return best._replace(temperature=attempts[-1].temperature)

    def _fails(self, attempt: Attempt) -> bool:
        """Return whether another temperature is tried: the text repeats itself, or is improbable in spite of speech."""
        options, decoded = self.options, attempt.decoded
        repeats = exceeds(attempt.compression_ratio, options.compression_ratio_threshold)
        is_improbable = exceeds(options.log_prob_threshold, decoded.avg_logprob)
        is_silent = exceeds(decoded.no_speech_prob, options.no_speech_threshold)
        return (repeats or is_improbable) and not (is_silent and is_improbable)

    def is_silent(self, attempt: Attempt) -> bool:
        """Return whether nobody speaks in a window, so that its text is dropped."""
        options, decoded = self.options, attempt.decoded
        is_probable = exceeds(decoded.avg_logprob, options.log_prob_threshold)
        return exceeds(decoded.no_speech_prob, options.no_speech_threshold) and not is_probable

    def segments(self, windows: Windows, clips: Sequence[tuple[int, int]]) -> Iterator[Segment]:
        """Yield the segments of parts of a recording, given by their first and last frames, window by window."""
        options, history, prefix = self.options, self.initial_prompt(), self.options.prefix
        count, last_end = 0, 0.0
        for seek, end in clips:
            while seek < end:
                num_frames = min(windows.most_frames, end - seek)
                encoded = windows.encode(seek, num_frames)
                language = self.language
                if options.multilingual:
                    language = language_probabilities(self._model, self.tokens, encoded)[0][0][0]
                attempt = self.best_attempt(encoded, self.prompt(language, history, prefix), seek)
                prefix = None
                if self.is_silent(attempt):
                    _logger.debug("nobody speaks from %.2f s on", seek / FRAMES_PER_SECOND)
                    seek += num_frames
                    continue
                duration = num_frames / FRAMES_PER_SECOND
                segments, advance, is_closed = self.split(attempt, seek / FRAMES_PER_SECOND, duration)
                following = seek + (num_frames if advance is None else advance)
                if options.word_timestamps:
                    task = self.task_tokens(language)
                    heard = HeardWindow(self._model, self.tokens, task, language, encoded, 0, num_frames)
                    add_words(heard, segments, options, last_end)
                    end_of_words = _end(segments)
                    if not is_closed and end_of_words is not None and end_of_words * FRAMES_PER_SECOND > seek:
                        following = round(end_of_words * FRAMES_PER_SECOND)
                    if options.hallucination_silence_threshold is not None:
                        span = Span(seek, num_frames, windows.most_frames, windows.num_frames)
                        silence = options.hallucination_silence_threshold
                        is_read_again, segments, following = _skip(segments, span, following, last_end, silence)
                        if is_read_again:
                            seek = following if following > seek else seek + num_frames
                            continue
                    last_end = _end(segments) or last_end
                for segment in segments:
                    if segment.start != segment.end and segment.text.strip():
                        history.extend(segment.tokens)
                        count += 1
                        segment.id = count
                        yield segment
                if not options.condition_on_previous_text or (
                    attempt.temperature > options.prompt_reset_on_temperature
                ):
                    history.clear()
                del history[: -self.tokens.max_length]
                seek = following if following > seek else seek + num_frames  # never the same window again

    def split(self, attempt: Attempt, offset: float, duration: float) -> tuple[list[Segment], int | None, bool]:
        """Return the segments of the text of a window, as `split` cuts it, with the other results of `split`."""
        decoded, first_timestamp = attempt.decoded, self.tokens.first_timestamp
        parts, advance, is_closed = split(decoded.tokens, first_timestamp, offset, duration)
        segments = [
            Segment(
                id=0,
                seek=int(offset * FRAMES_PER_SECOND + 1e-6),
                start=part.start,
                end=part.end,
                text=self.tokens.text(part.tokens),
                tokens=part.tokens,
                avg_logprob=decoded.avg_logprob,
                compression_ratio=attempt.compression_ratio,
                no_speech_prob=decoded.no_speech_prob,
                words=None,
                temperature=attempt.temperature,
            )
            for part in parts
        ]
        return segments, advance, is_closed


class Span(NamedTuple):
    """A window of a recording, in frames."""

    first: int
    num_frames: int
    most_frames: int  # of a window
    num_all: int  # frames of the recording


def _end(segments: Sequence[Segment]) -> float | None:
    """Return the end of the last word of segments in seconds; without words, the end of the last segment."""
    ends = [word.end for segment in segments for word in segment.words or ()]
    return ends[-1] if ends else segments[-1].end if segments else None


def _is_anomaly(segment: Segment | None) -> bool:
    """Return whether the words of a segment are so short, long or improbable that probably nobody spoke them."""
    if segment is None or not segment.words:
        return False
    words = [word for word in segment.words if word.word not in PREPENDED + APPENDED][:_MOST_JUDGED]
    score = 0.0
    for word in words:
        length = word.end - word.start
        score += word.probability < _LEAST_PROBABILITY
        score += max(0.0, _SHORT_WORD - length) * 15 + max(0.0, length - _LONG_WORD)
    return score >= 3 or score + 0.01 >= len(words)


def _skip(
    segments: list[Segment], span: Span, following: int, last_end: float, threshold: float
) -> tuple[bool, list[Segment], int]:
    """Drop segments that nobody spoke, if more than `threshold` seconds of silence are around them.

    Return whether the window is read again from another frame on, the segments that are left, and the frame of the next
    window.
    """
    begin, length = span.first / FRAMES_PER_SECOND, span.num_frames / FRAMES_PER_SECOND
    spoken = [segment for segment in segments if segment.words]
    if spoken and _is_anomaly(spoken[0]):
        gap = spoken[0].start - begin
        if gap > threshold:
            return True, [], span.first + round(gap * FRAMES_PER_SECOND)
    for i, segment in enumerate(spoken):
        after = spoken[i + 1] if i + 1 < len(spoken) else None
        if _is_anomaly(segment):
            next_start = begin + length if after is None or not after.words else after.words[0].start
            is_silent_before = (
                segment.start - last_end > threshold or segment.start < threshold or segment.start - begin < 2
            )
            window_end = begin + span.most_frames / FRAMES_PER_SECOND
            is_silent_after = next_start - segment.end > threshold or _is_anomaly(after) or window_end - segment.end < 2
            if is_silent_before and is_silent_after:
                following = round(max(begin + 1, segment.start) * FRAMES_PER_SECOND)
                if span.num_all / FRAMES_PER_SECOND - segment.end < threshold:
                    following = span.num_all
                place = next(place for place, each in enumerate(segments) if each is segment)
                return False, segments[:place], following
        last_end = segment.end
    return False, segments, following


def language_probabilities(model: Any, tokens: SpeechTokens, encoded: Any) -> list[list[tuple[str, float]]]:
    """Return the languages of windows with their probabilities, the largest first, for each window."""
    count = len(encoded.rows)
    state = model.decoder(encoded, list(range(count)))
    codes = list(tokens.languages)
    logits = state.step([np.array([tokens.start])] * count)[:, list(tokens.languages.values())]
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    shares = powers / powers.sum(-1, keepdims=True)
    return [[(codes[place], float(row[place])) for place in np.argsort(-row, kind="stable").tolist()] for row in shares]


def detect(
    model: Any,
    tokens: SpeechTokens,
    windows: Windows,
    first: int,
    num_segments: int,
    threshold: float | None,
) -> tuple[str, float, list[tuple[str, float]]]:
    """Return the language of a recording, its probability, and the ones of all languages in the last window read.

    It is the first language with a probability above `threshold` in a window, or else the most frequent one.
    """
    votes: dict[str, list[float]] = {}
    step = windows.most_frames
    end = min(windows.num_frames, first + num_segments * step)
    for seek in range(first, max(end, first + 1), step):
        encoded = windows.encode(seek, min(step, end - seek))
        (found,) = language_probabilities(model, tokens, encoded)
        language, probability = found[0]
        if exceeds(probability, threshold):
            return language, probability, found
        votes.setdefault(language, []).append(probability)
    language = max(votes, key=lambda each: len(votes[each]))
    return language, max(votes[language]), found


def exceeds(number: float | None, limit: float | None) -> bool:
    """Return whether a number is above a limit; False if one of them is None."""
    return number is not None and limit is not None and number > limit


def compression_ratio(text: str) -> float:
    """Return the bytes of a text over its compressed bytes."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))


def filled(features: NDArray[np.float32], num_frames: int) -> NDArray[np.float32]:
    """Return features [mel_bins, at most num_frames], filled with zeros to [mel_bins, num_frames]."""
    return np.pad(features, ((0, 0), (0, num_frames - features.shape[1])))


def clips(times: Sequence[float], num_frames: int) -> list[tuple[int, int]]:
    """Return the first and last frames of the parts of a recording that are transcribed, by times in seconds."""
    points = [round(time * FRAMES_PER_SECOND) for time in times] or [0]
    if len(points) % 2:
        points.append(num_frames)
    return [(begin, min(end, num_frames)) for begin, end in zip(points[::2], points[1::2], strict=True)]
