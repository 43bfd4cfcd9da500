"""Draw patches.svg, the picture of the page Images: python docs/site/draw_patches.py FOLDER

Needs torch and transformers: a small ViT learns in some minutes to name the shape among lines, in pictures that this
program draws. It is saved in FOLDER, and read from there the next time.
"""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from mha_native.models import ImageClassifier, ImageEncoder

SIZE, PATCH = 64, 8
SHAPES = ("disc", "square", "triangle")
SIZES = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96}
STEPS, BATCH = 1800, 64
WIDTH = 6.4  # inches


def picture(
    rng: np.random.Generator, shape: int, size: int = SIZE
) -> tuple[Image.Image, tuple[float, float, float, float]]:
    """Return a picture of a shape among lines, and the box of the shape: its left, upper, right and lower edge."""
    scale = size / SIZE
    image = Image.new("RGB", (size, size), tuple(int(level) for level in rng.integers(90, 166, 3)))
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        ends = (rng.uniform(0, size, 4)).tolist()
        draw.line(ends, fill=tuple(int(level) for level in rng.integers(0, 256, 3)), width=round(2 * scale))
    radius = rng.uniform(8, 12) * scale
    x, y = rng.uniform(radius, size - radius, 2)
    color = tuple(int(level) for level in rng.choice([20, 235], 3))
    box = (x - radius, y - radius, x + radius, y + radius)
    if shape == 0:
        draw.ellipse(box, fill=color)
    elif shape == 1:
        draw.rectangle(box, fill=color)
    else:
        angles = (math.radians(-90 + 120 * i) for i in range(3))
        draw.polygon([(x + radius * math.cos(a), y + radius * math.sin(a)) for a in angles], fill=color)
    return image, box


def trained(folder: Path) -> Path:
    """Write a ViT that has learned the names of shapes, and return its folder."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    names = dict(enumerate(SHAPES))
    config = transformers.ViTConfig(
        image_size=SIZE, patch_size=PATCH, id2label=names, label2id={name: i for i, name in names.items()}, **SIZES
    )
    model = transformers.ViTForImageClassification(config)
    processor = ViTImageProcessorPil(size={"height": SIZE, "width": SIZE})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, STEPS)
    for _ in range(STEPS):
        labels = rng.integers(0, len(SHAPES), BATCH)
        pixels = processor([picture(rng, label)[0] for label in labels], return_tensors="pt")
        loss = model(**pixels, labels=torch.from_numpy(labels)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def main(name: str) -> None:
    """Draw a picture of each shape, with the weights from the row of the class in the head that looks at shapes."""
    folder = Path(name)
    if not (folder / "config.json").exists():
        trained(folder)
    rng = np.random.default_rng(1000)
    classifier, encoder = ImageClassifier.from_pretrained(folder), ImageEncoder.from_pretrained(folder)
    tests = [(label, *picture(rng, label)) for label in rng.integers(0, len(SHAPES), 300).tolist()]
    best = classifier.classify([image for _, image, _ in tests], top_k=1)
    is_right = [found[0]["label"] == SHAPES[label] for found, (label, _, _) in zip(best, tests, strict=True)]
    print(f"{sum(is_right)} of {len(tests)} right")
    shares = np.mean([_inside(_maps(encoder, image), box) for _, image, box in tests[:60]], 0)
    layer, head = np.unravel_index(shares.argmax(), shares.shape)
    print(
        f"layer {layer + 1}, head {head + 1}: {shares[layer, head]:.0%} of the weights are inside the box of the shape"
    )
    figure = Figure(figsize=(WIDTH, 0.74 * WIDTH), layout="constrained")
    panels = figure.subplots(2, len(SHAPES))
    for label, (above, below) in enumerate(panels.T):
        found: dict[str, Any] = {}
        while found.get("label") != SHAPES[label]:  # a picture that the model names correctly
            image, _ = picture(rng, label, 8 * SIZE)
            (found,) = classifier.classify(image, top_k=1)
        weights = _maps(encoder, image)[layer, head]
        brightness = Image.fromarray(np.sqrt(weights / weights.max()))
        light = np.asarray(brightness.resize(image.size, Image.Resampling.NEAREST))
        above.imshow(image)
        below.imshow(np.asarray(image) / 255 * (0.15 + 0.85 * light[:, :, None]))
        above.set_title(f"{found['label']}, {found['score']:.0%}", fontsize=10)
    panels[1, 1].set_xlabel(f"layer {layer + 1}, head {head + 1}: where the row of the class looks", fontsize=10)
    for panel in panels.flat:
        panel.set_xticks([])
        panel.set_yticks([])
    FigureCanvasSVG(figure)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "mha_native"}):
        figure.savefig(Path(__file__).with_name("patches.svg"), metadata={"Date": None}, dpi=80)


def _maps(encoder: ImageEncoder, image: Image.Image) -> NDArray[np.float32]:
    """Return the weights from the row of the class to the patches, [layers, H, rows, columns]."""
    weights = encoder.attention_weights(image)[:, :, 0, encoder.num_special_rows :]
    return weights.reshape(*weights.shape[:2], *encoder.patch_grid)


def _inside(maps: NDArray[np.float32], box: tuple[float, float, float, float]) -> NDArray[np.float32]:
    """Return the share of the weights in patches that the box of a shape touches, [layers, H]."""
    left, upper, right, lower = (round(edge) for edge in np.array(box) / PATCH + (-0.5, -0.5, 0.5, 0.5))
    part = maps[:, :, max(upper, 0) : lower, max(left, 0) : right]
    return part.sum((2, 3)) / maps.sum((2, 3))


if __name__ == "__main__":
    main(*sys.argv[1:])
