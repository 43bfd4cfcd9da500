"""Llama. Other decoders are described by their differences from it."""

from ..architecture.config import ATTENTION, FEED_FORWARD
from ..architecture.family import EMBEDDING, GATED, GENERATION, Family, Keys
from ..architecture.tensor_names import BlockNames, HeadNames, StackNames

NAMES = StackNames(
    blocks=BlockNames(
        layer="layers.{}.",
        query="self_attn.q_proj",
        key="self_attn.k_proj",
        value="self_attn.v_proj",
        out="self_attn.o_proj",
        gate="mlp.gate_proj",
        up="mlp.up_proj",
        down="mlp.down_proj",
        norm1="input_layernorm",
        norm2="post_attention_layernorm",
        query_norm="self_attn.q_norm",
        key_norm="self_attn.k_norm",
    ),
    final_norm="norm",
)

FAMILY = Family(
    model_types=("llama",),
    roles=frozenset({EMBEDDING, GENERATION}),
    keys=Keys(num_kv_heads="num_key_value_heads", head_dim="head_dim", eps="rms_norm_eps"),
    stacks=(NAMES,),
    head=HeadNames(),
    defaults={"hidden_act": "silu", "rms_norm_eps": 1e-6},
    refused={"per_layer_config": "settings of single layers are unsupported"},
    expected={"is_causal": True, "add_cross_attention": False, "is_encoder_decoder": False},
    norm="rms",
    activations=GATED,
    biases={"attention_bias": ATTENTION, "mlp_bias": FEED_FORWARD},
    bases={"": ("rope_theta", 10000.0)},
    is_causal=True,
)
