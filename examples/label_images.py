"""Zero-shot classification by CLIP or SigLIP: which of your own labels describes an image, without training.

    python examples/label_images.py [MODEL [IMAGE ...]]

The model is a directory of transformers, or a name such as openai/clip-vit-base-patch32; default: the environment
variable MHA_NATIVE_IMAGE_MODEL. Without images, the program draws a red disc, a green square and blue stripes.
"""

import os
import sys
import tempfile
from pathlib import Path

try:
    from PIL import Image, ImageDraw
except ImportError:
    sys.exit("this example needs the package Pillow: pip install Pillow tokenizers")

from mha_native.models import ImageTextEncoder

LABELS = ["a red disc", "a green square", "blue stripes"]


def draw(folder: Path) -> list[str]:
    """Draw an image for each label, and return their paths."""
    paths = []
    for i, name in enumerate(("disc", "square", "stripes")):
        image = Image.new("RGB", (320, 240), "white")
        pen = ImageDraw.Draw(image)
        if name == "disc":
            pen.ellipse((90, 50, 230, 190), fill="red")
        elif name == "square":
            pen.rectangle((90, 50, 230, 190), fill="green")
        else:
            for x in range(0, 320, 40):
                pen.rectangle((x, 0, x + 20, 240), fill="blue")
        paths.append(str(folder / f"{i}-{name}.png"))
        image.save(paths[-1])
    return paths


name = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("MHA_NATIVE_IMAGE_MODEL")
if name is None:
    print("give a model of images and texts: python examples/label_images.py MODEL", file=sys.stderr)
    raise SystemExit
try:
    model = ImageTextEncoder.from_pretrained(name)
except (ImportError, OSError, ValueError) as error:
    sys.exit(f"{error}\nexamples/README.md says how to get the model.")
folder = tempfile.TemporaryDirectory()
paths = sys.argv[2:] or draw(Path(folder.name))

# A sentence around a label is closer to the texts that the model has read than the label alone.
probabilities = model.probabilities(paths, [f"a picture of {label}" for label in LABELS])
for path, row in zip(paths, probabilities, strict=True):
    best = ", ".join(f"{label} {share:.0%}" for share, label in sorted(zip(row, LABELS, strict=True), reverse=True))
    print(f"{Path(path).name}: {best}")

# The same by vectors, which can be stored: the label whose vector is closest to the one of the image.
images, texts = model.encode_images(paths), model.encode_texts([f"a picture of {label}" for label in LABELS])
assert ((images @ texts.T).argmax(axis=1) == probabilities.argmax(axis=1)).all()
