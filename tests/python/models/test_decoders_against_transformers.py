"""Decoders of every family, as transformers saves them: the same logits here as there in float64.

Skipped without transformers and torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_generators
from decoder_logits import logits, opened
from tiny_generators import DECODERS, FURTHER, VOCABULARY
from tolerance import assert_close

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

pytestmark = pytest.mark.filterwarnings("ignore")

CLASSES = {"gemma2": "Gemma2", "gemma3_text": "Gemma3", "gpt2": "GPT2", "llama": "Llama", "mistral": "Mistral",
           "qwen2": "Qwen2", "qwen3": "Qwen3",
           "cohere": "Cohere", "cohere2": "Cohere2", "ernie4_5": "Ernie4_5", "exaone4": "Exaone4", "glm": "Glm",
           "glm4": "Glm4", "gpt_neox": "GPTNeoX", "granite": "Granite", "olmo2": "Olmo2", "olmo3": "Olmo3",
           "phi3": "Phi3", "smollm3": "SmolLM3", "stablelm": "StableLm", "starcoder2": "Starcoder2"}  # fmt: skip
FAMILIES = DECODERS + FURTHER
QWEN, GEMMA, LLAMA_LIKE = ["qwen2", "qwen3"], ["gemma2", "gemma3_text"], [name for name in DECODERS if name != "gpt2"]

# transformers rounds angles to float32: at 32 positions by some 2^-19.
BOUND = 1e-5

_RNG = np.random.default_rng(7)
SEQUENCES = [_RNG.integers(0, VOCABULARY, length).tolist() for length in (6, 1, 32, 15)]


def save(directory: Path, model_type: str, dtype: str = "float32", **changes: Any) -> Any:
    """A model with random weights in `directory`, as transformers reads it in float64."""
    values = tiny_generators.config(model_type, **changes)
    del values["model_type"]
    name = CLASSES[model_type]
    suffix = "TextConfig" if model_type == "gemma3_text" else "Config"
    config = getattr(transformers, name + suffix)(**values, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    torch.manual_seed(0)
    model = getattr(transformers, name + ("LMHeadModel" if model_type == "gpt2" else "ForCausalLM"))(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # of such a size that no part is without effect
            noise = torch.randn_like(parameter)
            if parameter.dim() == 1:
                parameter += 0.3 * noise
            else:
                parameter.copy_(noise / np.sqrt(tiny_generators.WIDTH))
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    return _read(directory)


def _read(directory: Path) -> Any:
    options = {"dtype": torch.float64, "attn_implementation": "eager"}  # which knows the cap of Gemma 2
    return transformers.AutoModelForCausalLM.from_pretrained(directory, **options).eval()


def _assert_same(
    directory: Path, oracle: Any, bound: float = BOUND, sequences: list[list[int]] = SEQUENCES, **options: Any
) -> None:
    found = logits(opened(directory, **options), sequences)
    for tokens, actual in zip(sequences, found, strict=True):
        with torch.no_grad():
            expected = oracle(input_ids=torch.tensor([tokens])).logits[0].numpy()
        size = max(float(np.abs(expected).max()), 1.0)
        assert_close(actual, expected, np.full(expected.shape, bound * size), label=f"{len(tokens)} tokens")


def _also(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.exhaustive)


@pytest.mark.parametrize("dtype", ["float32", _also("bfloat16"), _also("float16")])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_each_family_saved_in_each_dtype(model_type: str, dtype: str, tmp_path: Path) -> None:
    _assert_same(tmp_path, save(tmp_path, model_type, dtype))


def _of_all(names: list[str], *changes: dict[str, Any]) -> list[Any]:
    return [(name, change) for name in names for change in changes]


LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 8, "rope_theta": 1e4}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 1e3}
ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 100.0},
    {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
    {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 1e3},
    {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.7, "rope_theta": 1e3},
    {**LLAMA3, "original_max_position_embeddings": 8},
]
SWITCHES = [
    *_of_all(FAMILIES, {"tie_word_embeddings": True}, {"tie_word_embeddings": False}),
    *_of_all(["gpt2"], *({"activation_function": name} for name in ("relu", "gelu", "gelu_pytorch_tanh"))),
    *_of_all(["gpt2"], {"layer_norm_epsilon": 0.3}, {"n_inner": None}, {"scale_attn_weights": False}),
    *_of_all(["gpt2"], {"scale_attn_by_inverse_layer_idx": True}),
    *_of_all(LLAMA_LIKE, {"rms_norm_eps": 0.3}, {"head_dim": 10}, {"num_key_value_heads": 4}),
    *_of_all(["llama", "mistral", *QWEN], *({"hidden_act": name} for name in ("gelu", "relu", "gelu_new", "swish"))),
    *_of_all(GEMMA, *({"hidden_activation": name} for name in ("gelu", "silu"))),
    *_of_all(["llama", "qwen3", *GEMMA], {"attention_bias": True}),
    *_of_all(["llama"], {"mlp_bias": True}, {"num_key_value_heads": None}),
    *_of_all(["llama", "mistral", *QWEN, "gemma2"], *({"rope_parameters": rope} for rope in ROPES)),
    *_of_all(["llama"], {"rope_parameters": {**LONGROPE, "long_factor": [2.0] * 3, "short_factor": [1.0] * 3}}),
    *_of_all(["mistral"], {"sliding_window": None}, {"sliding_window": 1}),
    *_of_all(QWEN, {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
    *_of_all(QWEN, {"use_sliding_window": False, "sliding_window": 3, "max_window_layers": 1}),
    *_of_all(
        [*QWEN, *GEMMA],
        {
            "layer_types": ["full_attention", "full_attention", "sliding_attention"],
            "use_sliding_window": True,
            "sliding_window": 2,
        },
    ),
    *_of_all(GEMMA, {"sliding_window": 1}, {"query_pre_attn_scalar": 1}, {"final_logit_softcapping": 0.7}),
    *_of_all(["gemma2"], {"attn_logit_softcapping": None}, {"final_logit_softcapping": None}),
    *_of_all(["gemma3_text"], {"sliding_window_pattern": 3}),
    *_of_all(["cohere", "cohere2", "glm", "glm4", "granite", "olmo2", "smollm3"], {"attention_bias": True}),
    *_of_all(["granite", "smollm3"], {"mlp_bias": True}),
    *_of_all(["cohere", "cohere2"], {"logit_scale": 3.0}, {"layer_norm_eps": 0.3}, {"num_key_value_heads": 1}),
    *_of_all(
        ["cohere2", "exaone4", "olmo3"],
        {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]},
        {"sliding_window": 40},
    ),
    *_of_all(["exaone4"], {"sliding_window": None, "layer_types": ["full_attention"] * 4}),
    *_of_all(["ernie4_5"], {"use_bias": True}, {"head_dim": 6}),
    *_of_all(["glm", "glm4"], {"attention_bias": False}, {"partial_rotary_factor": 1.0}),
    *_of_all(
        ["gpt_neox"],
        {"use_parallel_residual": False},
        {"attention_bias": False},
        {"rotary_pct": 1.0},
        {"rotary_emb_base": 100.0},
        *({"hidden_act": name} for name in ("gelu_fast", "gelu_new", "relu", "silu")),
    ),
    *_of_all(["granite"], {"residual_multiplier": 1.0, "rms_norm_eps": 0.3}),
    *_of_all(["phi3"], {"partial_rotary_factor": 1.0}, {"sliding_window": 4}),
    *_of_all(
        ["phi3"],
        {
            "original_max_position_embeddings": 8,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.7,
                "long_factor": [2.0, 3.0],
                "short_factor": [1.0, 1.5],
            },
        },
    ),
    *_of_all(["smollm3"], {"no_rope_layers": [1, 1, 0, 1]}, {"use_sliding_window": True, "sliding_window": 4}),
    *_of_all(["stablelm"], {"use_qkv_bias": True}, {"use_parallel_residual": True}),
    *_of_all(["starcoder2"], {"use_bias": False}, {"sliding_window": 4}, {"norm_epsilon": 0.3}),
    *_of_all(
        ["gemma3_text"],
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e3},
                "sliding_attention": {"rope_type": "default", "rope_theta": 7.0},
            }
        },
    ),
]


# One of each kind of switch is in the ordinary tier; test_decoder_families.py has all of them, beside the oracle there.
FEW = [
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ("llama", {"rope_parameters": ROPES[-1]}),
    ("llama", {"attention_bias": True}),
    ("mistral", {"sliding_window": None}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
    ("qwen3", {"tie_word_embeddings": True}),
    ("gemma2", {"query_pre_attn_scalar": 1}),
    ("gemma3_text", {"sliding_window_pattern": 3}),
    ("gpt_neox", {"use_parallel_residual": False}),
    ("phi3", {"sliding_window": 4}),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 4}),
    ("stablelm", {"use_parallel_residual": True}),
    ("starcoder2", {"use_bias": False}),
]


def test_few_switches_are_switches() -> None:
    assert [case for case in FEW if case not in SWITCHES] == []


@pytest.mark.parametrize(
    ("model_type", "changes"), [case if case in FEW else _also(*case) for case in SWITCHES], ids=str
)
def test_each_switch(model_type: str, changes: dict[str, Any], tmp_path: Path) -> None:
    oracle = save(tmp_path, model_type, **changes)
    # transformers takes the short factors for short texts. Here a model has one table, of the length it is opened for.
    is_longrope = changes.get("rope_parameters", {}).get("rope_type") == "longrope"
    _assert_same(tmp_path, oracle, sequences=[tokens for tokens in SEQUENCES if len(tokens) > 8 * is_longrope])


def test_a_short_text_of_longrope(tmp_path: Path) -> None:
    rope = {**LONGROPE, "long_factor": [2.0] * 3, "short_factor": [1.0] * 3}
    oracle = save(tmp_path, "llama", rope_parameters=rope)
    _assert_same(tmp_path, oracle, sequences=SEQUENCES[:2], max_positions=8)


@pytest.mark.parametrize("model_type", ["gpt2", *map(_also, LLAMA_LIKE)])
def test_several_files(model_type: str, tmp_path: Path) -> None:
    oracle = save(tmp_path / "whole", model_type)
    _read(tmp_path / "whole").float().save_pretrained(tmp_path / "parts", max_shard_size="8KB")
    assert (tmp_path / "parts" / "model.safetensors.index.json").exists()
    _assert_same(tmp_path / "parts", oracle)


@pytest.mark.parametrize("model_type", ["gpt2", *map(_also, LLAMA_LIKE)])
def test_a_model_without_a_head(model_type: str, tmp_path: Path) -> None:
    oracle = save(tmp_path / "whole", model_type, tie_word_embeddings=True)
    _read(tmp_path / "whole").base_model.float().save_pretrained(tmp_path / "base")
    _assert_same(tmp_path / "base", oracle)


@pytest.mark.parametrize("model_type", ["gemma2", *map(_also, FAMILIES[1:])])
def test_computed_in_bfloat16(model_type: str, tmp_path: Path) -> None:
    oracle = save(tmp_path, model_type, "bfloat16")
    _assert_same(tmp_path, oracle, 6e-2, dtype="bfloat16")
