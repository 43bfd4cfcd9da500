"""Encoder-decoders of every family with random weights, as transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import saved_families

BART = {"d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 32, "max_position_embeddings": 40,
        "init_std": 0.5}  # fmt: skip
T5 = {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 3,
      "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20,
      "decoder_start_token_id": 1, "pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0}  # fmt: skip

KINDS = {
    "bart": ("BartForConditionalGeneration", BART),
    "marian": ("MarianMTModel", BART),
    "mbart": ("MBartForConditionalGeneration", BART),
    "pegasus": ("PegasusForConditionalGeneration", BART),
    "t5": ("T5ForConditionalGeneration", T5),
    "m2m_100": ("M2M100ForConditionalGeneration", BART),
    "mt5": ("MT5ForConditionalGeneration", T5),
    "umt5": ("UMT5ForConditionalGeneration", T5),
}

_TOKENS = {"decoder_start_token_id": 1, "eos_token_id": 2, "forced_eos_token_id": 2, "pad_token_id": 1}

# Every family, with what config.json may say of it that changes results.
MODELS: dict[str, dict[str, Any]] = {
    "bart": {},
    "bart, scaled": {"scale_embedding": True},
    "bart, relu": {"activation_function": "relu"},
    "bart, gelu_new": {"activation_function": "gelu_new"},
    "bart, first token": {"forced_bos_token_id": 0},
    "bart, never": {"bad_words_ids": [[7], [88], [9]]},
    "mbart": {"decoder_start_token_id": 2},
    "mbart, scaled": {"decoder_start_token_id": 2, "scale_embedding": True},
    "marian": _TOKENS,
    "marian, swish, scaled": _TOKENS | {"activation_function": "swish", "scale_embedding": True},
    "pegasus": _TOKENS,
    "pegasus, scaled, relu": _TOKENS | {"activation_function": "relu", "scale_embedding": True},
    "t5": {},
    "t5, gelu": {"feed_forward_proj": "gelu"},
    "t5, gated gelu": {"feed_forward_proj": "gated-gelu"},
    "t5, gated silu": {"feed_forward_proj": "gated-silu"},
    "t5, own head": {"tie_word_embeddings": False},
    "t5, another eps": {"layer_norm_epsilon": 1e-2},
    "m2m_100": {},
    "m2m_100, gelu, unscaled, language": {
        "activation_function": "gelu", "scale_embedding": False, "forced_bos_token_id": 77, "pad_token_id": 5,
    },
    "mt5": {},
    "mt5, relu": {"feed_forward_proj": "relu", "layer_norm_epsilon": 1e-2},
    "umt5": {},
    "umt5, deep": {"num_layers": 3, "num_decoder_layers": 1, "feed_forward_proj": "gated-silu"},
}  # fmt: skip


def save(directory: Path, name: str, **changes: Any) -> Any:
    """The model of transformers in float64, after it has been saved in float32."""
    import torch
    import transformers

    model_type = name.partition(",")[0]
    library = saved_families.tokenizer_of("roberta", model_max_length=40)
    kind, sizes = KINDS[model_type]
    config = getattr(transformers, kind).config_class(
        **{"vocab_size": len(library), **sizes, **MODELS[name], **changes}
    )
    torch.manual_seed(0)
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for name_of, parameter in model.named_parameters():
            if parameter.dim() == 1:  # which are zeros and ones in a new model, and so without effect
                parameter += torch.randn_like(parameter) / 4
            elif "t5" in model_type:
                is_table = "shared" in name_of or "bias" in name_of
                parameter.copy_(torch.randn_like(parameter) / (1 if is_table else parameter.shape[1] ** 0.5))
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias += torch.randn_like(model.final_logits_bias)
        if MODELS[name].get("tie_word_embeddings") is False:
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    model.save_pretrained(directory)
    library.save_pretrained(directory)
    return type(model).from_pretrained(directory).eval().double()
