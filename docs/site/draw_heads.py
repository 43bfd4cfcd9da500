"""Draw heads.svg, the picture of the gallery: python docs/site/draw_heads.py all-MiniLM-L6-v2"""

import sys
from pathlib import Path

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from mha_native.models import SentenceEncoder

HUNGRY, FRESH = "A dog ate the food because it was hungry", "A dog ate the food because it was fresh"
LAYER, HEAD = 4, 2  # counted from 1: the head that resolves "it" by the last word
WRITTEN = 0.2  # larger weights are labelled with their number
COLORS = {"cmap": "viridis", "vmin": 0, "vmax": 1}


def main(directory: str) -> None:
    model = SentenceEncoder.from_pretrained(directory)
    figure = Figure(figsize=(8, 6.6), layout="constrained")
    FigureCanvasSVG(figure)
    upper, lower = figure.subplots(2, 2, height_ratios=[11, 6.5])

    for panel, text in zip(upper, (HUNGRY, FRESH), strict=True):
        tokens, weights = model.attention_weights(text)  # [layers, H, T, T]
        picture = panel.imshow(weights[LAYER - 1, HEAD - 1], **COLORS)
        panel.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=9)
        panel.set_yticks(range(len(tokens)), tokens, fontsize=9)
        panel.get_yticklabels()[tokens.index("it")].set_fontweight("bold")
        panel.set_title(f"... because it was {tokens[-2]}", fontsize=11)
    upper[0].set_ylabel(f"layer {LAYER}, head {HEAD}")

    tokens, weights = model.attention_weights(HUNGRY)
    for panel, word in zip(lower, ("dog", "food"), strict=True):
        to_word = weights[:, :, tokens.index("it"), tokens.index(word)]  # [layers, H]
        panel.imshow(to_word, **COLORS)
        for layer, head in zip(*(to_word > WRITTEN).nonzero(), strict=True):
            weight = to_word[layer, head]
            color = "black" if weight > 0.5 else "white"
            panel.text(head, layer, f"{100 * weight:.0f}", ha="center", va="center", color=color, fontsize=9)
        for axis, count in ((panel.xaxis, model.num_heads), (panel.yaxis, model.num_layers)):
            axis.set_ticks(range(count), range(1, count + 1), fontsize=9)
        panel.set_xlabel("head")
        panel.set_title(f'from "it" to "{word}", hungry', fontsize=11)
    lower[0].set_ylabel("layer")

    figure.colorbar(picture, ax=figure.axes, label="weight", shrink=0.6)
    figure.savefig(Path(__file__).parent / "heads.svg", metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1])
