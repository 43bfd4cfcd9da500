"""The results and options of a transcription, with the fields of faster-whisper, and the checks of its arguments."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _core
from ..functions.messages import shown
from ..functions.scalars import checked_integer, checked_real
from ..models.text.prompts import is_text
from ._prompt import TASKS, Prompt, SpeechTokens

PREPENDED = "\"'“¿([{-"
APPENDED = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001 (signs of Chinese and Japanese)
SENTENCE_ENDS = ".。!！?？"  # noqa: RUF001
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)

_MOST_SECONDS = 1e9  # 30 years


@dataclass
class Word:
    """A word of a transcript.

    Parameters
    ----------
    start, end : float
        Seconds.
    word : str
        The word, with the space before it and its punctuation.
    probability : float
        The mean probability of its tokens.

    Examples
    --------
    >>> from mha_native.speech import Word
    >>> Word(0.0, 0.42, " Hello", 0.98).word
    ' Hello'
    """

    start: float
    end: float
    word: str
    probability: float


@dataclass
class Segment:
    """A part of a transcript, about a sentence.

    Parameters
    ----------
    id : int
        The place among the segments, from 1.
    seek : int
        The frame, of 10 ms each, where the window of the segment begins.
    start, end : float
        Seconds.
    text : str
    tokens : list of int
        The tokens of the text, with timestamps.
    avg_logprob : float
        The mean log-probability of the tokens of the window.
    compression_ratio : float
        Bytes of the text over its compressed bytes: large for text that repeats itself.
    no_speech_prob : float
        The probability that nobody speaks in the window.
    words : list of Word, optional
        With `word_timestamps`.
    temperature : float, optional
        The temperature at which the text was drawn; 0 for the most probable text.

    Examples
    --------
    >>> from mha_native.speech import Segment
    >>> Segment(1, 0, 0.0, 1.5, " Hello.", [50363, 18435, 13], -0.2, 0.5, 0.01, None, 0.0).text
    ' Hello.'
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: list[Word] | None
    temperature: float | None


@dataclass
class TranscriptionOptions:
    """The options of a transcription, in the types that they have after checks.

    Parameters
    ----------
    beam_size, best_of, patience, length_penalty, repetition_penalty, no_repeat_ngram_size, log_prob_threshold, \
no_speech_threshold, compression_ratio_threshold, condition_on_previous_text, prompt_reset_on_temperature, \
initial_prompt, prefix, suppress_blank, suppress_tokens, without_timestamps, max_initial_timestamp, word_timestamps, \
prepend_punctuations, append_punctuations, multilingual, max_new_tokens, clip_timestamps, \
hallucination_silence_threshold, hotwords
        As for `WhisperModel.transcribe`.
    temperatures : list of float
        Its `temperature`.

    Examples
    --------
    >>> from mha_native.speech import WhisperModel
    >>> segments, info = WhisperModel("tiny.en").transcribe("talk.wav", beam_size=1)
    >>> info.transcription_options.beam_size
    1
    """

    beam_size: int
    best_of: int
    patience: float
    length_penalty: float
    repetition_penalty: float
    no_repeat_ngram_size: int
    log_prob_threshold: float | None
    no_speech_threshold: float | None
    compression_ratio_threshold: float | None
    condition_on_previous_text: bool
    prompt_reset_on_temperature: float
    temperatures: list[float]
    initial_prompt: str | Iterable[int] | None
    prefix: str | None
    suppress_blank: bool
    suppress_tokens: Sequence[int] | None
    without_timestamps: bool
    max_initial_timestamp: float
    word_timestamps: bool
    prepend_punctuations: str
    append_punctuations: str
    multilingual: bool
    max_new_tokens: int | None
    clip_timestamps: Any
    hallucination_silence_threshold: float | None
    hotwords: str | None


@dataclass
class TranscriptionInfo:
    """Facts about a recording, and the options of its transcription.

    Parameters
    ----------
    language : str
        The code of the language, such as "en".
    language_probability : float
        1 for a given language.
    duration, duration_after_vad : float
        Seconds of the recording, and of the speech in it that the voice-activity filter has left.
    all_language_probs : list of (str, float), optional
        The probabilities of all languages, the largest first, if the language was detected.
    transcription_options : TranscriptionOptions
    vad_options : VadOptions, optional

    Examples
    --------
    >>> from mha_native.speech import WhisperModel
    >>> segments, info = WhisperModel("tiny.en").transcribe("talk.wav")
    >>> info.language
    'en'
    """

    language: str
    language_probability: float
    duration: float
    duration_after_vad: float
    all_language_probs: list[tuple[str, float]] | None
    transcription_options: TranscriptionOptions
    vad_options: Any


# Arguments by their checks: (smallest value, largest value, whether None is a value).
_INTEGERS: dict[str, tuple[int, int | None, bool]] = {
    "beam_size": (1, None, False),
    "best_of": (1, None, False),
    "no_repeat_ngram_size": (0, None, False),
    "max_new_tokens": (1, None, True),
    "chunk_length": (1, 30, True),
    "language_detection_segments": (1, None, False),
    "batch_size": (1, None, False),
}
_NUMBERS: dict[str, tuple[float, float, bool]] = {
    "patience": (math.ulp(0), math.inf, False),
    "length_penalty": (-16, 16, False),
    "repetition_penalty": (2.0**-126, math.inf, False),
    "compression_ratio_threshold": (-math.inf, math.inf, True),
    "log_prob_threshold": (-math.inf, math.inf, True),
    "no_speech_threshold": (-math.inf, math.inf, True),
    "prompt_reset_on_temperature": (-math.inf, math.inf, False),
    "max_initial_timestamp": (0, 30, False),
    "hallucination_silence_threshold": (0, math.inf, True),
    "language_detection_threshold": (-math.inf, math.inf, True),
}
_BOOLEANS = (
    *("log_progress", "condition_on_previous_text", "suppress_blank", "without_timestamps", "word_timestamps"),
    *("multilingual", "vad_filter"),
)
_TEXTS = {"prefix": True, "hotwords": True, "prepend_punctuations": False, "append_punctuations": False}


def checked_arguments(function: str, given: dict[str, Any], tokens: SpeechTokens, vocab_size: int) -> dict[str, Any]:
    """Return the arguments of a transcription in their types, or raise TypeError or ValueError.

    Sources of sound, `vad_parameters` and `clip_timestamps` are not checked here.
    """
    found = dict(given)
    for name, (least, most, optional) in _INTEGERS.items():
        if name in given and not (optional and given[name] is None):
            found[name] = checked_integer(function, name, given[name], least, most)
    for name, (lower, upper, optional) in _NUMBERS.items():
        if name in given and not (optional and given[name] is None):
            found[name] = _number(function, name, given[name], lower, upper)
    for name in _BOOLEANS:
        if name in given:
            found[name] = _core.boolean(function, name, given[name])
    for name, optional in _TEXTS.items():
        if not (optional and given[name] is None):
            _check_text(function, name, given[name], optional)
    if not isinstance(given["task"], str) or given["task"] not in TASKS:
        raise ValueError(f"{function}: task must be {TASKS[0]!r} or {TASKS[1]!r}; got {shown(given['task'])}")
    if given["language"] is not None:
        tokens.language(function, given["language"])
    found["temperature"] = _temperatures(function, given["temperature"])
    found["suppress_tokens"] = _tokens(function, "suppress_tokens", given["suppress_tokens"], -1, vocab_size)
    prompt = given["initial_prompt"]
    if isinstance(prompt, str):
        _check_text(function, "initial_prompt", prompt)
    elif prompt is not None:
        found["initial_prompt"] = _tokens(function, "initial_prompt", prompt, 0, vocab_size)
    return found


def seconds(function: str, name: str, values: Any) -> list[float]:
    """Return times that a caller gave: a list, or a str with commas between them."""
    if isinstance(values, str):
        try:
            values = [float(text) for text in values.split(",")] if values else []
        except ValueError:
            raise ValueError(f"{function}: {name} must be seconds with commas between them; got {values!r}") from None
    if not isinstance(values, Iterable):
        raise TypeError(f"{function}: {name} must be a list of seconds or a str; got {shown(values)}")
    return [checked_seconds(function, name, value) for value in values]


def checked_seconds(function: str, name: str, value: Any) -> float:
    """Return a time that a caller gave in the argument `name`."""
    return _number(function, f"a time of {name}", value, 0, _MOST_SECONDS)


def check_room(function: str, prompt: Prompt, max_new_tokens: int | None) -> None:
    """Raise ValueError if a prompt leaves no room for `max_new_tokens`."""
    left = prompt.max_length - len(prompt.tokens)
    if max_new_tokens is not None and max_new_tokens > left:
        raise ValueError(
            f"{function}: max_new_tokens must be at most {left} after a prompt of {len(prompt.tokens)} tokens; "
            f"got {max_new_tokens}"
        )


def _number(function: str, name: str, value: Any, lower: float, upper: float) -> float:
    number = checked_real(function, name, value)
    if not lower <= number <= upper:
        rule = f"from {lower:g} to {upper:g}" if upper < math.inf else f"at least {lower:g}"
        rule = "above 0" if lower == math.ulp(0) else rule
        raise ValueError(f"{function}: {name} must be {rule}; got {number}")
    return number


def _check_text(function: str, name: str, text: Any, optional: bool = False) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{function}: {name} must be a str{' or None' * optional}; got {shown(text)}")
    if not is_text(text):
        raise ValueError(f"{function}: {name} holds half of a surrogate pair; got {shown(text)}")


def _temperatures(function: str, given: Any) -> list[float]:
    values = list(given) if isinstance(given, (list, tuple)) else [given]
    if not values:
        raise ValueError(f"{function}: temperature must have at least one number; got {shown(given)}")
    return [_number(function, "temperature", value, 0, math.inf) for value in values]


def _tokens(function: str, name: str, given: Any, least: int, vocab_size: int) -> list[int] | None:
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{function}: {name} must be a list of tokens; got {shown(given)}")
    return [checked_integer(function, f"a token of {name}", token, least, vocab_size - 1) for token in given]
