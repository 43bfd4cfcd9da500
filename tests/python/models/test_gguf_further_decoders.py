"""Decoders in GGUF files, which the package gguf writes in the layout of llama.cpp's converter.

Skipped without torch, transformers and gguf.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_generators
from decoder_logits import logits, opened
from test_decoders_against_transformers import save

from mha_native.models.files.gguf.source import GGUFSource

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")
safetensors = pytest.importorskip("safetensors.numpy")
gguf = pytest.importorskip("gguf")

pytestmark = pytest.mark.filterwarnings("ignore")

Array = np.ndarray[Any, Any]

_RNG = np.random.default_rng(9)
SEQUENCES = [_RNG.integers(0, tiny_generators.VOCABULARY, length).tolist() for length in (1, 30)]

# The architecture of each family, and the families whose rows of queries and keys lie in pairs.
ARCHITECTURES = {
    "cohere": "command-r", "cohere2": "cohere2", "ernie4_5": "ernie4_5", "exaone4": "exaone4", "glm4": "glm4",
    "gpt_neox": "gptneox", "granite": "granite", "olmo2": "olmo2", "olmo3": "olmo2", "phi3": "phi3",
    "smollm3": "smollm3", "stablelm": "stablelm", "starcoder2": "starcoder2",
}  # fmt: skip
PAIRED = ("granite", "smollm3")
LONGROPE = {
    "max_position_embeddings": 64,
    "original_max_position_embeddings": 8,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.7,
        "long_factor": [2.0, 3.0],
        "short_factor": [1.0, 1.5],
    },
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((model_type, {}) for model_type in ARCHITECTURES if model_type != "smollm3"),
    ("cohere2", {"num_hidden_layers": 8}),
    ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 4}),
    ("glm4", {"partial_rotary_factor": 1.0, "attention_bias": False}),
    ("gpt_neox", {"use_parallel_residual": False, "rotary_pct": 1.0}),
    (
        "olmo3",
        {
            "rope_parameters": {
                "full_attention": YARN | {"rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
            }
        },
    ),
    ("olmo3", {"layer_types": ["full_attention", "sliding_attention"] * 2}),
    ("phi3", LONGROPE),
    ("phi3", {"sliding_window": 4, "partial_rotary_factor": 1.0}),
    ("smollm3", {"no_rope_layer_interval": 4}),  # a file does not say which layers are not rotated
    ("smollm3", {"tie_word_embeddings": False, "no_rope_layer_interval": 4}),
    ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": True}),
    ("starcoder2", {"use_bias": False}),
]


def _paired(rows: Array, heads: int) -> Array:
    """Rows of queries or keys, with feature i of each half of a head next to the other."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _in_file(model_type: str, config: dict[str, Any], name: str, tensor: Array) -> Array:
    heads = config["num_attention_heads"]
    if model_type == "gpt_neox" and ".query_key_value." in name:
        return tensor.reshape(heads, 3, -1, *tensor.shape[1:]).swapaxes(0, 1).reshape(tensor.shape)
    if model_type in PAIRED and ".q_proj." in name:
        return _paired(tensor, heads)
    if model_type in PAIRED and ".k_proj." in name:
        return _paired(tensor, config["num_key_value_heads"])
    return tensor


def _add_entries(writer: Any, model_type: str, config: dict[str, Any]) -> None:
    heads, rope = config["num_attention_heads"], config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_vocab_size(config["vocab_size"])
    turned = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    if model_type in ("gpt_neox", "stablelm"):
        writer.add_parallel_residual(config["use_parallel_residual"])
    else:
        writer.add_rope_freq_base(rope["rope_theta"])
    if model_type != "gpt_neox":
        writer.add_head_count_kv(config["num_key_value_heads"])
    if model_type in ("gpt_neox", "stablelm", "phi3", "glm4", "cohere2", "smollm3"):
        writer.add_rope_dimension_count(turned)
    if model_type in ("glm4", "ernie4_5"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(config.get("layer_norm_eps", config.get("norm_epsilon")))
    if model_type == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if model_type in ("cohere", "cohere2"):
        writer.add_logit_scale(config["logit_scale"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if model_type == "phi3":
        writer.add_sliding_window(config["sliding_window"] or 0)
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
    elif model_type in ("cohere2", "exaone4", "olmo3") and config["sliding_window"]:
        writer.add_sliding_window(config["sliding_window"])
        if model_type != "cohere2":
            writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def write(path: Path, model_type: str, folder: Path) -> Path:
    """The model in a folder, as a GGUF file."""
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES[model_type]
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("gpt2")  # without its tokens, which no test reads
    writer.add_tokenizer_pre("gpt-2")
    _add_entries(writer, model_type, config)
    for name, tensor in safetensors.load_file(folder / "model.safetensors").items():
        in_file = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert in_file is not None, name
        writer.add_tensor(in_file, np.ascontiguousarray(_in_file(model_type, config, name, tensor)))
    rope = config["rope_parameters"]
    if rope.get("rope_type") == "longrope":
        scale, original = config["max_position_embeddings"] / 8, 8
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(scale) / np.log(original))))
        for which in ("long", "short"):
            writer.add_tensor(f"rope_factors_{which}.weight", np.array(rope[f"{which}_factor"], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(("model_type", "changes"), CASES, ids=str)
def test_logits(model_type: str, changes: dict[str, Any], tmp_path: Path) -> None:
    save(tmp_path, model_type, **changes)
    source = GGUFSource(write(tmp_path / "model.gguf", model_type, tmp_path))
    expected = logits(opened(tmp_path), SEQUENCES)
    for actual, of_folder in zip(logits(opened(source), SEQUENCES), expected, strict=True):
        # The numbers of a file are rounded to float32, such as eps.
        assert np.abs(actual - of_folder).max() <= 2e-6 * np.abs(of_folder).max()


@pytest.mark.parametrize("model_type", ["phi3", "stablelm", "starcoder2"])
def test_transformers_reads_the_same_tensors(model_type: str, tmp_path: Path) -> None:
    # Of these architectures it knows the names.
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    oracle = save(tmp_path, model_type)
    path = write(tmp_path / "model.gguf", model_type, tmp_path)
    theirs = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=oracle)["tensors"]
    weights = safetensors.load_file(tmp_path / "model.safetensors")
    assert theirs.keys() == weights.keys()
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(tensor.numpy(), weights[name])


REFUSED = [
    ("stablelm", lambda writer: writer.add_tensor("blk.0.attn_q_norm.weight", np.ones(8, np.float32)), "attn_q_norm"),
    ("granite", lambda writer: writer.add_expert_count(4), "expert_count"),
    ("cohere2", lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE), "rope.scaling.type"),
    ("phi3", lambda writer: writer.add_rope_scaling_attn_factors(1.2), "rope.scaling.attn_factor"),
    (
        "phi3",
        lambda writer: writer.add_tensor("rope_factors_long.weight", np.ones(2, np.float32)),
        "rope_factors_short",
    ),
]


@pytest.mark.parametrize(("model_type", "add", "words"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_unsupported_entries(
    model_type: str, add: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, model_type)
    write_header = gguf.GGUFWriter.write_header_to_file

    def with_more(writer: Any) -> None:
        add(writer)
        write_header(writer)

    monkeypatch.setattr(gguf.GGUFWriter, "write_header_to_file", with_more)
    path = write(tmp_path / "model.gguf", model_type, tmp_path)
    with pytest.raises(ValueError, match=words):
        opened(GGUFSource(path))


@pytest.mark.parametrize("model_type", ["granite", "stablelm", "gpt_neox", "phi3", "cohere"])
def test_missing_entries(model_type: str, tmp_path: Path) -> None:
    save(tmp_path, model_type)
    path = write(tmp_path / "model.gguf", model_type, tmp_path)
    data, name = path.read_bytes(), ARCHITECTURES[model_type].encode()
    required = [b"embedding_length", b"block_count", b"attention.head_count", b"feed_forward_length", b"context_length"]
    required += {
        "granite": [b"attention.scale", b"residual_scale", b"embedding_scale", b"logit_scale"],
        "cohere": [b"logit_scale", b"attention.layer_norm_epsilon"],
        "stablelm": [b"use_parallel_residual", b"attention.layer_norm_epsilon"],
        "gpt_neox": [b"use_parallel_residual", b"attention.layer_norm_epsilon"],
        "phi3": [b"attention.layer_norm_rms_epsilon"],
    }[model_type]
    for entry in required:
        key = name + b"." + entry
        path.write_bytes(data.replace(key, b"general." + b"x" * (len(key) - 8), 1))
        with pytest.raises(ValueError, match=entry.decode()):
            opened(GGUFSource(path))
