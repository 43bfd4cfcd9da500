"""Layers whose feed-forward reads their input, and not the sum with the attention."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from tolerance import assert_same_bits

from mha_native import (
    CausalDecoder,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    MultiHeadAttention,
    RMSNorm,
    RotaryEmbedding,
    reference,
)

E, H, F = 24, 4, 40


def _layer(dtype: Any = "float32", **norms: Any) -> EncoderLayer:
    rotary = RotaryEmbedding.from_base(4, 64, dtype="float64" if dtype == "float64" else "float32")
    attention = MultiHeadAttention(E, H, num_kv_heads=2, qk_norm="rms_joint", rotary=rotary, dtype=dtype, seed=1)
    hidden = FeedForward(E, F, activation="gelu", dtype=dtype, seed=2)
    layer = EncoderLayer.from_parts(attention, hidden, **norms, parallel=True)
    rng = np.random.default_rng(3)
    noisy = {name: x + 0.3 * rng.standard_normal(x.shape) for name, x in layer.state_dict().items()}
    layer.load_state_dict({name: x.astype(dtype) for name, x in noisy.items()})
    return layer


NORMS: dict[str, Any] = {
    "two": {"norm1": LayerNorm(E), "norm2": LayerNorm(E)},
    "one for both": {"norm1": LayerNorm(E)},
    "all": {name: RMSNorm(E) for name in ("norm1", "norm2", "output_norm1", "output_norm2")},
    "none": {},
}


@pytest.mark.parametrize("norms", NORMS)
def test_the_layer_of_the_reference(norms: str, isa: str) -> None:
    layer = _layer(**NORMS[norms])
    x = np.random.default_rng(4).standard_normal((2, 9, E)).astype(np.float32)
    rotary: Any = layer.self_attn.rotary
    expected = reference.encoder_layer(
        x, layer.state_dict(), H, num_kv_heads=2, activation="gelu", norm_first=True, parallel=True,
        norm="rms" if norms == "all" else "layer", is_causal=True, qk_norm="rms_joint",
        rotary=(rotary.cos, rotary.sin, rotary.interleaved),
    )  # fmt: skip
    whole = layer(x, is_causal=True)
    assert np.abs(whole - expected).max() <= 1e-5 * np.abs(expected).max()
    for threads in (1, 3):
        assert_same_bits(layer(x, is_causal=True, num_threads=threads), whole)
    cache = layer.new_cache(2, 9)
    steps = [layer(x[:, begin:end], cache=cache, is_causal=True) for begin, end in ((0, 5), (5, 6), (6, 9))]
    assert_same_bits(np.concatenate(steps, axis=1), whole)
    in_place = x.copy()
    assert_same_bits(layer(in_place, is_causal=True, out=in_place), whole)


def test_copies_are_parallel() -> None:
    layer = _layer(norm1=LayerNorm(E))
    x = np.random.default_rng(4).standard_normal((2, 9, E)).astype(np.float32)
    assert (layer.norm_first, layer.norm2) == (True, None)
    assert "parallel=True" in repr(layer)
    copies = [copy.copy(layer), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer.quantize("float32")]
    for other in (*copies, layer.astype("float64").astype("float32"), CausalDecoder.from_layers([layer])):
        assert_same_bits(other(x, is_causal=True), layer(x, is_causal=True))
    layer.parallel = False
    assert np.abs(layer(x, is_causal=True) - copies[0](x, is_causal=True)).max() > 0.1


def test_there_are_no_gradients() -> None:
    with pytest.raises(ValueError, match=r"^EncoderLayer\.forward_and_record: a parallel layer has no gradients"):
        _layer(norm1=LayerNorm(E)).forward_and_record(np.ones((1, 3, E), np.float32))
