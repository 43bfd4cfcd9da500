"""By which angles queries and keys are turned: every rule, against one pair after another, and against transformers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mha_native.models.architecture.rotary import RotaryConfig, read_rotary
from mha_native.models.files.entries import Entries

PATH = Path("config.json")
HEAD_DIM, TRAINED = 16, 256
FLAT = {"": ("rope_theta", 10000.0)}

LONG, SHORT = [1.0 + i for i in range(8)], [1.0 + i / 8 for i in range(8)]
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE = {"rope_type": "longrope", "long_factor": LONG, "short_factor": SHORT}
RULES: list[dict[str, Any]] = [
    {},
    {"rope_type": "default"},
    {"rope_type": "default", "rope_theta": 500000},
    {"rope_type": "default", "rope_theta": 0.5},
    {"rope_type": "linear", "factor": 4},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.7, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4, "beta_slow": 2.0, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 4.0, "truncate": False, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 9, "beta_slow": 9, "truncate": False},
    {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.3, "rope_theta": 1e6},
    {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0},
    {**LONGROPE, "original_max_position_embeddings": 64},
    {**LONGROPE, "original_max_position_embeddings": 64, "factor": 3.0},
    {**LONGROPE, "original_max_position_embeddings": 64, "attention_factor": 1.5},
    {**LONGROPE, "original_max_position_embeddings": 512},
    LONGROPE,
    {"rope_type": "llama3", **LLAMA3},
    {"rope_type": "llama3", **LLAMA3, "rope_theta": 500000.0},
    {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 0.1, "high_freq_factor": 9.0},
]
LENGTHS = [TRAINED, 60, 400]


def _read(
    values: dict[str, Any], max_positions: int = TRAINED, bases: Any = FLAT, head_dim: int = HEAD_DIM
) -> dict[str, RotaryConfig]:
    return read_rotary(Entries(PATH, values), head_dim, TRAINED, max_positions, bases)


def _expected(rule: dict[str, Any], length: int) -> tuple[list[float], float]:
    """The frequency of each pair, and what cosines and sines are multiplied with, from the equations of each rule."""
    base, name = rule.get("rope_theta", 10000.0), rule.get("rope_type", "default")
    original = rule.get("original_max_position_embeddings", TRAINED)
    factor = rule.get("factor") or TRAINED / original
    if name == "dynamic" and length > TRAINED:
        base *= (factor * length / TRAINED - (factor - 1)) ** (HEAD_DIM / (HEAD_DIM - 2))
    plain = [1 / base ** (2 * i / HEAD_DIM) for i in range(HEAD_DIM // 2)]
    if name == "linear":
        return [f / factor for f in plain], 1.0
    if name == "llama3":
        low, high, result = rule["low_freq_factor"], rule["high_freq_factor"], []
        for f in plain:
            wavelength = 2 * math.pi / f
            if wavelength < original / high:
                result.append(f)
            elif wavelength > original / low:
                result.append(f / factor)
            else:
                smooth = (original / wavelength - low) / (high - low)
                result.append((1 - smooth) * f / factor + smooth * f)
        return result, 1.0
    if name == "longrope":
        factors = rule["long_factor"] if length > original else rule["short_factor"]
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        return [f / by for f, by in zip(plain, factors, strict=True)], rule.get("attention_factor", attention)
    if name == "yarn":

        def dimension(turns: float) -> float:
            return HEAD_DIM * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = dimension(rule.get("beta_fast", 32)), dimension(rule.get("beta_slow", 1))
        if rule.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, HEAD_DIM - 1)
        result = []
        for i, f in enumerate(plain):
            ramp = min(max((i - low) / (high - low if high != low else 0.001), 0), 1)
            result.append(f / factor * ramp + f * (1 - ramp))
        attention = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
        if rule.get("mscale") and rule.get("mscale_all_dim"):
            attention = (0.1 * rule["mscale"] * math.log(factor) + 1) / (
                0.1 * rule["mscale_all_dim"] * math.log(factor) + 1
            )
        return result, rule.get("attention_factor", attention)
    return plain, 1.0


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_each_rule(rule: dict[str, Any], length: int) -> None:
    rotary = _read({"rope_parameters": rule}, length)[""]
    frequencies, attention_factor = _expected(rule, length)
    np.testing.assert_allclose(rotary.frequencies, frequencies, rtol=1e-13)
    assert rotary.attention_factor == pytest.approx(attention_factor, rel=1e-13)
    assert rotary.max_positions == length


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_each_rule_against_transformers(rule: dict[str, Any], length: int) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", minversion="5")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    sizes = {"hidden_size": 2 * HEAD_DIM, "num_attention_heads": 2, "max_position_embeddings": TRAINED}
    module = LlamaRotaryEmbedding(transformers.LlamaConfig(**sizes, rope_parameters=dict(rule)))
    cos, sin = module(torch.zeros(1, dtype=torch.float64), torch.arange(length)[None])
    ours = _read({"rope_parameters": rule}, length)[""].table()
    for table, theirs in zip(ours, (cos, sin), strict=True):
        # They round frequencies and angles to float32, whose last place is 2^-23 of an angle of up to `length`.
        np.testing.assert_allclose(table, theirs[0, :, : HEAD_DIM // 2], atol=length * 2**-22, rtol=0)


def test_a_table() -> None:
    rotary = RotaryConfig((1.0, 0.25), 5000, attention_factor=1.5)
    cos, sin = rotary.table()
    assert (cos.shape, sin.shape, cos.dtype, sin.dtype) == ((5000, 2), (5000, 2), np.float32, np.float32)
    for position in (0, 1, 4095, 4096, 4999):
        for i, frequency in enumerate(rotary.frequencies):
            assert cos[position, i] == np.float32(1.5 * np.cos(position * frequency))
            assert sin[position, i] == np.float32(1.5 * np.sin(position * frequency))


def test_the_keys_of_older_files() -> None:
    rule = {"factor": 2.0, "original_max_position_embeddings": 64}
    new = _read({"rope_parameters": {"rope_type": "yarn", "rope_theta": 77.0, **rule}})
    assert new == _read({"rope_theta": 77.0, "rope_scaling": {"type": "yarn", **rule}})
    assert new == _read({"rope_theta": 77, "rope_scaling": {"type": "default", "rope_type": "yarn", **rule}})
    outside = {"rope_theta": 77.0, "original_max_position_embeddings": 64}
    assert new == _read(outside | {"rope_scaling": {"type": "yarn", "factor": 2.0}})
    assert _read({"rope_theta": 77.0, "rope_scaling": None}) == _read({"rope_parameters": {"rope_theta": 77.0}})
    assert _read({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}}) == (
        _read({"rope_parameters": {"rope_type": "linear", "factor": 2.0}})
    )


OF_TYPES = {"full_attention": ("rope_theta", 1e6), "sliding_attention": ("rope_local_base_freq", 1e4)}


def test_types_of_layers() -> None:
    local, far = _read({"rope_theta": 50.0})[""], _read({"rope_parameters": {"rope_type": "linear", "factor": 8.0}})[""]
    new = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    }
    expected = {"full_attention": far, "sliding_attention": local}
    assert _read({"rope_parameters": new}, bases=OF_TYPES) == expected
    old = {"rope_theta": 1e4, "rope_local_base_freq": 50.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert _read(old, bases=OF_TYPES) == expected
    defaults = _read({}, bases=OF_TYPES)
    assert defaults["full_attention"] == _read({"rope_theta": 1e6})[""]
    assert defaults["sliding_attention"] == _read({"rope_theta": 1e4})[""]
    assert defaults == _read({"rope_parameters": {"sliding_attention": None}}, bases=OF_TYPES)


def test_a_part_of_a_head() -> None:
    rotary = _read({"rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.25}})[""]
    np.testing.assert_allclose(rotary.frequencies, [1, 0.1], rtol=1e-15)
    assert rotary == _read({"rope_theta": 100.0, "partial_rotary_factor": 0.25})[""]


NUMBERS: list[Any] = [0, -1.0, None, "2", True, math.inf, math.nan, 10**400, [2.0]]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rope_parameters": {"rope_type": "mrope"}}, "config.json: rope_parameters: rope_type must be 'default' or"),
        ({"rope_scaling": {"type": "su"}}, "config.json: rope_scaling: type must be 'default' or"),
        ({"rope_scaling": {"rope_type": None}}, "rope_scaling: rope_type must be 'default' or"),
        ({"rope_parameters": [1]}, r"config.json: rope_parameters must be an object; got \[1\]"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object; got 'linear'"),
        ({"rope_scaling": {"type": "default", "factor": 2.0}}, "rope_scaling has unknown entries: factor"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "mscale": 1.0}}, "has unknown entries: mscale"),
        ({"rope_parameters": {"full_attention": {}}}, "has unknown entries: full_attention"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor must be a positive number; got None"),
        ({"rope_scaling": {"type": "llama3", **LLAMA3, "low_freq_factor": 4}}, "low_freq_factor must be less than"),
        ({"rope_scaling": {**LONGROPE, "long_factor": LONG[1:]}}, "long_factor must be a list of 8 positive numbers"),
        ({"rope_scaling": {**LONGROPE, "short_factor": None}}, "short_factor must be a list of 8 .*; got None"),
        ({"rope_scaling": {**LONGROPE, "short_factor": [0.0] * 8}}, "short_factor must be a list of 8 positive"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": 1}}, "truncate must be True or False; got 1"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}, "rope_theta": 1}, "rope_theta must not be 1"),
        ({"rope_scaling": {"type": "linear", "factor": 1e-310}}, "angles are finite"),
        ({"rope_scaling": {"type": "dynamic", "factor": 1e300}}, "angles are finite"),
        ({"rope_parameters": {"partial_rotary_factor": 0.2}}, "an even number .*head_dim, 16.* got 3"),
        ({"rope_parameters": {"partial_rotary_factor": 0.01}}, "an even number .* got 0"),
        ({"rope_parameters": {"partial_rotary_factor": 1.5}}, "an even number .* got 24"),
        *[({"rope_theta": x}, "config.json: rope_theta must be a positive number") for x in NUMBERS],
        *[({"rope_scaling": {"type": "linear", "factor": x}}, "factor must be a positive") for x in NUMBERS],
        *[
            ({"rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": x}}, "original_max")
            for x in (*NUMBERS, 2.0)
        ],
    ],
    ids=str,
)
def test_what_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        _read(values, max_positions=400)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("number", [(1 << 20) + 2, 1 << 40, 1 << 62])
def test_tables_that_no_model_has(number: int) -> None:
    """They would take all memory."""
    with pytest.raises(ValueError, match=f"a model must have at most 1048576 positions .* got {number}"):
        _read({}, max_positions=number)
    with pytest.raises(ValueError, match=f"heads must have at most 4096 features; got {number}"):
        _read({}, head_dim=number)


def test_a_head_of_which_few_features_are_turned() -> None:
    with pytest.raises(ValueError, match="rope_type must not be 'dynamic' where 2 features"):
        _read({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 400, head_dim=2)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1.0}}, "rope_parameters has unknown entries: "),
        ({"rope_parameters": {"full_attention": 7}}, "rope_parameters: full_attention must be an object; got 7"),
        (
            {"rope_parameters": {"sliding_attention": {"rope_type": "none"}}},
            "config.json: rope_parameters.sliding_attention: rope_type must be",
        ),
        ({"rope_local_base_freq": 0}, "rope_local_base_freq must be a positive number; got 0"),
    ],
    ids=str,
)
def test_what_is_refused_of_types_of_layers(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _read(values, bases=OF_TYPES)
