"""Models of transformers with random weights, small enough to run in milliseconds: each in one of its families."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers

VOCABULARY = 99
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
_GROUPED = _SIZES | {"num_key_value_heads": 2, "head_dim": 8}
_ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
_ENCODER_DECODER = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
    "forced_eos_token_id": None,
}
_T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}

ENCODERS: dict[str, dict[str, Any]] = {
    "Bert": _SIZES,
    "Roberta": _SIZES | {"pad_token_id": 0, "max_position_embeddings": 130},
    "DistilBert": {"vocab_size": VOCABULARY, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4},
    "Electra": _SIZES | {"embedding_size": 16},
    "Albert": _SIZES | {"embedding_size": 16},
    "ModernBert": _SIZES | {"local_attention": 8, "global_attn_every_n_layers": 2, "pad_token_id": 0},
}
# Encoders that compute attention by no interface.
OWN_ATTENTION: dict[str, dict[str, Any]] = {"MPNet": _SIZES | {"pad_token_id": 1}}
DECODERS: dict[str, dict[str, Any]] = {
    "GPT2": {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "GPTNeoX": _SIZES,
    "OPT": {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "ffn_dim": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "word_embed_proj_dim": 32,
        "max_position_embeddings": 128,
    },
    "Llama": _GROUPED,
    "Mistral": _GROUPED | {"sliding_window": 6},
    "Qwen2": _GROUPED,
    "Qwen3": _GROUPED,
    "Phi": _SIZES,
    "Gemma2": _GROUPED | _ALTERNATING | {"attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 8},
    "Gemma3Text": _GROUPED | _ALTERNATING | {"query_pre_attn_scalar": 8},
    "Olmo2": _GROUPED,
    "GptOss": _GROUPED | _ALTERNATING | {"num_local_experts": 2, "num_experts_per_tok": 1},
}
SEQ2SEQ: dict[str, dict[str, Any]] = {
    "Bart": _ENCODER_DECODER,
    "Marian": _ENCODER_DECODER | {"decoder_start_token_id": 1, "pad_token_id": 0},
    "T5": _T5 | {"decoder_start_token_id": 0},
}


def model(family: str) -> Any:
    """The model of a family in float32 and in evaluation mode, with weights large enough that attention matters."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**(ENCODERS | OWN_ATTENTION | DECODERS | SEQ2SEQ)[family])
    config.eos_token_id = None  # generation goes on
    kind = (
        transformers.AutoModel
        if family in ENCODERS | OWN_ATTENTION
        else transformers.AutoModelForCausalLM
        if family in DECODERS
        else transformers.AutoModelForSeq2SeqLM
    )
    made = kind.from_config(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.15)
            elif parameter.numel() == config.num_attention_heads:  # sinks
                parameter.normal_()
    return made


def tokens(family: str, padding: str) -> dict[str, Any]:
    """Two texts of 13 and 9 tokens, the other one padded on a side, or two of 13 for "none"."""
    ids = torch.from_numpy(np.random.default_rng(1).integers(3, VOCABULARY, (2, 13)))
    mask = torch.ones_like(ids)
    if padding != "none":
        mask[1, slice(9, None) if padding == "right" else slice(4)] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def in_training(family: str, dtype: Any) -> tuple[Any, dict[str, Any], Any]:
    """The model of a family in training mode without dropout, its inputs, and the rows of outputs without padding."""
    made = model(family).to(dtype).train()
    for part in made.modules():
        for name, value in vars(part).items():
            if name == "p" or ("dropout" in name and isinstance(value, float)):
                setattr(part, name, 0.0)
    inputs = tokens(family, "right")
    rows: Any = inputs["attention_mask"].bool()
    if family in SEQ2SEQ:
        inputs["decoder_input_ids"], rows = inputs["input_ids"].clamp(min=3), slice(None)
    return made, inputs, rows


def loss(of: Any, inputs: dict[str, Any], rows: Any) -> Any:
    """The squared distance of outputs from numbers that no norm gives."""
    out = of(**inputs, use_cache=False) if hasattr(of.config, "use_cache") else of(**inputs)
    found = (out.logits if hasattr(out, "logits") else out.last_hidden_state)[rows]
    target = torch.sin(torch.arange(found.numel(), dtype=found.dtype)).reshape(found.shape)
    return (found - target).square().mean()
