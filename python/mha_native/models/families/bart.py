"""BART. Other encoder-decoders are described by their differences from it."""

from ..architecture.config import ATTENTION, FEED_FORWARD, MEMORY
from ..architecture.family import TEXT_TO_TEXT, Family, Keys, StackKeys
from ..architecture.tensor_names import BlockNames, HeadNames, StackNames
from ..front_ends.tokens import TokensNames

_WORDS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def names(*, embedding_norm: bool = True, final_norm: bool = False) -> tuple[StackNames, ...]:
    """Return the names of the tensors of encoder and decoder."""
    return tuple(
        StackNames(
            front_end=TokensNames(
                words=_WORDS,
                positions=f"{stack}.embed_positions.weight",
                norm=f"{stack}.layernorm_embedding" if embedding_norm else "",
            ),
            blocks=BlockNames(
                layer=f"{stack}.layers.{{}}.",
                query="self_attn.q_proj",
                key="self_attn.k_proj",
                value="self_attn.v_proj",
                out="self_attn.out_proj",
                memory_query="encoder_attn.q_proj",
                memory_key="encoder_attn.k_proj",
                memory_value="encoder_attn.v_proj",
                memory_out="encoder_attn.out_proj",
                memory_norm="encoder_attn_layer_norm",
                up="fc1",
                down="fc2",
                norm1="self_attn_layer_norm",
                norm2="final_layer_norm",
            ),
            final_norm=f"{stack}.layer_norm" if final_norm else "",
        )
        for stack in ("encoder", "decoder")
    )


FAMILY = Family(
    model_types=("bart",),
    roles=frozenset({TEXT_TO_TEXT}),
    keys=Keys(
        embed_dim="d_model",
        stacks=tuple(
            StackKeys(f"{stack}_layers", f"{stack}_attention_heads", f"{stack}_ffn_dim")
            for stack in ("encoder", "decoder")
        ),
        activation="activation_function",
        scales_embeddings="scale_embedding",
    ),
    stacks=names(),
    head=HeadNames(bias="final_logits_bias", is_optional=True),
    defaults={
        "vocab_size": 50265,
        "max_position_embeddings": 1024,
        "d_model": 1024,
        **dict.fromkeys(("encoder_layers", "decoder_layers"), 12),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 4096),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 16),
        "activation_function": "gelu",
        "scale_embedding": False,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "forced_eos_token_id": 2,
        "decoder_start_token_id": 2,
    },
    expected={"is_encoder_decoder": True, "is_decoder": False},
    norm_first=False,
    eps=1e-5,
    biases={"": ATTENTION | MEMORY | FEED_FORWARD},
    is_causal=True,
    first_position=2,
)
