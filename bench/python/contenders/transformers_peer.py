"""Transformers on torch: its BERT with fused attention, and mean pooling as sentence-transformers has it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from encoder_inputs import padded_texts
from shapes import Array, Case, Inputs
from torch.nn import functional

from .contender import CannotCompute, Contender, Program
from .torch_peer import array_of, turn

transformers.logging.set_verbosity_error()  # it says at length what it does not load
transformers.logging.disable_progress_bar()

# Of texts sorted by length: the default of sentence-transformers, which sorts them, too, and one with less padding.
SORTED_BATCHES = (32, 8)


Form = tuple[str, list[int], list[tuple[Array, ...]]]  # a name, the order of the texts, and batches of ids and masks


class Transformers(Contender):
    name = "transformers"

    def description(self) -> str:
        return f"{transformers.__version__} on torch {torch.__version__}; BertModel, sdpa; threads and mode as torch"

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if case.kind != "sentences":
            raise CannotCompute("models only")
        if case.weights:  # by dynamic quantization, which gives all rows of a batch one scale
            raise CannotCompute("in int8 off by a third of the largest number")
        if case.dtype not in ("f32", "bf16"):
            raise CannotCompute(f"no {case.dtype_name} here")
        embed = load_embedder(inputs.model, case.dtype)

        def program(variant: str, order: list[int], batches: list[tuple[Array, ...]]) -> Program:
            tensors = [tuple(map(torch.from_numpy, batch)) for batch in batches]
            return Program(
                self.name,
                threads,
                lambda: [embed(*batch) for batch in tensors],
                turn(threads, True),
                lambda parts: in_order(order, [array_of(part) for part in parts]),
                variant,
            )

        return [program(*form) for form in forms(case, inputs)]


class Embedder(torch.nn.Module):
    """Token ids [B, T], and a mask [B, T] if there is padding, to embeddings [B, E] of length 1."""

    def __init__(self, bert: torch.nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        rows = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        if mask is None:
            mean = rows.mean(dim=1)
        else:
            taken = mask[..., None].to(rows.dtype)
            mean = (rows * taken).sum(dim=1) / taken.sum(dim=1)
        return functional.normalize(mean, dim=-1)


@lru_cache(maxsize=1)
def load_embedder(directory: Path, dtype: str) -> Embedder:
    """One for all numbers of threads."""
    bert: Any = transformers.BertModel.from_pretrained(
        directory,
        attn_implementation="sdpa",
        add_pooling_layer=False,
        dtype=torch.bfloat16 if dtype == "bf16" else torch.float32,
    )
    return Embedder(bert).eval()


def forms(case: Case, inputs: Inputs) -> list[Form]:
    """How a batch may be put to a model that wants rectangles."""
    texts = list(inputs.arrays)
    given = list(range(case.B))
    if case.shortest == case.Tq:  # a mask that hides nothing, as tokenizers make it, or none
        ids, mask = padded_texts(texts)
        return [("mask", given, [(ids, mask)]), ("no mask", given, [(ids,)])]
    by_length = sorted(given, key=lambda i: -len(texts[i]))
    made: list[Form] = [("padded", given, [padded_texts(texts)])]
    for size in SORTED_BATCHES:
        groups = [by_length[first : first + size] for first in range(0, case.B, size)]
        made.append((f"sorted, {size}", by_length, [padded_texts([texts[i] for i in group]) for group in groups]))
    return made


def in_order(order: list[int], parts: list[Array]) -> Array:
    """Embeddings in the order of the texts."""
    rows = np.concatenate(parts)
    out = np.empty_like(rows)
    out[order] = rows
    return out
