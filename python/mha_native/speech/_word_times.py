"""The times of the words of segments, by the cross-attention of the decoder."""

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._options import SENTENCE_ENDS, Segment, TranscriptionOptions, Word
from ._prompt import SpeechTokens
from ._words import TimedWord, align_words, merge_punctuation

_LONGEST_MEDIAN = 0.7  # seconds of a usual word
_PAUSE = 4  # usual words
_MOST_APART = 0.5  # seconds between a timestamp and the word next to it


class HeardWindow(NamedTuple):
    """A window of a recording, as a decoder reads it for the times of words.

    Parameters
    ----------
    model : SpeechSeq2Seq
    tokens : SpeechTokens
    task : sequence of int
        The tokens of language and task.
    language : str
        Its code.
    encoded : EncodedSpeech
        Several windows.
    place : int
        Of this one among them.
    num_frames : int
        The frames of the spectrogram that belong to the recording.
    """

    model: Any
    tokens: SpeechTokens
    task: Sequence[int]
    language: str
    encoded: Any
    place: int
    num_frames: int

    def words(self, text: list[int]) -> list[TimedWord]:
        """Return the words of a text with their times in the window, by the weights of the heads of alignment."""
        if not text:
            return []
        tokens = self.tokens
        before = [tokens.start, *self.task]
        read = [*before, tokens.no_timestamps, *text, tokens.end]
        weights, logits = self.model.alignment(self.encoded, self.place, read, logits=True)
        heard: NDArray[np.float32] = weights[:, :, : self.num_frames // 2]
        heard = heard / heard.sum(-1, keepdims=True)
        first = len(before)  # the row that reads the last token before the text
        probabilities = _probabilities(logits[first : first + len(text), : tokens.end], text)
        return align_words(heard, text, probabilities, tokens.tokenizer, self.language, before=first)


def add_words(
    window: HeardWindow, segments: Sequence[Segment], options: TranscriptionOptions, last_end: float
) -> float:
    """Give the segments of a window their words, and times by these.

    `last_end` is the end of the last speech before the window, in seconds. Return the end of the last speech in it.
    """
    texts = [[token for token in segment.tokens if token < window.tokens.end] for segment in segments]
    words = window.words(list(chain.from_iterable(texts)))
    lengths = [word.end - word.start for word in words if word.end != word.start]
    usual = min(_LONGEST_MEDIAN, float(np.median(lengths))) if lengths else 0.0
    if lengths:
        _shorten_at_sentences(words, 2 * usual)
    merge_punctuation(words, options.prepend_punctuations, options.append_punctuations)
    place = 0
    for segment, text in zip(segments, texts, strict=True):
        found, num_tokens = [], 0
        while place < len(words) and num_tokens < len(text):
            word = words[place]
            if word.word:
                start, end = (round(segment.seek / 100 + time, 2) for time in (word.start, word.end))
                found.append(Word(start, end, word.word, word.probability))
            num_tokens += len(word.tokens)
            place += 1
        if found:
            last_end = _fit(segment, found, usual, last_end)
        segment.words = found
    return last_end


def _probabilities(logits: NDArray[np.float32], text: Sequence[int]) -> NDArray[np.float32]:
    """Return the probabilities of tokens [n] among words, by logits [n, V] of the tokens before them."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    found: NDArray[np.float32] = powers[np.arange(len(text)), text] / powers.sum(-1)
    return found


def _shorten_at_sentences(words: Sequence[TimedWord], most: float) -> None:
    """Cut long words at the ends of sentences, where silence was taken for a part of them."""
    for before, word in pairwise(words):
        if word.end - word.start > most:
            if word.word in SENTENCE_ENDS:
                word.end = word.start + most
            elif before.word in SENTENCE_ENDS:
                word.start = word.end - most


def _fit(segment: Segment, words: list[Word], usual: float, last_end: float) -> float:
    """Shorten words that include silence at the ends of a segment, fit its times to them, and return its end."""
    first, last, most = words[0], words[-1], 2 * usual
    second = words[1] if len(words) > 1 else None
    is_after_pause = first.end - last_end > _PAUSE * usual
    is_long = first.end - first.start > most or (second is not None and second.end - first.start > 2 * most)
    if is_after_pause and is_long:
        if second is not None and second.end - second.start > most:
            first.end = second.start = max(second.end / 2, second.end - most)
        first.start = max(0.0, first.end - most)
    if first.start < segment.start - _MOST_APART and segment.start < first.end:
        first.start = max(0.0, min(first.end - usual, segment.start))
    else:
        segment.start = first.start
    if last.start < segment.end and segment.end + _MOST_APART < last.end:
        last.end = max(last.start + usual, segment.end)
    else:
        segment.end = last.end
    return segment.end
