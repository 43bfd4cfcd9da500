"""The script of perplexities: what it computes, and the formats that it compares."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mha_native_bench.cases.language_model import EMBEDDINGS, language_model_logits, language_model_state
from mha_native_bench.contenders.ours import make_decoder
from mha_native_bench.perplexity import CASE, formats, perplexity, trained

SMALL = dataclasses.replace(CASE, layers=1, Tq=6, Tk=6)


def test_perplexity_is_the_perplexity_of_the_reference() -> None:
    state = language_model_state(SMALL)
    texts = np.random.default_rng(0).integers(0, SMALL.V, (3, SMALL.Tk))
    losses = []
    for end in range(1, SMALL.Tk):
        logits = language_model_logits(SMALL, texts[:, :end], state)
        chosen = np.take_along_axis(logits, texts[:, end : end + 1], 1)[:, 0]
        losses.append(np.log(np.exp(logits).sum(axis=1)) - chosen)
    found = perplexity(SMALL, make_decoder(SMALL, state, None), state[EMBEDDINGS], texts.ravel())
    assert found == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)


def test_formats_are_close_to_the_weights() -> None:
    state = language_model_state(SMALL)
    for name, weights, stored in formats(state):
        assert set(weights) == set(state)
        for key, array in weights.items():
            if stored is None and array is not state[key]:
                assert array.dtype == name
                error = np.linalg.norm(array.dequantize() - state[key])
                assert error < 0.15 * np.linalg.norm(state[key]), name


def test_training_learns_which_bytes_there_are() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    tokens = np.tile(np.frombuffer(b"one two three ", np.uint8).astype(np.int64), 20)
    state = trained(SMALL, tokens, 12)
    assert set(state) == set(language_model_state(SMALL))
    assert perplexity(SMALL, make_decoder(SMALL, state, None), state[EMBEDDINGS], tokens) < SMALL.V / 4
