"""Whose name is in the message: that of the function that was called, and of the argument as its caller wrote it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mha_native as mha
from mha_native import reference
from mha_native.functions.messages import in_the_name_of, listed, rename_arguments, shown

F32 = np.float32
STACK = {"embed_dim": 8, "num_heads": 2, "feedforward_dim": 12, "seed": 0}
DECODER = mha.Decoder(2, **STACK)
MEMORY = np.ones((1, 3, 8), F32)


def _generate(**changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "model": DECODER, "prompts": [[1, 2]], "embeddings": np.ones((5, 8), F32), "max_new_tokens": 2, "memory": MEMORY
    }  # fmt: skip
    return list(mha.generate(**(arguments | changes)))


def _with_one_cache_twice() -> Any:
    caches = DECODER.project_memory(MEMORY)
    return DECODER(MEMORY, caches=caches, memory_caches=caches)


def _with_a_cache_twice() -> Any:
    layer = mha.DecoderLayer(**STACK)
    cache = layer.project_memory(MEMORY)
    return layer(MEMORY, cache=cache, memory_cache=cache)


def _load(keys: Any) -> None:
    cache = mha.KVCache(1, 1, 4, 2)
    cache.load_state_dict(cache.state_dict() | {"keys": keys})


def _attend(**options: Any) -> Any:
    return mha.scaled_dot_product_attention(MEMORY, MEMORY, MEMORY, **options)


def _unaligned() -> Any:
    layer = mha.LayerNorm(4)
    odd = np.zeros(17, np.uint8)[1:].view(F32)
    return layer.load_state_dict(layer.state_dict() | {"bias": odd})


WIDE = np.ones((1, 3, 9), F32)
HUGE = np.broadcast_to(F32(1), (2**50, 1))
CALLS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: mha.sinusoidal_positions(2.5, 4), TypeError, r"sinusoidal_positions: length must be an integer; got 2\.5"),
    (
        lambda: mha.sinusoidal_positions(2, "4"),
        TypeError,
        r"sinusoidal_positions: embed_dim must be an integer; got '4'",
    ),
    (lambda: mha.sinusoidal_positions(2, 4, first_position=0.5), TypeError, r"sinusoidal_positions: first_position "),
    (lambda: mha.sinusoidal_positions(2, 4, dtype="garbage"), TypeError, r"sinusoidal_positions: dtype .* 'garbage'"),
    (lambda: mha.KVCache(1, 1, 1, 1, dtype="garbage"), TypeError, r"KVCache: dtype .* 'garbage'"),
    (lambda: mha.LayerNorm(4, dtype="garbage"), TypeError, r"LayerNorm: dtype .* 'garbage'"),
    (lambda: mha.Encoder(1, **STACK, dtype="garbage"), TypeError, r"Encoder: dtype .* 'garbage'"),
    (lambda: DECODER.astype("garbage"), TypeError, r"Decoder\.astype: dtype .* 'garbage'"),
    (lambda: DECODER.quantize(0.5), TypeError, r"Decoder\.quantize: weight_dtype .* 0\.5"),
    (lambda: mha.MultiHeadAttention(4, 2, seed=-1), ValueError, r"MultiHeadAttention: seed .* -1"),
    (lambda: mha.FeedForward(4, 2, seed="x"), TypeError, r"FeedForward: seed .* 'x'"),
    (lambda: mha.Decoder(1, 8, 2, 3, seed=-1), ValueError, r"Decoder: seed .* -1"),
    (lambda: mha.DecoderLayer(8, 2, 3, num_kv_heads=0), ValueError, r"DecoderLayer: num_kv_heads must be at least 1"),
    (lambda: mha.Encoder(1, 8, 3, 3), ValueError, r"Encoder: .*num_heads"),
    (lambda: mha.Encoder(1, 8, 2, 3, activation="mish"), ValueError, r"Encoder: activation .* 'mish'"),
    (lambda: mha.Encoder(1, 8, 2, 3, layer_options=3), TypeError, r"Encoder: layer_options .* int"),
    (lambda: mha.Encoder(1, 8, 2, 3, layer_options=[3]), TypeError, r"Encoder: layer_options .* int"),
    (lambda: mha.EncoderLayer(8, 2, 3)(WIDE), ValueError, r"EncoderLayer: x "),
    (lambda: mha.EncoderLayer(8, 2, 3)(MEMORY, cache=3), TypeError, r"EncoderLayer: cache must hold a KVCache.*int"),
    (lambda: mha.Encoder(1, 8, 2, 3)(MEMORY, caches=3), TypeError, r"Encoder: caches must hold a KVCache.*int"),
    (
        lambda: mha.Encoder(1, 8, 2, 3)(MEMORY[0], cu_seqlens=np.array([0, 2])),
        ValueError,
        r"Encoder: cu_seqlens .* x, 3",
    ),
    (lambda: DECODER.new_caches(1, -1), ValueError, r"Decoder\.new_caches: capacity .* -1"),
    (lambda: DECODER.layers[0].new_cache(0.5, 1), TypeError, r"DecoderLayer\.new_cache: batch_size .* 0\.5"),
    (
        lambda: DECODER.project_memory(WIDE),
        ValueError,
        r"Decoder\.project_memory: memory must have 8 features; got memory \[1, 3, 9\]$",
    ),
    (lambda: DECODER.project_memory([[1.0]]), TypeError, r"Decoder\.project_memory: memory .* list"),
    (
        lambda: DECODER.project_memory(MEMORY, memory_lengths=np.array([9])),
        ValueError,
        r"Decoder\.project_memory: memory_lengths ",
    ),
    (
        lambda: DECODER.layers[0].project_memory(MEMORY[0, 0]),
        ValueError,
        r"DecoderLayer\.project_memory: memory .*\[8\]",
    ),
    (lambda: _generate(memory=WIDE), ValueError, r"generate: memory .*\[1, 3, 9\]"),
    (lambda: _generate(memory=[[1.0], [2.0, 3.0]]), TypeError, r"generate: memory .* list"),
    (lambda: _generate(memory_lengths=np.array([9])), ValueError, r"generate: memory_lengths "),
    (lambda: _generate(seed=-1, temperature=1.0), ValueError, r"generate: seed .* -1"),
    (lambda: _generate(prompts=[[1], [2, 3]]), TypeError, r"generate: prompts "),
    (lambda: _generate(scale="x"), TypeError, r"generate: scale .* 'x'"),
    (lambda: _generate(max_new_tokens=2**64), ValueError, r"generate: max_new_tokens "),
    (_with_one_cache_twice, ValueError, r"Decoder: memory_caches must not hold a cache that is in caches, too"),
    (_with_a_cache_twice, ValueError, r"DecoderLayer: memory_cache must not hold a cache that is in cache, too"),
    (lambda: mha.KVCache(1, 1, 4, 2).rollback(-1), ValueError, r"KVCache\.rollback: count .* -1"),
    (lambda: mha.KVCache(1, 1, 4, 2).rollback(1), ValueError, r"KVCache\.rollback: count .* 1"),
    (lambda: mha.KVCache(1, 1, 4, 2).load_state_dict(3), TypeError, r"KVCache\.load_state_dict: state .* int"),
    (lambda: _load([1.0]), TypeError, r"KVCache\.load_state_dict: keys .* keys list"),
    (lambda: _load(np.ones((1, 1, 0, 3), F32)), ValueError, r"KVCache\.load_state_dict: keys .* keys \[1, 1, 0, 3\]"),
    (lambda: DECODER.load_state_dict({}), ValueError, r"Decoder\.load_state_dict: missing: .* and more$"),
    (lambda: DECODER.load_state_dict({1, 2}), TypeError, r"Decoder\.load_state_dict: state .* set"),
    (
        lambda: DECODER.load_state_dict({"x" * 1000: 1}),
        ValueError,
        r"Decoder\.load_state_dict: missing: .*; unexpected: ",
    ),
    (_unaligned, TypeError, r"LayerNorm\.load_state_dict: state: bias must be aligned"),
    (lambda: mha.use_isa(3), TypeError, r"use_isa: name "),
    (lambda: mha.use_isa("mmx"), ValueError, r"use_isa: name: unknown instruction set 'mmx'"),
    (lambda: mha.use_threads(0), ValueError, r"use_threads: n: num_threads must be at least 1; got 0"),
    (lambda: mha.set_num_threads("x"), TypeError, r"set_num_threads: n: .* 'x'"),
    (lambda: mha.show_config(3), TypeError, r"show_config: file .* int"),  # type: ignore[arg-type]
    (
        lambda: mha.attention_weights(MEMORY, MEMORY, out=MEMORY),
        ValueError,
        r"attention_weights: out .*out \[1, 3, 8\]",
    ),
    (
        lambda: _attend(softcap=1e-310),
        ValueError,
        r"scaled_dot_product_attention: softcap must be 0, or at least 2\.3e-308",
    ),
    (
        lambda: _attend(scale=-1e-310),
        ValueError,
        r"scaled_dot_product_attention: scale must be 0, or at least 2\.3e-308",
    ),
    (
        lambda: mha.LayerNorm(4, eps=1e-310, dtype="float64"),
        ValueError,
        r"LayerNorm: eps must be 0, or at least 2\.3e-308",
    ),
    (lambda: mha.LayerNorm(4, eps=1e-39), ValueError, r"LayerNorm: eps must be 0, or at least 1\.2e-38"),
    (lambda: mha.RMSNorm(4, eps=1e-39, dtype="bfloat16"), ValueError, r"RMSNorm: eps must be 0, or at least 1\.2e-38"),
    (lambda: mha.Encoder(1, 8, 2, 3, eps=1e-45), ValueError, r"Encoder: eps must be 0, or at least 1\.2e-38"),
    (
        lambda: mha.MultiHeadAttention(8, 2, qk_norm="rms", qk_norm_eps=1e-45),
        ValueError,
        r"MultiHeadAttention: qk_norm_eps must be 0, or at least 1\.2e-38",
    ),
    (
        lambda: mha.RotaryEmbedding.from_base(2048, 32, base=2.3e-308),
        ValueError,
        r"RotaryEmbedding\.from_base: base must be larger, so that all angles are finite",
    ),
    (
        lambda: _generate(repetition_penalty=1e-39),
        ValueError,
        r"generate: repetition_penalty must be at least 1\.2e-38",
    ),
    (lambda: mha.KVCache.over(MEMORY[None], MEMORY[None]), ValueError, r"KVCache\.over: values must not overlap keys"),
    (
        lambda: mha.KVCache(1, 1, 2**50, 4),
        MemoryError,
        rf"KVCache: could not allocate memory for capacity {2**50}, head_dim 4, batch_size 1",
    ),
    (
        lambda: mha.MultiHeadAttention(8, 2).new_cache(1, 2**50),
        MemoryError,
        rf"MultiHeadAttention\.new_cache: could not allocate memory for capacity {2**50}",
    ),
    (lambda: mha.LayerNorm(2**50), MemoryError, rf"LayerNorm: could not allocate memory for embed_dim {2**50}"),
    (
        lambda: mha.Encoder(1, 8, 2, feedforward_dim=2**50, layer_options=None),
        MemoryError,
        rf"Encoder: could not allocate memory for feedforward_dim {2**50}, embed_dim 8",
    ),
    (
        lambda: mha.LayerNorm.from_weights(np.broadcast_to(F32(1), 2**50)),
        MemoryError,
        rf"LayerNorm\.from_weights: could not allocate memory for weight \({2**50},\)",
    ),
    (
        lambda: mha.RotaryEmbedding.from_base(8, 2**50),
        MemoryError,
        rf"RotaryEmbedding\.from_base: could not allocate memory for max_positions {2**50}",
    ),
    (
        lambda: mha.attention_weights(HUGE, HUGE),
        MemoryError,
        r"attention_weights: could not allocate an array for the result; got query \[1125899906842624, 1\], key ",
    ),
    (
        lambda: mha.LayerNorm(1)(HUGE),
        MemoryError,
        r"LayerNorm: could not allocate an array for the result; got x \[1125899906842624, 1\]",
    ),
    (lambda: reference.visible_keys((1, 1, 2**50, 1)), MemoryError, r"reference\.visible_keys: .* shape"),
    (
        lambda: mha.merge_attention(np.ones((0, 1, 2, 3, 4, 5)), np.ones((0, 1, 2, 3, 4))),
        ValueError,
        r"merge_attention: outs ",
    ),
    (lambda: reference.activate(1, "mish"), ValueError, r"reference\.activate: .* name 'mish': KeyError"),
    (
        lambda: reference.attention_weights(MEMORY, WIDE),
        ValueError,
        r"reference\.attention_weights: .* key \[1, 3, 9\]",
    ),
    (
        lambda: reference.encoder(MEMORY, {"layers.0.x": 1}, 2),
        ValueError,
        r"reference\.encoder: .* state dict, num_heads 2",
    ),
]


@pytest.mark.parametrize(("call", "kind", "pattern"), CALLS, ids=[pattern[:40] for _, _, pattern in CALLS])
def test_names(call: Callable[[], Any], kind: type[Exception], pattern: str) -> None:
    with pytest.raises(kind) as raised:
        call()
    message = str(raised.value)
    assert type(raised.value) is kind
    assert re.match(pattern, message), message
    assert len(message) <= 500
    assert "\n" not in message


class _Mute:
    def __repr__(self) -> str:
        raise KeyError("mute")


def test_values_in_few_words() -> None:
    assert shown("a" * 1000).startswith("'aaa")
    assert shown(_Mute()).startswith("<_Mute instance")
    for value in (np.ones((9, 9)), 10**5000, "a\nb", [[1] * 99] * 99, type("X" * 1000, (), {})()):
        assert len(shown(value)) <= 100
        assert "\n" not in shown(value)


def test_lists_end() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([]) == ""
    assert listed(map(str, range(99))) == "0, 1, 2, 3, 4, 5, 6, 7 and more"
    assert len(listed(["a" * 100] * 3)) < 120
    assert len(listed(["a" * 1000])) < 100
    assert "\n" not in listed(["a\nb"])


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Inner.call: key must be [2]; got key [3], value [3]", "outer: memory must be [2]; got memory [3]"),
        ("inner_call: keys of key_mask", "outer: keys of key_mask"),
        ("not a name: key", "outer: not a name: memory"),
        ("no prefix", "outer: no prefix"),
        ("outer: key", "outer: memory"),
        ("outer: /key/a.key.json: key, key[0], key.", "outer: /key/a.key.json: memory, memory[0], memory."),
    ],
)
def test_in_the_name_of(message: str, expected: str) -> None:
    with pytest.raises(ValueError, match=r"^outer: ") as raised, in_the_name_of("outer", key="memory", value="memory"):
        raise ValueError(message)
    assert str(raised.value) == expected


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError, match=r"^'key'$"), in_the_name_of("outer", key="memory"):
        raise KeyError("key")
    error = TypeError("f: caches, cache")
    rename_arguments(error, caches="cache")
    assert str(error) == "f: cache, cache"
