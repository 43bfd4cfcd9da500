"""The search for texts by an encoder-decoder: several texts at once, each by its beams."""

from collections.abc import Sequence

import numpy as np

from ..architecture.model import Model
from ..text.batching import packed
from .beam_search import BeamRules, BeamSearch, Found, SpecialTokens
from .decoding import FIRST_ROOM


def search(
    model: Model, sequences: Sequence[list[int]], rules: BeamRules, special: SpecialTokens, num_threads: int | None
) -> list[Found]:
    """Return the best text for each of some texts, given as tokens."""
    batch, beams = len(sequences), rules.num_beams
    tokens, cu_seqlens = packed(sequences)
    memory = model.hidden_states(tokens, cu_seqlens, num_threads)
    memory_caches = model.project_memory(memory, cu_seqlens, beams, num_threads)
    room = model.room(batch * beams, min(FIRST_ROOM, rules.max_new_tokens))
    searches = [BeamSearch(rules, special) for _ in sequences]
    # Sequence i * beams + j of the caches is beam j of text i. A text has one beam at first.
    tokens, counts = np.zeros(batch * beams, np.int64), np.zeros(batch * beams, np.int64)
    tokens[::beams], counts[::beams] = special.start, 1
    rows = np.arange(batch * beams)
    for place in range(rules.max_new_tokens):
        if place == room.capacity:
            room.grow(min(2 * place, rules.max_new_tokens))
        y = model.read_step(tokens, place, counts, room.caches, memory_caches, num_threads)
        logits = model.logits(y[np.flatnonzero(counts)], num_threads)
        sources, first = rows.copy(), 0
        counts = np.zeros_like(counts)
        for i, of_text in enumerate(searches):
            if not of_text.goes_on:
                continue
            num_read = len(of_text.last_tokens)
            parents = of_text.step(logits[first : first + num_read])
            first += num_read
            begin, end = i * beams, i * beams + len(parents)
            sources[begin:end], counts[begin:end] = begin + parents, 1
            tokens[begin:end] = of_text.last_tokens[: len(parents)]
        if not counts.any():
            break
        if beams > 1:
            for cache in room.caches:
                cache.reorder(sources)
    return [of_text.best for of_text in searches]
