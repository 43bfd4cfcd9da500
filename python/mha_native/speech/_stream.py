"""Transcripts of a stream while it goes on: text that stays, and text that may change.

The last seconds are transcribed again and again. Words stay once two transcripts in a row agree on them and on all
words before (local agreement: Machacek, Dabre and Bojar, https://arxiv.org/abs/2307.14743).
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..functions.arrays import Tensor
from ..functions.messages import listed, shown
from ..functions.scalars import checked_integer, checked_real
from ._audio import SAMPLING_RATE, Samples, samples_of_blocks
from ._options import Word

if TYPE_CHECKING:
    from .whisper_model import WhisperModel

_MOST = 28.0  # seconds that are transcribed again: less than a window of 30
_ENOUGH = 12.0  # seconds from which on stable speech is dropped
_SILENCE = 1.0  # seconds that are kept of a stream without words
_SLACK = 0.1  # seconds that the times of a word change by
_REPEATED = 5  # words at a cut that may be heard again
_PROMPT = 200  # characters of stable text that the model reads before

_OWN = ("word_timestamps", "clip_timestamps", "condition_on_previous_text", "log_progress", "without_timestamps")


class StreamedText(NamedTuple):
    """Text of a stream.

    Parameters
    ----------
    stable : str
        The next part of the transcript; it does not change any more.
    tentative : str
        The text after it as it is known now: the next `StreamedText` replaces it.

    See Also
    --------
    transcribe_stream : Transcribe.

    Examples
    --------
    >>> from mha_native.speech import StreamedText
    >>> StreamedText(" It is an", " ancient").tentative
    ' ancient'
    """

    stable: str
    tentative: str


def transcribe_stream(
    model: WhisperModel,
    blocks: Iterable[Tensor],
    *,
    sampling_rate: int = SAMPLING_RATE,
    step_seconds: float = 1.0,
    **options: Any,
) -> Iterator[StreamedText]:
    """Transcribe blocks of a microphone or a pipe as they come.

    Each step costs a transcript of the last seconds, at most 28, so that a slow machine needs longer steps. Memory does
    not grow.

    Parameters
    ----------
    model : WhisperModel
    blocks : iterable of [samples] or [samples, channels]
        Of any lengths, in the dtypes of `decode_audio`.
    sampling_rate : int, default 16000
        Samples a second of the blocks.
    step_seconds : float, default 1
        Seconds of new audio before the next transcript.
    **options
        Of `WhisperModel.transcribe`. The temperature is 0 by default. Words have times, and the stable text is the
        prompt, so that options about these are refused.

    Returns
    -------
    texts : iterator of StreamedText
        One for each step. The stable texts, joined, are the transcript; the last tentative text is empty.

    Raises
    ------
    TypeError, ValueError
        If an argument breaks a rule.

    See Also
    --------
    WhisperModel.transcribe : Transcribe a whole recording.
    audio_blocks : Blocks of a file.

    Examples
    --------
    >>> from mha_native.speech import WhisperModel, audio_blocks, transcribe_stream
    >>> for text in transcribe_stream(WhisperModel("tiny.en"), audio_blocks("talk.wav", 0.5)):
    ...     print(text.stable, end="", flush=True)
     It's ancient mariner and he's top of one on three.
    """
    name = "transcribe_stream"
    if refused := [option for option in _OWN if option in options]:
        raise TypeError(f"{name}: a stream chooses {listed(refused)} itself")
    if not hasattr(model, "transcribe"):
        raise TypeError(f"{name}: model must be a WhisperModel; got {shown(model)}")
    if not isinstance(blocks, Iterable):
        raise TypeError(f"{name}: blocks must be arrays [samples] in an order; got {shown(blocks)}")
    rate = checked_integer(name, "sampling_rate", sampling_rate, 1)
    step = round(checked_real(name, "step_seconds", step_seconds) * SAMPLING_RATE)
    if not 0 < step <= _MOST * SAMPLING_RATE / 2:
        raise ValueError(f"{name}: step_seconds must be above 0 and at most {_MOST / 2:g}; got {step_seconds}")
    return _texts(_Heard(model, {"temperature": 0.0} | options), samples_of_blocks(name, blocks, rate), step)


def _texts(heard: _Heard, blocks: Iterator[Samples], step: int) -> Iterator[StreamedText]:
    waiting, count = [np.zeros(0, np.float32)], 0
    for block in blocks:
        waiting.append(block)
        count += len(block)
        while count >= step:
            joined = np.concatenate(waiting)
            yield heard.add(joined[:step])
            waiting, count = [joined[step:]], count - step
    yield heard.add(np.concatenate(waiting), is_last=True)


class _Heard:
    """The last seconds of a stream, and their words."""

    def __init__(self, model: WhisperModel, options: dict[str, Any]) -> None:
        self._model, self._options = model, dict(options)
        self._prompt = self._options.pop("initial_prompt", None)
        self._samples = np.zeros(0, np.float32)
        self._first = 0  # of these samples, in the stream
        self._stable = ""  # the end of the text that stays
        self._stable_end = 0.0  # seconds of the stream
        self._last: list[Word] = []  # words of the latest transcript that may change

    def add(self, samples: Samples, is_last: bool = False) -> StreamedText:
        """Hear more, and return the text; at the end all of it is stable."""
        self._samples = np.concatenate([self._samples, samples])
        words = self._new_words()
        pairs = zip(self._last, words, strict=False)
        same = len(list(takewhile(lambda pair: _bare(pair[0].word) == _bare(pair[1].word), pairs)))
        if is_last:
            same = len(words)
        elif not words and self._seconds > _ENOUGH:
            self._drop(self._first + len(self._samples) - round(_SILENCE * SAMPLING_RATE))
        elif same == 0 and self._seconds > _MOST:  # two transcripts never agreed: the window is full
            same = max(1, len(words) // 2)
        stable = "".join(word.word for word in words[:same])
        if same:
            self._stable = (self._stable + stable)[-_PROMPT:]
            self._stable_end = words[same - 1].end
        self._last = words[same:]
        if self._seconds > _ENOUGH and self._stable_end > self._first / SAMPLING_RATE:
            self._drop(round(self._stable_end * SAMPLING_RATE))
        if self._seconds > _MOST:
            self._drop(self._first + len(self._samples) - round(_ENOUGH * SAMPLING_RATE))
        return StreamedText(stable, "".join(word.word for word in self._last))

    @property
    def _seconds(self) -> float:
        return len(self._samples) / SAMPLING_RATE

    def _drop(self, first: int) -> None:
        """Keep the samples from `first` on, counted from the beginning of the stream."""
        self._samples = self._samples[max(first - self._first, 0) :].copy()
        self._first = max(first, self._first)

    def _new_words(self) -> list[Word]:
        """Return the words after the stable ones, with their times in the stream."""
        if not len(self._samples):
            return []
        begin = self._first / SAMPLING_RATE
        prompt = self._stable.strip() or self._prompt
        segments, _ = self._model.transcribe(
            self._samples,
            word_timestamps=True,
            condition_on_previous_text=False,
            initial_prompt=prompt,
            **self._options,
        )
        words = [
            Word(word.start + begin, word.end + begin, word.word, word.probability)
            for segment in segments
            for word in segment.words or ()
        ]
        words = [word for word in words if word.end > self._stable_end + _SLACK]
        return words[self._repeated(words) :]

    def _repeated(self, words: list[Word]) -> int:
        """Return how many words at the beginning are the last stable ones, heard again at the cut."""
        if not words or words[0].start > self._stable_end + 1:
            return 0
        before = [_bare(word) for word in self._stable.split()]
        after = [_bare(word.word) for word in words]
        for count in range(min(_REPEATED, len(before), len(after)), 0, -1):
            if before[-count:] == after[:count]:
                return count
        return 0


def _bare(word: str) -> str:
    """Return a word without case, spaces and punctuation, which transcripts may change."""
    return word.strip().strip(string.punctuation).casefold()
