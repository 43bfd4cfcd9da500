"""Draw alignment.svg, the picture of the page Speech: python docs/site/draw_alignment.py whisper-tiny.en talk.wav"""

import sys
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from mha_native.speech import WhisperModel, decode_audio
from mha_native.speech._transcribe import filled
from mha_native.speech._words import FRAMES_PER_SECOND, emphasis, split_to_words

WIDTH, HEIGHT = 8.4, 4.2  # inches


def main(directory: str, recording: str) -> None:
    """Draw how far each word of a short recording looks at each frame more than other words do."""
    whisper = WhisperModel(directory)
    samples = decode_audio(recording)
    segments, _ = whisper.transcribe(samples, word_timestamps=True)
    found = list(segments)
    text = [token for segment in found for token in segment.tokens if token < whisper.tokens.end]
    times = [word for segment in found for word in segment.words]
    read = [whisper.tokens.start, whisper.tokens.no_timestamps, *text, whisper.tokens.end]
    encoded = whisper.model.encode(filled(whisper.mel(samples, padding=160), whisper.model.max_frames)[None])
    frames = len(samples) * FRAMES_PER_SECOND // 16_000
    weights = whisper.model.alignment(encoded, 0, read)[:, :, :frames]
    rows = emphasis(weights / weights.sum(-1, keepdims=True))[1:]  # the row of a token looks for the next one
    words, firsts, place = [], [], 0
    for word, parts in split_to_words(text, whisper.tokens.tokenizer, "en"):
        if word.startswith(" "):  # punctuation belongs to the word before it
            words.append(word.strip())
            firsts.append(place)
        place += len(parts)
    _save(
        _figure(np.stack([rows[a:b].mean(0) for a, b in zip(firsts, [*firsts[1:], place], strict=True)]), words, times)
    )


def _figure(rows, words, times) -> Figure:
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    panel = figure.subplots()
    end = rows.shape[1] / FRAMES_PER_SECOND
    panel.imshow(
        rows, aspect="auto", extent=(0, end, len(words) - 0.5, -0.5), cmap="viridis", vmin=0, interpolation="nearest"
    )
    for row, word in enumerate(times):
        panel.hlines(row + 0.42, word.start, word.end, color="white", linewidth=2)
    panel.set_yticks(range(len(words)), words, fontsize=9)
    panel.set_xlabel("seconds", fontsize=9)
    panel.set_title("where each word looks, and its time", fontsize=10)
    return figure


def _save(figure: Figure) -> None:
    FigureCanvasSVG(figure)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "mha_native"}):
        figure.savefig(Path(__file__).with_name("alignment.svg"), metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
