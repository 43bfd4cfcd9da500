"""Seconds to embed a corpus by actors of Ray, in formulas."""

from __future__ import annotations

from math import ceil

from mha_native_bench.scaling_model.constants import Actor


def corpus_seconds(
    actor: Actor, texts: int, actors: int, *, cores: int | None = None, store_byte: float = 0.0
) -> float:
    """From the start of the actors to the last row.

    Blocks go to actors that are free. So all are busy until blocks run out, and the last ones end up to a block apart:
    with `actors` dividing the number of blocks, together. Ray hands out blocks one after the other, and all rows, texts
    and models pass a store of `store_byte` seconds a byte: whichever takes longest sets the pace. On one machine, of so
    many `cores`, the processes of Ray compute, too.

    Parameters
    ----------
    cores : int, optional
        Of the one machine that all actors share. Default: each has a core, and there are others for the rest.
    store_byte : float, default 0
        Seconds a byte of the store that holds the corpus, the model and the embeddings.
    """
    blocks = ceil(texts / actor.rows)
    rows = min(texts, actor.rows)
    turns = ceil(blocks / actors) * rows * actor.text
    sharing = texts * (actor.text + actor.beside) / cores if cores else 0.0
    handing_out = blocks * actor.block
    passing = texts * actor.row_bytes * store_byte
    starting = actor.start * ceil(actors / (cores or actors)) + actors * actor.model_bytes * store_byte
    return starting + max(turns, sharing, handing_out, passing)


def pace_limits(actor: Actor, *, store_byte: float) -> dict[str, float]:
    """How many actors keep up with each other's means: beyond these, more of them gain nothing."""
    rate = 1 / actor.text
    return {
        "Ray's blocks": actor.rows / actor.block / rate,
        "the store": 1 / (store_byte * actor.row_bytes) / rate if store_byte else float("inf"),
    }
