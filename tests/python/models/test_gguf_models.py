"""Models in GGUF files: their metadata in the words of config.json, and their tensors by the names of transformers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf_files
import numpy as np
import pytest

from mha_native.models.files.gguf.source import GGUFSource

E, H, HK, D, F = gguf_files.E, gguf_files.H, gguf_files.HK, gguf_files.D, gguf_files.F
OF_ALL = {
    "vocab_size": gguf_files.V,
    "tie_word_embeddings": True,
    "hidden_size": E,
    "num_hidden_layers": 2,
    "intermediate_size": F,
    "num_attention_heads": H,
    "num_key_value_heads": HK,
    "max_position_embeddings": 128,
    "rms_norm_eps": float(np.float32(1e-6)),
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
}


def source(path: Path, architecture: str = "llama", **changes: Any) -> GGUFSource:
    return GGUFSource(gguf_files.write(path / "model.gguf", architecture, **changes))


def rewritten(
    path: Path, architecture: str, metadata: dict[str, Any], tensors: dict[str, Any] | None = None
) -> GGUFSource:
    """A tiny model with other entries and tensors; None for one that is missing."""
    own_metadata, own_tensors = gguf_files.model(architecture)
    own_metadata |= metadata
    own_tensors |= tensors or {}
    present = [
        {name: given for name, given in all_of.items() if given is not None} for all_of in (own_metadata, own_tensors)
    ]
    file = path / "model.gguf"
    file.write_bytes(gguf_files.contents(*present))
    return GGUFSource(file)


def refused(path: Path, words: str, architecture: str, metadata: dict[str, Any], tensors: Any = None) -> None:
    with pytest.raises(ValueError, match=words) as error:
        rewritten(path, architecture, metadata, tensors)
    assert str(error.value).startswith(f"{path}/model.gguf")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("architecture", "own"),
    [
        ("llama", {"model_type": "llama", "hidden_act": "silu", "head_dim": E // H}),
        ("qwen2", {"model_type": "qwen2", "hidden_act": "silu", "head_dim": E // H}),
        ("qwen3", {"model_type": "qwen3", "hidden_act": "silu", "head_dim": D}),
        (
            "gemma2",
            {
                "model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh", "head_dim": D,
                "query_pre_attn_scalar": D, "sliding_window": 16, "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0, "layer_types": ["sliding_attention", "full_attention"],
            },
        ),
        (
            "gemma3",
            {
                "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "head_dim": D,
                "query_pre_attn_scalar": D, "sliding_window": 16, "final_logit_softcapping": None,
                "layer_types": ["sliding_attention", "sliding_attention"],
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                },
            },
        ),
    ],
)  # fmt: skip
def test_config(architecture: str, own: dict[str, Any], tmp_path: Path) -> None:
    assert source(tmp_path, architecture).config == OF_ALL | own


def test_config_of_gpt2(tmp_path: Path) -> None:
    assert source(tmp_path, "gpt2").config == {
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "vocab_size": gguf_files.V,
        "tie_word_embeddings": True,
        "n_positions": 128,
        "n_embd": E,
        "n_layer": 2,
        "n_inner": F,
        "n_head": H,
        "layer_norm_epsilon": float(np.float32(1e-5)),
    }


def test_a_head_of_its_own_is_not_tied(tmp_path: Path) -> None:
    head = np.ones((gguf_files.V, E), np.float32)
    model = rewritten(tmp_path, "llama", {}, {"output.weight": head})
    assert model.config["tie_word_embeddings"] is False
    with model.tensors([("lm_head.weight", head.shape)]) as tensors:
        assert np.array_equal(tensors["lm_head.weight"], head)


FACTORS = np.linspace(1, 8, E // H // 2, dtype=np.float32)


@pytest.mark.parametrize(
    ("metadata", "tensors", "expected"),
    [
        ({"llama.rope.freq_base": None}, {}, {"rope_type": "default", "rope_theta": 10000.0}),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 1.0}, {}, {"rope_type": "default"}),
        (
            {
                "llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.finetuned": True,
            },
            {},
            {"rope_type": "linear", "factor": 4.0},
        ),
        (
            {
                "llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 32, "llama.rope.scaling.yarn_beta_fast": 16.0,
            },
            {},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 16.0},
        ),
        (
            {},
            {"rope_freqs.weight": FACTORS},
            {
                "rope_type": "longrope", "short_factor": FACTORS.tolist(), "long_factor": FACTORS.tolist(),
                "attention_factor": 1.0, "original_max_position_embeddings": 128,
            },
        ),
    ],
)  # fmt: skip
def test_scaling_of_positions(
    metadata: dict[str, Any], tensors: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    config = rewritten(tmp_path, "llama", metadata, tensors).config
    assert config["rope_parameters"] == {"rope_theta": 5000.0} | expected


def test_scaling_of_gemma_3_is_that_of_layers_without_window(tmp_path: Path) -> None:
    scaling = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "rope.freq_base_swa": 7000.0}
    assert source(tmp_path, "gemma3", **scaling).config["rope_parameters"] == {
        "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 7000.0},
    }


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [(None, [1, 0]), (1, [0, 0]), (3, [1, 1]), ([False, True], [0, 1])],
)
def test_layers_with_a_window(pattern: Any, expected: list[int], tmp_path: Path) -> None:
    config = source(tmp_path, "gemma2", **{"attention.sliding_window_pattern": pattern}).config
    assert config["layer_types"] == [["full_attention", "sliding_attention"][i] for i in expected]


def test_the_large_gemmas_divide_scores_by_the_width_of_a_part(tmp_path: Path) -> None:
    metadata, tensors = gguf_files.model("gemma2", block_count=46)
    layers = {
        name.replace("blk.0", f"blk.{i}"): given
        for i in range(46)
        for name, given in tensors.items()
        if "blk.0" in name
    }
    file = tmp_path / "model.gguf"
    file.write_bytes(gguf_files.contents(metadata, tensors | layers))
    assert GGUFSource(file).config["query_pre_attn_scalar"] == E // H


@pytest.mark.parametrize(
    ("words", "architecture", "metadata"),
    [
        ("general.architecture must be 'llama' or .*; got 'falcon'", "llama", {"general.architecture": "falcon"}),
        ("general.architecture must be", "llama", {"general.architecture": None}),
        ("general.type must be 'model'; got 'adapter'", "llama", {"general.type": "adapter"}),
        ("one of the 3 files of a model", "llama", {"split.count": 3}),
        ("has unknown entries: llama.logit_scale", "llama", {"llama.logit_scale": 2.0}),
        ("has unknown entries: llama.attention.sliding_window", "llama", {"llama.attention.sliding_window": 8}),
        ("has unknown entries: gpt2.rope.freq_base", "gpt2", {"gpt2.rope.freq_base": 1e4}),
        ("has unknown entries: gemma3.attn_logit_softcapping", "gemma3", {"gemma3.attn_logit_softcapping": 5.0}),
        ("qwen2.expert_count must be 0; got 8", "qwen2", {"qwen2.expert_count": 8}),
        ("unknown tensors: blk.0.ffn_gate.weight", "llama", {"llama.expert_count": 8}),
        ("llama.attention.causal must be True; got False", "llama", {"llama.attention.causal": False}),
        ("embedding_length must be an integer of at least 1; got None", "llama", {"llama.embedding_length": None}),
        ("llama.block_count must be an integer of at least 1; got 0", "llama", {"llama.block_count": 0}),
        ("llama.block_count must be at most the number of tensors", "llama", {"llama.block_count": 2**31}),
        ("feed_forward_length must be an integer", "llama", {"llama.feed_forward_length": [96, 96]}),
        ("head_count_kv must be an integer", "llama", {"llama.attention.head_count_kv": [2, 2]}),
        ("layer_norm_rms_epsilon must be a positive number; got 0.0", "qwen2",
         {"qwen2.attention.layer_norm_rms_epsilon": 0.0}),
        ("rms_epsilon must be a positive number; got None", "qwen2", {"qwen2.attention.layer_norm_rms_epsilon": None}),
        ("value_length must be the width of a key, 32; got 16", "qwen3", {"qwen3.attention.value_length": 16}),
        ("rope.dimension_count must be the width of a key, 32; got 8", "qwen3", {"qwen3.rope.dimension_count": 8}),
        ("width of a key must be even; got 5", "llama",
         {"llama.attention.key_length": 5}),
        ("rope.scaling.type must be 'none' or 'linear' or 'yarn'; got 'longrope'", "llama",
         {"llama.rope.scaling.type": "longrope"}),
        ("rope.scaling.type must be linear or yarn with a factor", "llama", {"llama.rope.scaling.factor": 2.0}),
        ("rope.scaling.factor must be a positive number; got None", "llama", {"llama.rope.scaling.type": "linear"}),
        ("original_context_length must be an integer", "llama",
         {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0}),
        ("attn_logit_softcapping must be a positive number", "gemma2", {"gemma2.attn_logit_softcapping": None}),
        ("sliding_window must be an integer", "gemma3", {"gemma3.attention.sliding_window": None}),
        ("sliding_window_pattern must be an integer of at least 1 or 2 flags", "gemma2",
         {"gemma2.attention.sliding_window_pattern": [True]}),
        ("eos_token_id must be one of the 320 tokens; got 320", "llama", {"tokenizer.ggml.eos_token_id": 320}),
        ("tokenizer.chat_template must be a text; got 1", "llama", {"tokenizer.chat_template": 1}),
        ("tokenizer.ggml.model must be 'gpt2' or 'llama'; got 't5'", "llama", {"tokenizer.ggml.model": "t5"}),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(
    words: str, architecture: str, metadata: dict[str, Any], tmp_path: Path
) -> None:
    refused(tmp_path, words, architecture, metadata)


@pytest.mark.parametrize(
    ("words", "metadata", "tensors"),
    [
        ("has unknown tensors: blk.0.attn_q.bias", {}, {"blk.0.attn_q.bias": np.ones(E)}),
        (r"rope_freqs.weight must be F32 \[8\]; got F32 \[7\]", {}, {"rope_freqs.weight": np.ones(7)}),
        ("rope_freqs.weight must be F32", {}, {"rope_freqs.weight": (np.ones(8), "F16")}),
        ("rope_freqs.weight must hold positive numbers", {}, {"rope_freqs.weight": np.zeros(8)}),
        ("rope.scaling.type must be none with rope_freqs.weight; got linear",
         {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}, {"rope_freqs.weight": np.ones(8)}),
    ],
)  # fmt: skip
def test_tensors_that_are_not_known_are_refused(
    words: str, metadata: dict[str, Any], tensors: dict[str, Any], tmp_path: Path
) -> None:
    refused(tmp_path, words, "llama", metadata, tensors)


def test_queries_and_keys_of_llama_are_turned_by_halves(tmp_path: Path) -> None:
    """Row 2 i of a head in the file is feature i of its first half, row 2 i + 1 that of its second half."""
    head_dim = E // H
    _, in_file = gguf_files.model("llama")
    names = {
        "blk.1.attn_q.weight": "layers.1.self_attn.q_proj.weight",
        "blk.1.attn_k.weight": "layers.1.self_attn.k_proj.weight",
    }
    with source(tmp_path).tensors([(own, in_file[theirs].shape) for theirs, own in names.items()], "model.") as tensors:
        for theirs, own in names.items():
            for row, numbers in enumerate(in_file[theirs]):
                head, place = divmod(row, head_dim)
                pair, half = divmod(place, 2)
                assert np.array_equal(tensors[own][head * head_dim + half * (head_dim // 2) + pair], numbers)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "gemma2", "gemma3"])
def test_queries_of_others_are_as_they_are(architecture: str, tmp_path: Path) -> None:
    query = gguf_files.model(architecture)[1]["blk.0.attn_q.weight"]
    name = "layers.0.self_attn.q_proj.weight"
    with source(tmp_path, architecture).tensors([(name, query.shape)]) as tensors:
        assert np.array_equal(tensors[name], query)


@pytest.mark.parametrize(("architecture", "offset"), [("llama", 0), ("qwen3", 0), ("gemma2", 1), ("gemma3", 1)])
def test_weights_of_norms(architecture: str, offset: int, tmp_path: Path) -> None:
    """Files of Gemma have what norms multiply with; in transformers that is 1 more than the weight."""
    norm = gguf_files.model(architecture)[1]["output_norm.weight"]
    with source(tmp_path, architecture).tensors([("norm.weight", (E,))]) as tensors:
        assert np.array_equal(tensors["norm.weight"], norm - np.float32(offset))


def test_matrices_of_gpt2_are_transposed(tmp_path: Path) -> None:
    matrix = gguf_files.model("gpt2")[1]["blk.1.attn_qkv.weight"]
    name = "h.1.attn.c_attn.weight"
    with source(tmp_path, "gpt2").tensors([(name, (E, 3 * E)), ("wte.weight", (gguf_files.V, E))]) as tensors:
        assert np.array_equal(tensors[name], matrix.T)
        assert name in tensors
        assert "lm_head.weight" not in tensors


@pytest.mark.parametrize(
    ("tensors", "shapes", "words"),
    [
        ({"output_norm.weight": None}, [("norm.weight", (E,))], "its metadata: missing: output_norm.weight"),
        ({}, [("layers.7.mlp.up_proj.weight", (F, E))], r"missing: blk.7.ffn_up.weight"),
        ({}, [("layers.0.self_attn.q_proj.bias", (E,))], r"missing: layers.0.self_attn.q_proj.bias"),
        ({}, [("norm.weight", (E + 1,))], r"of the wrong shape: output_norm.weight \[64\] instead of \[65\]"),
        ({"output_norm.weight": np.full(E, np.nan)}, [("norm.weight", (E,))], "output_norm.weight must hold finite"),
    ],
)
def test_tensors_that_are_missing_or_wrong(tensors: Any, shapes: Any, words: str, tmp_path: Path) -> None:
    model = rewritten(tmp_path, "llama", {}, tensors)
    with pytest.raises(ValueError, match=words), model.tensors(shapes) as opened:
        opened["norm.weight"]


def test_a_type_that_is_not_read_is_refused_by_name(tmp_path: Path) -> None:
    """256 numbers of type Q2_K take 84 bytes."""
    raw = gguf_files.contents(*gguf_files.model("llama"))
    name = gguf_files.string("blk.0.ffn_up.weight")
    place = raw.index(name) + len(name) + 4
    assert struct.unpack_from("<QQI", raw, place) == (E, F, 0)
    changed = raw[:place] + struct.pack("<QQI", 256, F * E // 256, gguf_files.TYPES["Q2_K"]) + raw[place + 20 :]
    (tmp_path / "model.gguf").write_bytes(changed)
    with pytest.raises(
        ValueError, match=r"of types other than F32, .*, Q6_K, IQ4_NL, MXFP4: blk.0.ffn_up.weight Q2_K$"
    ):
        GGUFSource(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, {"eos_token_id": 0, "bos_token_id": 1}),
        ({"tokenizer.ggml.eot_token_id": 0}, {"eos_token_id": 0, "bos_token_id": 1}),
        (
            {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 6, "tokenizer.ggml.padding_token_id": 7},
            {"eos_token_id": [0, 5, 6], "bos_token_id": 1, "pad_token_id": 7},
        ),
        ({"tokenizer.ggml.eos_token_id": None, "tokenizer.ggml.bos_token_id": None}, {}),
    ],
)
def test_tokens_that_end_texts(metadata: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    assert rewritten(tmp_path, "llama", metadata).generation == expected


def test_tokenizer_config_and_template(tmp_path: Path) -> None:
    model = rewritten(tmp_path, "llama", {"tokenizer.chat_template": "{{ x }}", "tokenizer.ggml.add_bos_token": True})
    assert model.chat_template == "{{ x }}"
    assert model.tokenizer_config == {
        "add_bos_token": True, "add_eos_token": False, "bos_token": "<|bos|>", "eos_token": "<|endoftext|>",
    }  # fmt: skip
    assert source(tmp_path).chat_template is None
