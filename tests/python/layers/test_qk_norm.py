"""Norms of each head of queries and keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matrix import ALL, matrix
from tolerance import assert_same_bits
from turned_layers import HEADS, E, H, assert_near, in_chunks, random_rows, reference_of, turned_layer

from mha_native import MultiHeadAttention, reference

pytestmark = matrix(dtype=ALL)


@pytest.mark.parametrize("qk_norm", ["layer", "rms", "rms_unit_offset", "rms_joint"])
@pytest.mark.parametrize("head", [HEADS[0], HEADS[3], HEADS[5]], ids=str)
def test_norms_of_heads_are_those_of_the_reference(
    qk_norm: str, head: tuple[int, int, bool], isa: str, dtype: Any
) -> None:
    layer, x = turned_layer(head, dtype, num_kv_heads=2, qk_norm=qk_norm), random_rows(dtype, 2, 37, E)
    for chosen in ({}, {"is_causal": True, "query_offset": 5}):
        assert_near(layer(x, **chosen), reference_of(layer, x, x, x, **chosen))


def test_names_of_norms() -> None:
    def norms(**options: Any) -> dict[str, tuple[int, ...]]:
        state = MultiHeadAttention(E, H, head_dim=6, num_kv_heads=2, **options).state_dict()
        return {name: array.shape for name, array in state.items() if "norm" in name}

    assert norms() == {}
    assert norms(qk_norm="rms") == {"q_norm.weight": (6,), "k_norm.weight": (6,)}
    of_layers = {"q_norm.weight": (6,), "q_norm.bias": (6,), "k_norm.weight": (6,), "k_norm.bias": (6,)}
    assert norms(qk_norm="layer") == of_layers
    assert norms(qk_norm="rms_joint") == {"q_norm.weight": (6 * H,), "k_norm.weight": (12,)}
    kinds = {"layer": 1, "rms": 1, "rms_unit_offset": 0}
    for kind, weight in kinds.items():
        state = MultiHeadAttention(E, H, qk_norm=kind).state_dict()
        assert (state["q_norm.weight"] == weight).all()
    layer = MultiHeadAttention(E, H, qk_norm="rms")
    with pytest.raises(ValueError, match=r"load_state_dict: missing: q_norm\.weight, k_norm\.weight"):
        layer.load_state_dict(MultiHeadAttention(E, H).state_dict())


@pytest.mark.parametrize("qk_norm", ["layer", "rms", "rms_joint"])
def test_norms_without_rotary(qk_norm: str, isa: str) -> None:
    layer, x = turned_layer(qk_norm=qk_norm, rotary=None), random_rows(np.float32, 2, 37, E)
    expected = reference.multi_head_attention(x, x, x, layer.state_dict(), H, is_causal=True, qk_norm=qk_norm)
    assert_near(layer(x, is_causal=True), expected)
    assert_same_bits(in_chunks(7, 8)(layer, x), layer(x, is_causal=True))


Wrong = tuple[Callable[[], Any], type[Exception], list[str]]
WRONG: list[Wrong] = [
    (
        lambda: turned_layer(qk_norm="batch"),
        ValueError,
        ["MultiHeadAttention", "qk_norm", "'rms_unit_offset'", "'batch'"],
    ),
    (lambda: turned_layer(qk_norm=True), TypeError, ["MultiHeadAttention", "qk_norm", "True"]),
    (lambda: turned_layer(qk_norm_eps=-1), ValueError, ["MultiHeadAttention", "qk_norm_eps", "-1"]),
    (lambda: turned_layer(qk_norm_eps="a"), TypeError, ["MultiHeadAttention", "qk_norm_eps"]),
]


@pytest.mark.parametrize(("call", "kind", "words"), WRONG, ids=lambda x: "-".join(x) if type(x) is list else "")
def test_wrong_norms(call: Callable[[], Any], kind: type[Exception], words: list[str]) -> None:
    with pytest.raises(kind) as error:
        call()
    for word in words:
        assert word in str(error.value), str(error.value)
