"""Transcripts as files: text, subtitles, tables and JSON, character for character as openai-whisper writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ._options import Segment, Word

_PAUSE = 3.0  # seconds between words that end a subtitle
_NO_LIMIT = 1000  # characters of a line, or words

# The fields of a segment in JSON, in their order; `words` follow where they are known.
_FIELDS = (
    *("id", "seek", "start", "end", "text", "tokens", "temperature"),
    *("avg_logprob", "compression_ratio", "no_speech_prob"),
)


@dataclass(frozen=True)
class Layout:
    """The lines of subtitles with words.

    Parameters
    ----------
    max_line_width : int, optional
        Characters of a line.
    max_line_count : int, optional
        Lines of a subtitle. With `max_line_width`, segments are joined, else each one begins a subtitle.
    max_words_per_line : int, optional
        Words of a subtitle.
    highlight_words : bool
        A subtitle for each word, which is underlined.
    """

    max_line_width: int | None = None
    max_line_count: int | None = None
    max_words_per_line: int | None = None
    highlight_words: bool = False


Write: TypeAlias = Callable[[Iterable[Segment], str, Layout], Iterator[str]]


def write_txt(segments: Iterable[Segment], language: str, layout: Layout) -> Iterator[str]:
    """Yield a line for each segment."""
    for segment in segments:
        yield f"{segment.text.strip()}\n"


def write_srt(segments: Iterable[Segment], language: str, layout: Layout) -> Iterator[str]:
    """Yield subtitles of SubRip."""
    for number, (start, end, text) in enumerate(subtitles(segments, layout), 1):
        yield f"{number}\n{_clock(start, ',', True)} --> {_clock(end, ',', True)}\n{text}\n\n"


def write_vtt(segments: Iterable[Segment], language: str, layout: Layout) -> Iterator[str]:
    """Yield subtitles of WebVTT."""
    yield "WEBVTT\n\n"
    for start, end, text in subtitles(segments, layout):
        yield f"{_clock(start, '.', False)} --> {_clock(end, '.', False)}\n{text}\n\n"


def write_tsv(segments: Iterable[Segment], language: str, layout: Layout) -> Iterator[str]:
    """Yield a table of milliseconds and texts, with tabs between them."""
    yield "start\tend\ttext\n"
    for segment in segments:
        text = segment.text.strip().replace("\t", " ")
        yield f"{round(1000 * segment.start)}\t{round(1000 * segment.end)}\t{text}\n"


def write_json(segments: Iterable[Segment], language: str, layout: Layout) -> Iterator[str]:
    """Yield an object with the text, its segments and the language. It is written when the last segment is there."""
    kept = list(segments)
    found = []
    for number, segment in enumerate(kept):
        of_segment = {name: getattr(segment, name) for name in _FIELDS} | {"id": number}
        if segment.words is not None:
            of_segment["words"] = [
                {name: getattr(word, name) for name in ("word", "start", "end", "probability")}
                for word in segment.words
            ]  # fmt: skip
        found.append(of_segment)
    text = "".join(segment.text for segment in kept)
    yield json.dumps({"text": text, "segments": found, "language": language})


WRITERS: dict[str, Write] = {
    "txt": write_txt,
    "srt": write_srt,
    "vtt": write_vtt,
    "json": write_json,
    "tsv": write_tsv,
}


def subtitles(segments: Iterable[Segment], layout: Layout) -> Iterator[tuple[float, float, str]]:
    """Yield start, end and text of each subtitle: a segment, or lines of words where words are known."""
    kept = iter(segments)
    first = next(kept, None)
    if first is None:
        return
    if first.words is None:
        for segment in _after(first, kept):
            yield segment.start, segment.end, segment.text.strip().replace("-->", "->")
        return
    for words in _lines(_after(first, kept), layout):
        if layout.highlight_words:
            yield from _highlighted(words)
        else:
            yield words[0].start, words[-1].end, "".join(word.word for word in words)


def _after(first: Segment, others: Iterator[Segment]) -> Iterator[Segment]:
    yield first
    yield from others


def _lines(segments: Iterable[Segment], layout: Layout) -> Iterator[list[Word]]:
    """Yield the words of each subtitle; the first one of a further line begins with a line break."""
    joins = layout.max_line_count is not None and layout.max_line_width is not None
    width, most = layout.max_line_width or _NO_LIMIT, layout.max_words_per_line or _NO_LIMIT
    words: list[Word] = []
    characters, lines, last = 0, 1, None
    for segment in segments:
        for place, word in enumerate(segment.words or ()):
            last = word.start if last is None else last
            is_pause = joins and word.start - last > _PAUSE
            begins = not joins and place % most == 0 and bool(words)
            if characters and characters + len(word.word) <= width and not is_pause and not begins:
                text = word.word
                characters += len(text)
            else:
                text = word.word.strip()
                is_full = layout.max_line_count is not None and (is_pause or lines >= layout.max_line_count)
                if begins or (words and is_full):
                    yield words
                    words, lines = [], 1
                elif characters:
                    lines += 1
                    text = f"\n{text}"
                characters = len(text.strip())
            words.append(replace(word, word=text))
            last = word.start
    if words:
        yield words


def _highlighted(words: Sequence[Word]) -> Iterator[tuple[float, float, str]]:
    """Yield a subtitle for each word, which is underlined, and one for each pause."""
    last = words[0].start
    for word in words:
        if _milliseconds(word.start) != _milliseconds(last):
            yield last, word.start, "".join(each.word for each in words)
        yield word.start, word.end, "".join(_underlined(each.word) if each is word else each.word for each in words)
        last = word.end


def _underlined(text: str) -> str:
    stripped = text.lstrip()
    return f"{text[: len(text) - len(stripped)]}<u>{stripped}</u>"


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _clock(seconds: float, point: str, has_hours: bool) -> str:
    """Return a time as hours, minutes, seconds and milliseconds; without hours if they are 0 and not asked for."""
    minutes, rest = divmod(_milliseconds(seconds), 60_000)
    hours, minutes = divmod(minutes, 60)
    begin = f"{hours:02}:" if has_hours or hours else ""
    return f"{begin}{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"
