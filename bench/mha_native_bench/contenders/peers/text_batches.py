"""Texts of different lengths as the rectangular batches that other libraries take."""

from __future__ import annotations

import numpy as np

from mha_native_bench.cases.case import Array, Case
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.cases.padding import padded_texts

# Texts in a batch, if they are sorted by length: the default of sentence-transformers, which sorts them too, and a
# smaller number, which pads less.
SORTED_BATCHES = (32, 8)

Batches = list[tuple[Array, ...]]  # token ids [n, T], and mask [n, T] if there is one
Form = tuple[str, list[int], Batches]  # a name, the order of the texts, and the texts in that order


def forms(case: Case, inputs: Inputs) -> list[Form]:
    """The forms in which the texts of a case are given to a library."""
    texts = list(inputs.arrays)
    given = list(range(case.B))
    if case.shortest == case.Tq:  # all texts have one length: with the mask that tokenizers make, and without
        ids, mask = padded_texts(texts)
        return [("mask", given, [(ids, mask)]), ("no mask", given, [(ids,)])]
    by_length = sorted(given, key=lambda i: -len(texts[i]))
    made: list[Form] = [("padded", given, [padded_texts(texts)])]
    for size in SORTED_BATCHES:
        groups = [by_length[first : first + size] for first in range(0, case.B, size)]
        made.append((f"sorted, {size}", by_length, [padded_texts([texts[i] for i in group]) for group in groups]))
    return made


def in_order(order: list[int], parts: list[Array]) -> Array:
    """The embeddings of all batches, back in the order of the texts."""
    rows = np.concatenate(parts)
    out = np.empty_like(rows)
    out[order] = rows
    return out
