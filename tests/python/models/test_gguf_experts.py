"""Language models with experts in GGUF files, which the package gguf writes in the layout of llama.cpp's converter.

Skipped without torch, transformers and gguf.
"""

from __future__ import annotations

import copy
import json
import pickle
import re
from pathlib import Path
from typing import Any

import gguf_files
import numpy as np
import pytest
from decoder_logits import logits, opened
from test_experts_against_transformers import SEQUENCES, save

from mha_native.models.files.gguf.source import GGUFSource

safetensors = pytest.importorskip("safetensors.numpy")
gguf = pytest.importorskip("gguf")

pytestmark = pytest.mark.filterwarnings("ignore")

Array = np.ndarray[Any, Any]

ARCHITECTURES = {
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "olmoe": "olmoe",
    "gpt_oss": "gpt-oss",
}
CASES = ["mixtral", "qwen2_moe, in all layers", "qwen3_moe", "olmoe", "gpt_oss"]


def _stacked(tensors: dict[str, Array]) -> dict[str, Array]:
    """The tensors, those of all experts of a layer in one."""
    stacks: dict[str, dict[int, Array]] = {}
    others = {}
    for name, tensor in tensors.items():
        if found := re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name):
            stacks.setdefault(f"{found[1]}.{found[3]}", {})[int(found[2])] = tensor
        else:
            others[name] = tensor
    return others | {name: np.stack([parts[i] for i in range(len(parts))]) for name, parts in stacks.items()}


def _unfused(tensors: dict[str, Array]) -> dict[str, Array]:
    """The tensors, with gate, up and down of gpt-oss as matrices [N, out, in] of their own."""
    found = {}
    for name, tensor in tensors.items():
        stem, _, which = name.partition(".experts.")
        if which not in ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias"):
            found[name] = tensor
            continue
        end = "bias" if which.endswith("_bias") else "weight"
        rows = tensor if end == "bias" else tensor.swapaxes(1, 2)
        parts = (
            {"down_proj": rows} if which.startswith("down") else {"gate_proj": rows[:, ::2], "up_proj": rows[:, 1::2]}
        )
        found |= {f"{stem}.experts.{part}.{end}": array for part, array in parts.items()}
    return found


def write(path: Path, folder: Path, kinds: dict[str, str] | None = None, **changes: int) -> Path:
    """The model in a folder, as a GGUF file with `changes` of its entries.

    Matrices whose names have one of `kinds` are random blocks of that type.
    """
    rng = np.random.default_rng(0)
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("gpt2")  # without its tokens, which no test reads
    writer.add_tokenizer_pre("gpt-2")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if architecture == "gpt-oss":
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_sliding_window(config["sliding_window"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    count = config.get("num_local_experts", config.get("num_experts"))
    writer.add_expert_count(changes.get("expert_count", count))
    writer.add_expert_used_count(changes.get("expert_used_count", config["num_experts_per_tok"]))
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    for name, tensor in _unfused(_stacked(safetensors.load_file(folder / "model.safetensors"))).items():
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):  # pairs are neighbours
            half = config["hidden_size"] // config["num_attention_heads"] // 2
            heads = tensor.reshape(-1, 2, half, config["hidden_size"])
            tensor = heads.swapaxes(1, 2).reshape(tensor.shape)
        in_file = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if name.endswith(".sinks"):
            in_file = f"{names.get_name(name)}.weight"
        assert in_file is not None, name
        kind = next((kind for part, kind in (kinds or {}).items() if part in in_file), None)
        if kind is not None and in_file.endswith(".weight"):
            count, size = tensor.size // gguf_files.BLOCKS[kind][0], 2.0**-6 if kind == "MXFP4" else 0.005
            blocks = np.frombuffer(gguf_files.random_blocks(kind, count, rng, size), np.uint8)
            rows = blocks.reshape(*tensor.shape[:-1], -1)
            writer.add_tensor(in_file, rows, raw_dtype=getattr(gguf.GGMLQuantizationType, kind))
            continue
        writer.add_tensor(in_file, np.ascontiguousarray(tensor.squeeze()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", CASES)
def test_logits(name: str, tmp_path: Path) -> None:
    save(tmp_path, name)
    source = GGUFSource(write(tmp_path / "model.gguf", tmp_path))
    expected = logits(opened(tmp_path), SEQUENCES)
    for actual, of_folder in zip(logits(opened(source), SEQUENCES), expected, strict=True):
        # The numbers of a file are rounded to float32, such as eps.
        assert np.abs(actual - of_folder).max() <= 2e-6 * np.abs(of_folder).max()


def test_experts_stay_in_blocks(tmp_path: Path) -> None:
    """The parts of an expert have different formats. The bits of a text do not depend on others, copies and dtypes."""
    pytest.importorskip("ml_dtypes")
    save(tmp_path, "gpt_oss of whole blocks")
    kinds = {"gate_exps": "Q5_0", "up_exps": "MXFP4", "down_exps": "Q8_0", "attn_v": "Q4_1"}
    source = GGUFSource(write(tmp_path / "model.gguf", tmp_path, kinds))
    model = opened(source)
    assert model.weight_dtype == "mixed"
    blocks = 6 * 64 * 32 // 32 * 3  # of 6 experts in 3 layers
    of_experts = {"q5_0": blocks * 22, "mxfp4": blocks * 17, "q8_0": blocks * 34}
    assert of_experts.items() <= model.weight_bytes().items()
    expected, wide = logits(model, SEQUENCES), logits(opened(source, weight_dtype="float32"), SEQUENCES)
    for tokens, found, exact in zip(SEQUENCES, expected, wide, strict=True):
        assert np.array_equal(found, logits(model, [tokens])[0])
        errors = np.linalg.norm(found - exact, axis=1) / np.linalg.norm(exact, axis=1)
        assert 0 < np.median(errors) < 0.06  # a few rows choose other experts
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert other.weight_bytes() == model.weight_bytes()
        assert np.array_equal(logits(other, SEQUENCES)[2], expected[2])
    for dtype, weight_dtype in (("float32", "int8"), ("float64", None), ("bfloat16", None), ("float16", None)):
        direct = opened(source, dtype, weight_dtype)
        converted = model.astype(direct.dtype) if weight_dtype is None else model.quantize(weight_dtype)
        assert np.array_equal(logits(direct, SEQUENCES)[2], logits(converted, SEQUENCES)[2]), (dtype, weight_dtype)


@pytest.mark.parametrize("change", [{"expert_count": 7}, {"expert_used_count": 9}, {"expert_count": 0}], ids=str)
def test_damaged_entries(change: dict[str, int], tmp_path: Path) -> None:
    save(tmp_path, "qwen3_moe")
    with pytest.raises(ValueError, match=r"model\.gguf") as error:
        opened(GGUFSource(write(tmp_path / "model.gguf", tmp_path, **change)))
    assert len(str(error.value).splitlines()) == 1
