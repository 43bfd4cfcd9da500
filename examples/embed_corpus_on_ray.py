"""Embed a corpus with Ray actors: the same bits as in one process, and the speed.

    python examples/embed_corpus_on_ray.py [--model MODEL] [--texts N] [--actors N]

The model is a directory or a name; default: the environment variable MHA_NATIVE_MODEL, or else all-MiniLM-L6-v2. An
actor needs seconds to start, so speeds are printed for 5000 texts and more; use --texts 20000.
"""

import argparse
import logging
import os
import sys
import time
from pathlib import Path

# One thread for each process, so that each actor uses one processor. Libraries read these variables when they load.
os.environ |= {"RAYON_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}

import numpy as np

import mha_native
from mha_native.distributed.ray import embed
from mha_native.models import SentenceEncoder

parser = argparse.ArgumentParser()
parser.add_argument("--model", default=os.environ.get("MHA_NATIVE_MODEL", "all-MiniLM-L6-v2"))
parser.add_argument("--texts", type=int, default=400)
parser.add_argument("--actors", type=int, default=2)
options = parser.parse_args()

try:
    import ray
    import ray.data
except ImportError:
    print('this example needs the package ray: pip install "ray[data]"')
    sys.exit()

notes = Path(__file__).with_name("town_notes.txt").read_text(encoding="utf-8").splitlines()
texts = [f"{notes[i % len(notes)]} {notes[i * 7 % len(notes)]} ({i})" for i in range(options.texts)]

mha_native.set_num_threads(1)
try:
    encoder = SentenceEncoder.from_pretrained(options.model)
except (ImportError, OSError) as error:
    sys.exit(f"{error}\nexamples/README.md says how to get the model.")
begin = time.perf_counter()
expected = encoder.encode(texts)
alone = len(texts) / (time.perf_counter() - begin)
shows_speed = len(texts) >= 5000
if shows_speed:
    print(f"1 process, 1 thread   {alone:7.0f} texts/s")

ray.init(num_cpus=options.actors + 1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
logging.getLogger("ray.data").setLevel(logging.ERROR)
rows = [{"number": i, "text": text} for i, text in enumerate(texts)]
for actors in range(1, options.actors + 1):
    dataset = ray.data.from_items(rows, override_num_blocks=max(4, len(rows) // 250))
    result = embed(dataset, options.model, concurrency=actors, batch_size=min(250, len(rows) // 4))
    begin = time.perf_counter()
    arrived, numbers, embeddings = [], [], []
    for batch in result.iter_batches(batch_size=None, batch_format="numpy"):
        arrived.append(time.perf_counter())
        numbers.append(batch["number"])
        embeddings.append(batch["embedding"])

    # Rows arrive in the order in which actors finish them, with the same bits as in one process.
    assert np.array_equal(np.concatenate(embeddings), expected[np.concatenate(numbers)])
    name = f"{actors} actor{'s' if actors > 1 else ' '} of 1 thread"
    if not shows_speed:
        print(f"{name}: the same bits as in one process")
        continue
    whole = len(texts) / (arrived[-1] - begin)
    running = (len(texts) - len(numbers[0])) / (arrived[-1] - arrived[0])
    start = f"the first rows after {arrived[0] - begin:.1f} s, then {running:.0f} texts/s, {running / alone:.2f} x"
    print(f"{name}  {whole:7.0f} texts/s, {whole / alone:.2f} x; {start}")
ray.shutdown()
