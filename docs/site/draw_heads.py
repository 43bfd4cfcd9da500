"""Draw heads-*.svg, the pictures of the gallery: python docs/site/draw_heads.py all-MiniLM-L6-v2"""

import sys
from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mha_native.models import SentenceEncoder

HUNGRY, FRESH = "A dog ate the food because it was hungry", "A dog ate the food because it was fresh"
LAYER, HEAD = 4, 2  # counted from 1: the head that resolves "it" by the last word
WRITTEN = 0.2  # larger weights are labelled with their number
COLORS = {"cmap": "viridis", "vmin": 0, "vmax": 1}
WIDTH = 4.2  # inches: each picture fits a phone, and two of them a page


def main(directory: str) -> None:
    model = SentenceEncoder.from_pretrained(directory)
    for text in (HUNGRY, FRESH):
        tokens, weights = model.attention_weights(text)  # [layers, H, T, T]
        _save(_tokens(tokens, weights[LAYER - 1, HEAD - 1]), f"heads-{tokens[-2]}")
    tokens, weights = model.attention_weights(HUNGRY)
    for word in ("dog", "food"):
        _save(_heads(word, weights[:, :, tokens.index("it"), tokens.index(word)]), f"heads-{word}")


def _tokens(tokens: list[str], weights: NDArray) -> Figure:
    """Return the weights [T, T] of a head, a row for each token."""
    figure = Figure(figsize=(WIDTH, WIDTH), layout="constrained")
    panel = figure.subplots()
    panel.imshow(weights, **COLORS)
    panel.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=9)
    panel.set_yticks(range(len(tokens)), tokens, fontsize=9)
    panel.get_yticklabels()[tokens.index("it")].set_fontweight("bold")
    panel.set_title(f"layer {LAYER}, head {HEAD}: ... because it was {tokens[-2]}", fontsize=10)
    return figure


def _heads(word: str, weights: NDArray) -> Figure:
    """Return the weights [layers, H] from "it" to a word in all heads."""
    figure = Figure(figsize=(WIDTH, 0.7 * WIDTH), layout="constrained")
    panel = figure.subplots()
    panel.imshow(weights, **COLORS)
    for layer, head in zip(*(weights > WRITTEN).nonzero(), strict=True):
        weight = weights[layer, head]
        color = "black" if weight > 0.5 else "white"
        panel.text(head, layer, f"{100 * weight:.0f}", ha="center", va="center", color=color, fontsize=9)
    for axis, count in ((panel.xaxis, weights.shape[1]), (panel.yaxis, weights.shape[0])):
        axis.set_ticks(range(count), range(1, count + 1), fontsize=9)
    panel.set_xlabel("head", fontsize=9)
    panel.set_ylabel("layer", fontsize=9)
    panel.set_title(f'from "it" to "{word}", hungry', fontsize=10)
    return figure


def _save(figure: Figure, name: str) -> None:
    FigureCanvasSVG(figure)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "mha_native"}):
        figure.savefig(Path(__file__).parent / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1])
