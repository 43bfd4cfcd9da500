"""Decoders and encoder-decoders of every family with random weights, small enough to write one for each test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tiny_bert
from checkpoints import Shapes, affine, random_weights, write_folder

Array = np.ndarray[Any, Any]

DECODERS = ["gemma2", "gemma3_text", "gpt2", "llama", "mistral", "qwen2", "qwen3"]
# Decoders whose only oracle is transformers.
FURTHER = ["cohere", "cohere2", "ernie4_5", "exaone4", "glm", "glm4", "gpt_neox", "granite", "olmo2", "olmo3", "phi3",
           "smollm3", "stablelm", "starcoder2"]  # fmt: skip
SEQ2SEQ = ["bart", "marian", "mbart", "pegasus", "t5"]

VOCABULARY, WIDTH, HEADS, KV_HEADS, LAYERS, INNER, POSITIONS = 45, 24, 4, 2, 3, 40, 32
SEQ2SEQ_VOCABULARY, PADDING, START, END = 40, 0, 2, 3

_GPT2 = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_inner": INNER, "n_positions": POSITIONS}
_LLAMA = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": POSITIONS,
    "hidden_act": "silu",
}
_GEMMA = {name: value for name, value in _LLAMA.items() if name != "hidden_act"} | {
    "head_dim": 8,
    "query_pre_attn_scalar": 5,
    "sliding_window": 4,
    "hidden_activation": "gelu_pytorch_tanh",
}
_TOKENS = {
    "vocab_size": SEQ2SEQ_VOCABULARY,
    "pad_token_id": PADDING,
    "decoder_start_token_id": START,
    "eos_token_id": END,
    "bos_token_id": START,
}
_BART = _TOKENS | {
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": POSITIONS,
    "forced_eos_token_id": None,
}
_T5 = _TOKENS | {
    "d_model": WIDTH,
    "d_kv": 6,
    "d_ff": 40,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}

_OF_FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "mistral": _LLAMA | {"sliding_window": 4},
    "qwen2": _LLAMA,
    "qwen3": _LLAMA | {"head_dim": 8},
    # Caps that change much: scores and logits are of the order of 1.
    "gemma2": _GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": _GEMMA | {"sliding_window_pattern": 2},
    **dict.fromkeys(FURTHER, _LLAMA),
    **dict.fromkeys(("cohere2", "exaone4", "olmo3"), _LLAMA | {"num_hidden_layers": 4, "sliding_window": 4}),
    **dict.fromkeys(("glm", "glm4"), _LLAMA | {"head_dim": 8}),
    "ernie4_5": _LLAMA | {"head_dim": 8},
    "gpt_neox": {name: value for name, value in _LLAMA.items() if name not in ("num_key_value_heads", "hidden_act")}
    | {"rotary_pct": 0.7},
    "granite": _LLAMA
    | {"embedding_multiplier": 3.0, "attention_multiplier": 0.6, "residual_multiplier": 0.4, "logits_scaling": 2.0},
    "phi3": _LLAMA | {"partial_rotary_factor": 0.7},
    "smollm3": _LLAMA | {"num_hidden_layers": 4, "no_rope_layer_interval": 2},
    "stablelm": _LLAMA | {"partial_rotary_factor": 0.4},
    "starcoder2": _LLAMA | {"hidden_act": "gelu_pytorch_tanh"},
    **dict.fromkeys(SEQ2SEQ, _BART),
    "t5": _T5,
}

# Where weights of the seed 0 write the same token again and again.
_SEEDS = {"marian": 2}

# Every family, with the entries of config.json that change its results.
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("bart", {}),
    ("bart", {"scale_embedding": True}),
    ("bart", {"activation_function": "relu"}),
    ("bart", {"activation_function": "gelu_new"}),
    ("marian", {}),
    ("marian", {"scale_embedding": True, "activation_function": "swish", "share_encoder_decoder_embeddings": True}),
    ("mbart", {}),
    ("mbart", {"scale_embedding": True, "activation_function": "relu"}),
    ("pegasus", {}),
    ("pegasus", {"scale_embedding": True, "activation_function": "relu"}),
    ("t5", {}),
    ("t5", {"feed_forward_proj": "gelu"}),
    ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    ("t5", {"feed_forward_proj": "gated-silu", "dense_act_fn": "silu", "is_gated_act": True}),
    ("t5", {"scale_decoder_outputs": False}),
    ("t5", {"layer_norm_epsilon": 0.3, "d_kv": 16}),
]


def config(model_type: str, **changes: Any) -> dict[str, Any]:
    """config.json."""
    return {"model_type": model_type, "vocab_size": VOCABULARY, **_OF_FAMILIES[model_type]} | changes


def shapes(settings: dict[str, Any]) -> Shapes:
    """The tensors of the model, as transformers saves it."""
    model_type = settings["model_type"]
    describe = {"gpt2": _gpt2_shapes, "t5": _t5_shapes} | dict.fromkeys(SEQ2SEQ[:4], _bart_shapes)
    is_tied = settings.get("tie_word_embeddings", model_type in ("gpt2", *SEQ2SEQ) or model_type.startswith("gemma"))
    width = next(settings[key] for key in ("hidden_size", "n_embd", "d_model") if key in settings)
    head = {} if is_tied else {"lm_head.weight": (settings["vocab_size"], width)}
    return describe.get(model_type, _llama_shapes)(settings) | head


def _llama_shapes(settings: dict[str, Any]) -> Shapes:
    model_type = settings["model_type"]
    width, inner = settings["hidden_size"], settings["intermediate_size"]
    head_dim = settings.get("head_dim") or width // settings["num_attention_heads"]
    rows, kv_rows = settings["num_attention_heads"] * head_dim, settings["num_key_value_heads"] * head_dim
    is_gemma = model_type.startswith("gemma")
    has_choice = model_type in ("llama", "qwen3", "gemma2", "gemma3_text")
    all_biases = has_choice and settings.get("attention_bias", False)
    result: Shapes = {"model.embed_tokens.weight": (settings["vocab_size"], width)}
    for i in range(settings["num_hidden_layers"]):
        layer, has_bias = f"model.layers.{i}.", all_biases or model_type == "qwen2"
        result |= affine("q_proj", rows, width, prefix=f"{layer}self_attn.", bias=has_bias)
        result |= affine("k_proj v_proj", kv_rows, width, prefix=f"{layer}self_attn.", bias=has_bias)
        result |= affine("o_proj", width, rows, prefix=f"{layer}self_attn.", bias=all_biases)
        has_bias = model_type == "llama" and settings.get("mlp_bias", False)
        result |= affine("gate_proj up_proj", inner, width, prefix=f"{layer}mlp.", bias=has_bias)
        result |= affine("down_proj", width, inner, prefix=f"{layer}mlp.", bias=has_bias)
        norms = ["input", "post_attention"] + ["pre_feedforward", "post_feedforward"] * is_gemma
        result |= affine([f"{name}_layernorm" for name in norms], width, prefix=layer, bias=False)
        if model_type in ("qwen3", "gemma3_text"):
            result |= affine("q_norm k_norm", head_dim, prefix=f"{layer}self_attn.", bias=False)
    return result | affine("model.norm", width, bias=False)


def _gpt2_shapes(settings: dict[str, Any]) -> Shapes:
    width = settings["n_embd"]
    inner = settings.get("n_inner") or 4 * width
    result: Shapes = {
        "transformer.wte.weight": (settings["vocab_size"], width),
        "transformer.wpe.weight": (settings["n_positions"], width),
    }
    products = {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width)}
    products |= {"mlp.c_fc": (width, inner), "mlp.c_proj": (inner, width)}
    for i in range(settings["n_layer"]):
        layer = f"transformer.h.{i}."
        for name, shape in products.items():  # [in, out]
            result |= {f"{layer}{name}.weight": shape, f"{layer}{name}.bias": shape[1:]}
        result |= affine("ln_1 ln_2", width, prefix=layer)
    return result | affine("transformer.ln_f", width)


def _bart_shapes(settings: dict[str, Any]) -> Shapes:
    vocabulary, width, model_type = settings["vocab_size"], settings["d_model"], settings["model_type"]
    result: Shapes = {"model.shared.weight": (vocabulary, width), "final_logits_bias": (1, vocabulary)}
    norms = []
    for stack in ("encoder", "decoder"):
        if model_type in ("bart", "mbart"):
            result[f"model.{stack}.embed_positions.weight"] = (settings["max_position_embeddings"] + 2, width)
            norms.append(f"model.{stack}.layernorm_embedding")
        if model_type in ("mbart", "pegasus"):
            norms.append(f"model.{stack}.layer_norm")
        inner = settings[f"{stack}_ffn_dim"]
        attentions = ["self_attn"] + ["encoder_attn"] * (stack == "decoder")
        for i in range(settings[f"{stack}_layers"]):
            layer = f"model.{stack}.layers.{i}."
            for name in attentions:
                result |= affine("q_proj k_proj v_proj out_proj", width, width, prefix=f"{layer}{name}.")
            result |= affine("fc1", inner, width, prefix=layer) | affine("fc2", width, inner, prefix=layer)
            norms += [f"{layer}{name}_layer_norm" for name in [*attentions, "final"]]
    return result | affine(norms, width)


def _t5_shapes(settings: dict[str, Any]) -> Shapes:
    width, heads, inner = settings["d_model"], settings["num_heads"], settings["d_ff"]
    rows, buckets = heads * settings["d_kv"], settings["relative_attention_num_buckets"]
    rising = "wi_0 wi_1" if settings.get("feed_forward_proj", "relu").startswith("gated") else "wi"
    result: Shapes = {"shared.weight": (settings["vocab_size"], width)}
    for stack, depth in (("encoder", "num_layers"), ("decoder", "num_decoder_layers")):
        parts = ["SelfAttention"] + ["EncDecAttention"] * (stack == "decoder")
        result[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (buckets, heads)
        result |= affine("final_layer_norm", width, prefix=f"{stack}.", bias=False)
        for i in range(settings[depth]):
            layer = f"{stack}.block.{i}.layer."
            for part, name in enumerate(parts):
                result |= affine("q k v", rows, width, prefix=f"{layer}{part}.{name}.", bias=False)
                result |= affine("o", width, rows, prefix=f"{layer}{part}.{name}.", bias=False)
            dense = f"{layer}{len(parts)}.DenseReluDense."
            result |= affine(rising, inner, width, prefix=dense, bias=False)
            result |= affine("wo", width, inner, prefix=dense, bias=False)
            norms = [f"{part}.layer_norm" for part in range(len(parts) + 1)]
            result |= affine(norms, width, prefix=layer, bias=False)
    return result


def tensors(settings: dict[str, Any]) -> dict[str, Array]:
    """Return random weights. The norms of Gemma multiply with 1 more than their weights."""
    of_model, model_type = shapes(settings), settings["model_type"]

    def size(name: str) -> float:
        if len(of_model[name]) == 1 or name == "final_logits_bias":
            return 0.3
        if model_type in DECODERS:
            return float(WIDTH**-0.5)
        is_table = "shared" in name or "embed_positions" in name or "bias" in name
        return 1.0 if is_table else float(of_model[name][1] ** -0.5)

    is_gemma = model_type.startswith("gemma")
    return random_weights(of_model, size, norm=not is_gemma, seed=_SEEDS.get(model_type, 0))


def renamed(weights: dict[str, Array]) -> dict[str, Array]:
    """The same as of a model that was saved without a head: names do not begin with that of the model."""
    return {name.removeprefix("model.").removeprefix("transformer."): x for name, x in weights.items()}


def write(
    directory: Path,
    settings: dict[str, Any],
    weights: dict[str, Array] | None = None,
    files: dict[str, Any] | None = None,
) -> Path:
    """The directory of a model. `files` are written as JSON, or as they are if they are a str."""
    contents = {"config.json": settings, "tokenizer.json": tiny_bert.tokenizer().to_str()} | (files or {})
    return write_folder(directory, contents, tensors(settings) if weights is None else weights)
