"""Semantic search: find sentences that answer a question, even if they share no word with it.

    python examples/encode_sentences.py [MODEL [QUESTION]]

The model is a directory or a name; default: the environment variable MHA_NATIVE_MODEL, or else all-MiniLM-L6-v2.
"""

import os
import sys
from pathlib import Path

import numpy as np

from mha_native.models import SentenceEncoder

name = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("MHA_NATIVE_MODEL", "all-MiniLM-L6-v2")
questions = sys.argv[2:] or [
    "Where do I get rid of an old couch?",
    "Who helps when my son falls ill on Saturday night?",
    "I dropped my purse on the train.",
    "Is there WLAN?",
]

try:
    model = SentenceEncoder.from_pretrained(name)
except (ImportError, OSError) as error:
    sys.exit(f"{error}\nexamples/README.md says how to get the model.")
sentences = Path(__file__).with_name("town_notes.txt").read_text(encoding="utf-8").splitlines()
notes = model.encode(sentences)  # [N, E], each of length 1, so a dot product is a cosine
for question, embedding in zip(questions, model.encode(questions), strict=True):
    likeness = notes @ embedding
    print(question)
    for best in np.argsort(-likeness)[:3]:
        print(f"  {likeness[best]:.2f}  {sentences[best]}")

# A sentence has the same bits alone and in a batch.
assert all(np.array_equal(model.encode(sentence), note) for sentence, note in zip(sentences, notes, strict=True))
assert len(sys.argv) > 2 or "sofas" in sentences[np.argmax(notes @ model.encode(questions[0]))]
