"""Families of decoders: logits against the oracle in float64, every tensor, and every entry of config.json."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import decoder_oracle
import numpy as np
import pytest
import tiny_generators
from decoder_logits import logits, opened
from tiny_generators import DECODERS as FAMILIES
from tolerance import assert_close

from mha_native.models.architecture.config import ModelConfig
from mha_native.models.architecture.family import GENERATION
from mha_native.models.architecture.model import Model
from mha_native.models.architecture.open import open_model
from mha_native.models.files.folder import FolderSource

Array = np.ndarray[Any, Any]

LLAMA_LIKE = [name for name in FAMILIES if name != "gpt2"]
GEMMA = ["gemma2", "gemma3_text"]
QWEN = ["qwen2", "qwen3"]

_RNG = np.random.default_rng(7)
SEQUENCES = [_RNG.integers(0, tiny_generators.VOCABULARY, length).tolist() for length in (5, 1, 32, 17)]

# Of the largest logit: what a checkpoint is computed in has its own error.
BOUNDS = {"float64": 1e-6, "float32": 1e-5, "bfloat16": 6e-2, "float16": 8e-3, "int8": 0.1}


def _assert_logits(directory: Path, settings: dict[str, Any], bound: float = BOUNDS["float32"], **options: Any) -> None:
    weights = tiny_generators.tensors(settings)
    found = logits(opened(directory, **options), SEQUENCES)
    for tokens, actual in zip(SEQUENCES, found, strict=True):
        expected = decoder_oracle.logits(settings, weights, tokens)
        size = max(np.abs(expected).max(), 1)
        assert_close(actual, expected, np.full(expected.shape, bound * size), label=f"{len(tokens)} tokens")


def _layers(model: Model) -> Any:
    return model.stacks[0].layers.layers


def _tables(model: Model) -> dict[str, Array]:
    return model.stacks[0].front_end.tables


def _described(directory: Path, max_positions: int | None = None) -> ModelConfig:
    return open_model(FolderSource(directory), GENERATION, max_positions).config


def _of_all(names: list[str], *changes: dict[str, Any]) -> list[Any]:
    return [(name, change) for name in names for change in changes]


SWITCHES = [
    *_of_all(FAMILIES, {}),
    *_of_all(FAMILIES, {"tie_word_embeddings": True}, {"tie_word_embeddings": False}),
    *_of_all(["gpt2"], *({"activation_function": name} for name in ("relu", "gelu", "gelu_pytorch_tanh"))),
    *_of_all(["gpt2"], {"layer_norm_epsilon": 0.3}, {"n_inner": None}, {"scale_attn_weights": False}),
    *_of_all(["gpt2"], {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False}),
    *_of_all(["gpt2"], {"scale_attn_by_inverse_layer_idx": True}),
    *_of_all(LLAMA_LIKE, {"rms_norm_eps": 0.3}, {"rope_theta": 100.0}, {"head_dim": 10}),
    *_of_all(LLAMA_LIKE, {"num_key_value_heads": 4}, {"num_key_value_heads": 1}),
    *_of_all(["llama", "mistral", *QWEN], *({"hidden_act": name} for name in ("gelu", "relu", "gelu_new", "swish"))),
    *_of_all(GEMMA, *({"hidden_activation": name} for name in ("gelu", "silu"))),
    *_of_all(["llama", "qwen3", *GEMMA], {"attention_bias": True}),
    *_of_all(["llama"], {"mlp_bias": True}),
    *_of_all(["mistral"], {"sliding_window": None}, {"sliding_window": 1}, {"sliding_window": 100}),
    *_of_all(QWEN, {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
    *_of_all(QWEN, {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0}),
    *_of_all(QWEN, {"use_sliding_window": False, "sliding_window": 3, "max_window_layers": 1}),
    *_of_all(
        [*QWEN, *GEMMA],
        {
            "layer_types": ["full_attention", "full_attention", "sliding_attention"],
            "use_sliding_window": True,
            "sliding_window": 2,
        },
    ),
    *_of_all(GEMMA, {"sliding_window": 1}, {"query_pre_attn_scalar": 0.5}, {"final_logit_softcapping": 0.7}),
    *_of_all(["gemma2"], {"attn_logit_softcapping": None}, {"final_logit_softcapping": None}),
    *_of_all(["gemma3_text"], {"sliding_window_pattern": 3}, {"sliding_window_pattern": 1}),
    *_of_all(["gemma3_text"], {"rope_local_base_freq": 3.0}),
]


# What the tiny models are without it, too.
WITHOUT_EFFECT: list[dict[str, Any]] = [
    {},
    {"sliding_window": 100},
    {"hidden_act": "swish"},
    {"activation_function": "gelu_pytorch_tanh"},
    {"use_sliding_window": False, "sliding_window": 3, "max_window_layers": 1},
]


@pytest.mark.parametrize(("model_type", "changes"), SWITCHES, ids=str)
def test_logits(model_type: str, changes: dict[str, Any], tmp_path: Path) -> None:
    settings = tiny_generators.config(model_type, **changes)
    _assert_logits(tiny_generators.write(tmp_path, settings), settings)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_oracle_sees_every_switch(model_type: str) -> None:
    # Else a switch that is not computed would pass for one that is.
    plain = tiny_generators.config(model_type)
    tokens = SEQUENCES[2]
    without = decoder_oracle.logits(plain, tiny_generators.tensors(plain), tokens)
    for changes in (change for name, change in SWITCHES if name == model_type and change not in WITHOUT_EFFECT):
        settings = tiny_generators.config(model_type, **changes)
        if changes != {"tie_word_embeddings": model_type in ("gpt2", *GEMMA)}:
            found = decoder_oracle.logits(settings, tiny_generators.tensors(settings), tokens)
            assert np.abs(found - without).max() > 4 * BOUNDS["float32"] * np.abs(without).max(), changes


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_dtypes(model_type: str, dtype: str, tmp_path: Path) -> None:
    settings = tiny_generators.config(model_type)
    _assert_logits(tiny_generators.write(tmp_path, settings), settings, BOUNDS[dtype], dtype=dtype)


@pytest.mark.parametrize("weight_dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_weight_dtypes(model_type: str, weight_dtype: str, tmp_path: Path) -> None:
    settings = tiny_generators.config(model_type)
    directory = tiny_generators.write(tmp_path, settings)
    _assert_logits(directory, settings, BOUNDS[weight_dtype], weight_dtype=weight_dtype)
    model = opened(directory, weight_dtype=weight_dtype)
    assert model.head is not None
    assert {layer.weight_dtype for layer in _layers(model)} == {model.head.linear.weight_dtype} == {weight_dtype}
    assert _tables(model)["words"].dtype == np.float32


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_model_without_a_head(model_type: str, tmp_path: Path) -> None:
    settings = tiny_generators.config(model_type, tie_word_embeddings=True)
    weights = tiny_generators.tensors(settings)
    _assert_logits(tiny_generators.write(tmp_path, settings, tiny_generators.renamed(weights)), settings)


def _assert_refused(directory: Path, *words: str, **options: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(words[0])) as caught:
        opened(directory, **options)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert len(message) < 2000
    for word in words:
        assert word in message, message


@pytest.mark.parametrize("model_type", FAMILIES)
def test_each_tensor_is_needed_and_in_its_shape(model_type: str, tmp_path: Path) -> None:
    settings = tiny_generators.config(model_type, num_hidden_layers=1, n_layer=1, tie_word_embeddings=False)
    if model_type == "gpt2":
        del settings["num_hidden_layers"]
    weights = tiny_generators.tensors(settings)
    for name, whole in weights.items():
        short = name.removeprefix("model.").removeprefix("transformer.")
        others = {other: tensor for other, tensor in weights.items() if other != name}
        _assert_refused(tiny_generators.write(tmp_path, settings, others), f"missing: {short}")
        wrong = np.concatenate([whole, whole[:1]])
        tiny_generators.write(tmp_path, settings, others | {name: wrong})
        _assert_refused(tmp_path, f"wrong shape: {name} {list(wrong.shape)} instead of {list(whole.shape)}")


def _sizes(model_type: str) -> list[str]:
    if model_type == "gpt2":
        return ["vocab_size", "n_embd", "n_layer", "n_head", "n_inner", "n_positions"]
    names = ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings"]
    return ["vocab_size", "num_key_value_heads", "head_dim", *names]


REFUSED: list[Any] = [
    *[(name, size, 0) for name in FAMILIES for size in _sizes(name)],
    *[(name, size, x) for name in ("gpt2", "llama") for size in _sizes(name) for x in (-1, "8", 8.0, True, 2**63)],
    *_of_all(FAMILIES, {"auto_map": {"AutoModel": "own.Own"}}, {"quantization_config": {"quant_method": "gptq"}}),
    *_of_all(FAMILIES, {"tie_word_embeddings": 1}, {"tie_word_embeddings": None}, {"is_causal": False}),
    *_of_all(FAMILIES, {"add_cross_attention": True}, {"is_encoder_decoder": True}, {"pruned_heads": {"0": [1]}}),
    *_of_all(FAMILIES, {"per_layer_config": {"0": {}}}),
    *_of_all(["gpt2"], {"n_embd": 25}, {"layer_norm_epsilon": 0}, {"activation_function": "tanh"}),
    *_of_all(["gpt2"], {"scale_attn_weights": None}, {"scale_attn_by_inverse_layer_idx": 1}, {"hidden_size": 24}),
    *_of_all(["gpt2"], {"n_layer": 10**6}, {"n_layer": 10**18}),
    *_of_all(LLAMA_LIKE, {"num_hidden_layers": 10**18}, {"num_key_value_heads": 3}, {"rms_norm_eps": 0.0}),
    *_of_all(LLAMA_LIKE, {"rope_theta": 0}, {"rope_scaling": {"type": "su"}}, {"rope_parameters": 3}, {"head_dim": 7}),
    *_of_all(LLAMA_LIKE, {"partial_rotary_factor": 0.34}),
    *_of_all(["llama", "mistral", *QWEN], {"hidden_act": "quick_gelu"}, {"hidden_act": None}),
    *_of_all(["llama", "qwen3", *GEMMA], {"attention_bias": "yes"}),
    *_of_all(["llama"], {"mlp_bias": 1}, {"hidden_size": 26}),
    *_of_all(["mistral", "gemma2", "gemma3_text"], {"sliding_window": 0}, {"sliding_window": 2.0}),
    *_of_all(QWEN, {"use_sliding_window": 1}, {"use_sliding_window": True, "sliding_window": 0}),
    *_of_all(QWEN, {"use_sliding_window": True, "max_window_layers": -1}),
    *_of_all(QWEN, {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}),
    *_of_all([*QWEN, *GEMMA], {"layer_types": ["full_attention"]}, {"layer_types": "full_attention"}),
    *_of_all([*QWEN, *GEMMA], {"layer_types": ["chunked_attention"] * 3}, {"layer_types": [["full_attention"]] * 3}),
    *_of_all(GEMMA, {"sliding_window": None}, {"query_pre_attn_scalar": 0}, {"final_logit_softcapping": -1.0}),
    *_of_all(GEMMA, {"use_bidirectional_attention": True}, {"hidden_activation": "tanh"}),
    *_of_all(["gemma2"], {"attn_logit_softcapping": 0}),
    *_of_all(["gemma3_text"], {"attn_logit_softcapping": 50.0}, {"sliding_window_pattern": 0}),
    *_of_all(["gemma3_text"], {"rope_parameters": {"rope_type": "default"}}, {"rope_local_base_freq": None}),
]


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [(case[0], case[1] if len(case) == 2 else {case[1]: case[2]}) for case in REFUSED],
    ids=str,
)
def test_a_config_of_what_is_not_computed(model_type: str, changes: dict[str, Any], tmp_path: Path) -> None:
    directory = tiny_generators.write(tmp_path, tiny_generators.config(model_type, **changes), weights={})
    (directory / "model.safetensors").unlink()  # refused before weights are read
    _assert_refused(directory, str(directory / "config.json"), list(changes)[-1])


def test_a_family_that_is_not_known_is_told_which_are(tmp_path: Path) -> None:
    directory = tiny_generators.write(tmp_path, tiny_generators.config("llama") | {"model_type": "mamba"}, weights={})
    _assert_refused(directory, "model_type", "'mamba'", *map(repr, FAMILIES))
    tiny_generators.write(tmp_path, {}, weights={})
    _assert_refused(directory, "model_type", "None")


DEFAULTS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "tie_word_embeddings": True,
    },
    "llama": {"hidden_act": "silu", "num_key_value_heads": None, "attention_bias": False, "mlp_bias": False},
    "mistral": {"hidden_act": "silu", "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"hidden_act": "silu", "num_key_value_heads": 32, "use_sliding_window": False},
    "qwen3": {"hidden_act": "silu", "num_key_value_heads": 32, "head_dim": 128, "attention_bias": False},
    "gemma2": {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {"final_logit_softcapping": None, "sliding_window_pattern": 6, "rope_local_base_freq": 1e4},
}
for _name in LLAMA_LIKE:
    DEFAULTS[_name] |= {"rms_norm_eps": 1e-6, "tie_word_embeddings": _name in GEMMA}
    DEFAULTS[_name] |= {"rope_theta": 1e6 if _name == "gemma3_text" else 1e4}
for _name in GEMMA:
    DEFAULTS[_name] |= {"hidden_activation": "gelu_pytorch_tanh", "num_key_value_heads": 4, "head_dim": 256}
    DEFAULTS[_name] |= {"query_pre_attn_scalar": 256, "sliding_window": 4096, "attention_bias": False}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_what_can_be_left_out_of_a_config(model_type: str, tmp_path: Path) -> None:
    # What transformers has where the file says nothing.
    heads = 32 if model_type in QWEN else 8
    sizes = {"hidden_size": 64, "num_attention_heads": heads} if model_type != "gpt2" else {}
    whole = tiny_generators.config(model_type, **sizes) | DEFAULTS[model_type]
    if model_type in ("llama", "qwen2", "mistral"):
        whole.pop("head_dim", None)
    short = {name: value for name, value in whole.items() if name not in DEFAULTS[model_type]}
    configs = [
        _described(tiny_generators.write(tmp_path / name, settings, weights={}))
        for name, settings in (("whole", whole), ("short", short))
    ]
    assert configs[0] == configs[1]


def test_the_positions_that_a_model_is_opened_for(tmp_path: Path) -> None:
    settings = tiny_generators.config("gpt2")
    directory = tiny_generators.write(tmp_path / "gpt2", settings)
    model = opened(directory, max_positions=32)
    assert (model.config.max_positions, _tables(model)["added"].shape) == (32, (32, tiny_generators.WIDTH))
    assert _tables(opened(directory, max_positions=7))["added"].shape == (7, tiny_generators.WIDTH)
    _assert_refused(directory, "max_length must be at most n_positions, 32; got 33", max_positions=33)
    longrope = {"rope_type": "longrope", "long_factor": [2.0] * 3, "short_factor": [1.0] * 3}
    settings = tiny_generators.config("llama", rope_parameters=longrope | {"original_max_position_embeddings": 16})
    directory = tiny_generators.write(tmp_path / "llama", settings)
    for length, factor in ((16, 1.0), (17, 2.0), (None, 2.0), (100, 2.0)):
        config = _described(directory, length)
        rotary = config.stacks[0].blocks[0].rotary
        assert rotary is not None
        assert (config.max_positions, rotary.max_positions) == (length or 32, length or 32)
        assert rotary.frequencies[0] == 1 / factor


def test_the_scale_of_embeddings_is_rounded_as_they_are(tmp_path: Path) -> None:
    settings = tiny_generators.config("gemma2", hidden_size=20)
    directory = tiny_generators.write(tmp_path, settings)
    words = tiny_generators.tensors(settings)["model.embed_tokens.weight"]
    np.testing.assert_array_equal(_tables(opened(directory))["words"], words * np.float32(np.sqrt(20)))
    halves = _tables(opened(directory, dtype="float16"))["words"]
    np.testing.assert_array_equal(halves, words.astype(np.float16) * np.float16(np.sqrt(20)))


def test_config_json_is_read_as_it_is(tmp_path: Path) -> None:
    directory = tiny_generators.write(tmp_path, tiny_generators.config("gpt2"))
    unknown = json.loads((directory / "config.json").read_text()) | {"use_cache": True, "resid_pdrop": 0.1, "n_ctx": 5}
    assert _described(tiny_generators.write(tmp_path / "b", unknown)) == _described(directory)
