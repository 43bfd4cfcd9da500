"""Words of a text and their times, by the attention that its tokens pay to the frames of a window.

The method is the one of openai-whisper: weights of heads that follow the speech, normalized over the tokens, smoothed
by a median and averaged; then the cheapest monotonic path through them.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..models.text.tokenizer import Tokenizer

FRAMES_PER_SECOND = 50  # of the encoder

# Languages that write no spaces between words: each character is a word.
_WITHOUT_SPACES = ("zh", "ja", "th", "lo", "my", "yue")

_UNFINISHED = "\ufffd"  # decoded from a part of the bytes of a character

_HALF_WIDTH = 3  # of the median over 7 frames

# Exchanges that bring the middle one of seven numbers to place 3: Devillard, "Fast median search", 1998.
_MEDIAN_OF_7 = (
    *((0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6)),
    *((2, 3), (3, 6), (4, 5), (1, 4), (1, 3), (3, 4)),
)


@dataclass
class TimedWord:
    """A word, and its seconds from the beginning of its window."""

    word: str
    tokens: list[int]
    start: float
    end: float
    probability: float


def align_words(
    weights: NDArray[np.float32],
    tokens: Sequence[int],
    probabilities: NDArray[np.float32],
    tokenizer: Tokenizer,
    language: str,
    before: int = 0,
) -> list[TimedWord]:
    """Return the words of a text with their times.

    Parameters
    ----------
    weights : [heads, rows, frames]
        The attention of all tokens that the decoder read. The row that reads a token looks for the next one.
    tokens : sequence of int
        The text, without special tokens.
    probabilities : [tokens]
    tokenizer : Tokenizer
    language : str
        Its code.
    before : int
        Rows before the one that looks for the first token of the text.
    """
    words = split_to_words(tokens, tokenizer, language)
    if not words:
        return []
    starts = first_frames(-emphasis(weights)[before : before + len(tokens) + 1]) / FRAMES_PER_SECOND
    found, first = [], 0
    for word, parts in words:
        last = first + len(parts)
        mean = float(np.mean(probabilities[first:last]))
        found.append(TimedWord(word, parts, float(starts[first]), float(starts[last]), mean))
        first = last
    return found


def split_to_words(tokens: Sequence[int], tokenizer: Tokenizer, language: str) -> list[tuple[str, list[int]]]:
    """Return the words of a text, and their tokens. A word begins with a space or is punctuation."""
    characters = _split_to_characters(tokens, tokenizer)
    if language in _WITHOUT_SPACES:
        return characters
    words: list[tuple[str, list[int]]] = []
    for text, parts in characters:
        if text.startswith(" ") or text.strip() in string.punctuation or not words:
            words.append((text, parts))
        else:
            words[-1] = words[-1][0] + text, words[-1][1] + parts
    return words


def _split_to_characters(tokens: Sequence[int], tokenizer: Tokenizer) -> list[tuple[str, list[int]]]:
    """Return the shortest runs of tokens that are whole characters, with their texts."""
    whole, place = tokenizer.decode(tokens), 0
    found: list[tuple[str, list[int]]] = []
    parts: list[int] = []
    for token in tokens:
        parts.append(token)
        text = tokenizer.decode(parts)
        at = text.find(_UNFINISHED)
        if at < 0 or whole[place + at : place + at + 1] == _UNFINISHED:  # the whole text is as broken there
            found.append((text, parts))
            place += len(text)
            parts = []
    return found


def merge_punctuation(words: Sequence[TimedWord], prepended: str, appended: str) -> None:
    """Give punctuation to the words that it belongs to, in place; it becomes a word without text and tokens.

    Signs of `prepended` after a space go to the word after them, signs of `appended` to the word before them.
    """
    receiver = len(words) - 1
    for i in reversed(range(len(words) - 1)):
        word = words[i]
        if word.word.startswith(" ") and word.word.strip() in prepended:
            words[receiver].word = word.word + words[receiver].word
            words[receiver].tokens = word.tokens + words[receiver].tokens
            word.word, word.tokens = "", []
        else:
            receiver = i
    receiver = 0
    for i in range(1, len(words)):
        word = words[i]
        if not words[receiver].word.endswith(" ") and word.word in appended:
            words[receiver].word += word.word
            words[receiver].tokens = words[receiver].tokens + word.tokens
            word.word, word.tokens = "", []
        else:
            receiver = i


def emphasis(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return how far each row looks at each frame more than other rows do, [rows, frames].

    weights : [heads, rows, frames]
        As probabilities over the frames.
    """
    total = np.zeros(weights.shape[1:], np.float32)
    for head in weights:  # a head fits the cache
        spread = head.std(axis=0)
        scaled = np.divide(head - head.mean(axis=0), spread, out=np.zeros_like(head), where=spread > 0)
        total += median_over_frames(scaled)
    return total / np.float32(len(weights))


def median_over_frames(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the medians of seven frames, [rows, frames], with the rows reflected at their ends.

    Fewer than four frames remain as they are.
    """
    length = rows.shape[-1]
    if length <= _HALF_WIDTH:
        return rows
    padded = np.pad(rows, ((0, 0), (_HALF_WIDTH, _HALF_WIDTH)), mode="reflect")
    places = [padded[:, k : k + length] for k in range(2 * _HALF_WIDTH + 1)]
    for low, high in _MEDIAN_OF_7:
        places[low], places[high] = np.minimum(places[low], places[high]), np.maximum(places[low], places[high])
    return places[_HALF_WIDTH]


def first_frames(costs: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the first frame of each row on the cheapest path through `costs`, [rows].

    The path begins at the first row and frame and ends at the last ones; each step goes on by a row, by a frame or by
    both (dynamic time warping). Where a row and both are equally cheap, the step by a frame counts even if it is
    dearer: so do openai-whisper and CTranslate2, and medians make such sums frequent.

    costs : [rows, frames]
    """
    num_rows, num_frames = costs.shape
    # Row d of both has what is d steps of one from the beginning, by rows: all of it follows from rows d - 1 and d - 2.
    steps = np.full((num_rows + num_frames + 1, num_rows + 1), np.inf, np.float32)
    sums = np.full_like(steps, np.inf)
    row, frame = np.ogrid[:num_rows, :num_frames]
    steps[row + frame + 2, row + 1] = costs
    sums[0, 0] = 0
    for d in range(2, len(sums)):
        both, by_row, by_frame = sums[d - 2, :-1], sums[d - 1, :-1], sums[d - 1, 1:]
        least = np.where(both == by_row, by_frame, np.minimum(np.minimum(both, by_row), by_frame))
        np.add(steps[d, 1:], least, out=sums[d, 1:])
    first = np.zeros(num_rows, np.int64)
    i, j = num_rows, num_frames
    while i > 0 and j > 0:
        first[i - 1] = j - 1
        both, by_row, by_frame = sums[i + j - 2, i - 1], sums[i + j - 1, i - 1], sums[i + j - 1, i]
        if both < by_row and both < by_frame:
            i, j = i - 1, j - 1
        elif by_row < both and by_row < by_frame:
            i -= 1
        else:
            j -= 1
    return first
