"""The parts of a corpus on Ray, and whole runs, in seconds, as JSON on standard output.

    python -m mha_native_bench.scaling_model.actors MODEL alone|ray

`alone` waits for a line on standard input before it measures, so that several can begin at once.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

# Read as libraries are loaded: one thread of each process, and nothing said beside the result.
os.environ |= {"RAYON_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}

import mha_native
from mha_native.models import SentenceEncoder
from mha_native_bench.scaling_model.checks import PROCESSES

# Texts of a block, and of a run that is predicted and measured.
ROWS, TEXTS = 100, 6000

_WORDS = [
    "the",
    "old",
    "mill",
    "by",
    "the",
    "river",
    "grinds",
    "corn",
    "again",
    "since",
    "a",
    "heron",
    "nests",
    "on",
    "its",
    "roof",
    "and",
    "children",
    "count",
    "the",
    "turns",
]


def texts_of(count: int) -> list[str]:
    """So many texts of 18 words and a number."""
    return [
        " ".join(_WORDS[(i * 7 + j * (1 + i % 5)) % len(_WORDS)] for j in range(18)) + f" {i}" for i in range(count)
    ]


def seconds_of_a_text(model: str) -> float:
    """By one thread of this process."""
    mha_native.set_num_threads(1)
    encoder = SentenceEncoder.from_pretrained(model)
    texts = texts_of(ROWS)
    encoder.encode(texts)
    sys.stdin.readline()
    times = []
    for _ in range(15):
        begin = time.perf_counter()
        encoder.encode(texts)
        times.append((time.perf_counter() - begin) / ROWS)
    return statistics.median(times)


def run_seconds(model: str, count: int, rows: int, actors: int) -> float:
    """From the start of the actors until all rows are here."""
    import ray.data

    from mha_native.distributed.ray import embed

    items = [{"text": text} for text in texts_of(count)]
    dataset = ray.data.from_items(items, override_num_blocks=-(-count // rows)).materialize()
    result = embed(dataset, model, concurrency=actors, batch_size=rows)
    begin = time.perf_counter()
    arrived = sum(len(batch["text"]) for batch in result.iter_batches(batch_size=None, batch_format="numpy"))
    assert arrived == count
    return time.perf_counter() - begin


def busy_seconds() -> float:
    """Of all processors, by all processes, since the system began."""
    user, nice, system, _, _, interrupts, soft_interrupts = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")


def on_ray(model: str) -> dict[str, Any]:
    """What the start of an actor and a block take, and whole runs."""
    import ray

    ray.init(num_cpus=max(PROCESSES) + 1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    run_seconds(model, 4, 1, 1)  # what Ray does only once
    few, many = 8, 200
    starts = [run_seconds(model, few, 1, 1) for _ in range(3)]
    encoder = SentenceEncoder.from_pretrained(model)
    begin = time.perf_counter()
    for text in texts_of(many):
        encoder.encode([text])
    text_seconds = (time.perf_counter() - begin) / many
    block = (run_seconds(model, many, 1, 1) - sorted(starts)[1]) / (many - few) - text_seconds
    embedding = encoder.encode(texts_of(1)).nbytes
    parts = {
        "start": sorted(starts)[1],
        "block": block,
        "rows": ROWS,
        "row_bytes": sum(map(len, texts_of(ROWS))) / ROWS + embedding,
        "model_bytes": sum(path.stat().st_size for path in Path(model).rglob("*") if path.is_file()),
    }
    runs = []
    for actors in PROCESSES:
        before = busy_seconds()
        took = run_seconds(model, TEXTS, ROWS, actors)
        if actors == 1:  # it computes all the time, and the rest of what processors do is beside it
            parts["beside"] = max(0.0, busy_seconds() - before - took) / TEXTS
        runs.append({"processes": actors, "texts": TEXTS, "measured": took})
    ray.shutdown()
    return {"parts": parts, "runs": runs}


if __name__ == "__main__":
    _, place, what = sys.argv
    print(json.dumps(on_ray(place) if what == "ray" else {"text": seconds_of_a_text(place)}))
