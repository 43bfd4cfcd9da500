"""Search in two steps: embeddings find notes that may answer a question, and a cross-encoder ranks them.

    python examples/search_and_rerank.py [MODEL [CROSS_ENCODER]]

The model is a directory or a name; default: the environment variable MHA_NATIVE_MODEL, or else all-MiniLM-L6-v2. The
cross-encoder can be cross-encoder/ms-marco-MiniLM-L6-v2; without one the notes keep the order of the search.
"""

import os
import sys
from pathlib import Path

from mha_native.sentence_transformers import CrossEncoder, SentenceTransformer

QUESTIONS = [
    "Where do I get rid of an old couch?",
    "Who helps when my son falls ill on Saturday night?",
    "When may I mow the lawn?",
    "Can I swim in June?",
]

name = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("MHA_NATIVE_MODEL", "all-MiniLM-L6-v2")
try:
    model = SentenceTransformer(name)
    reranker = CrossEncoder(sys.argv[2]) if len(sys.argv) > 2 else None
except (ImportError, OSError) as error:
    sys.exit(f"{error}\nexamples/README.md says how to get the model.")
notes = Path(__file__).with_name("town_notes.txt").read_text(encoding="utf-8").splitlines()
embeddings = model.encode_document(notes)

for question in QUESTIONS:
    likeness = model.similarity(model.encode_query(question), embeddings)[0]
    found = likeness.argsort()[::-1][: 10 if reranker else 3]
    print(question)
    if reranker is None:
        for i in found:
            print(f"  {likeness[i]:5.2f}  {notes[i]}")
        continue
    for entry in reranker.rank(question, [notes[i] for i in found], top_k=3):
        i = found[entry["corpus_id"]]
        print(f"  {entry['score']:5.2f}  {notes[i]}  (search: {likeness[i]:.2f})")
