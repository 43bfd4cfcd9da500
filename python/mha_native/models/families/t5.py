"""T5 and version 1.1, such as Flan-T5: RMSNorm, no biases, and a bias of scores by distance; and its encoder alone."""

import math

from ..architecture.config import ModelConfig
from ..architecture.family import EMBEDDING, TEXT_TO_TEXT, UNGATED, Family, Keys, StackKeys, described
from ..architecture.tensor_names import BlockNames, HeadNames, StackNames
from ..files.entries import Entries
from ..front_ends.tokens import TokensNames

# The model has no limit of positions, but a text with more tokens is a mistake.
_MOST_TOKENS = 1 << 20


def _stack(stack: str, feed_forward: int) -> StackNames:
    """Return the names of a stack. The feed-forward is part number `feed_forward` of a layer."""
    return StackNames(
        front_end=TokensNames(words=("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")),
        blocks=BlockNames(
            layer=f"{stack}.block.{{}}.layer.",
            query="0.SelfAttention.q",
            key="0.SelfAttention.k",
            value="0.SelfAttention.v",
            out="0.SelfAttention.o",
            norm1="0.layer_norm",
            memory_query="1.EncDecAttention.q",
            memory_key="1.EncDecAttention.k",
            memory_value="1.EncDecAttention.v",
            memory_out="1.EncDecAttention.o",
            memory_norm="1.layer_norm",
            gate=f"{feed_forward}.DenseReluDense.wi_0",
            up=f"{feed_forward}.DenseReluDense.wi_1",
            ungated_up=f"{feed_forward}.DenseReluDense.wi",
            down=f"{feed_forward}.DenseReluDense.wo",
            norm2=f"{feed_forward}.layer_norm",
        ),
        final_norm=f"{stack}.final_layer_norm",
        position_bias=f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    )


def describe(family: Family, given: Entries, role: str, max_positions: int | None = None) -> ModelConfig:
    entries = given._replace(values={**family.defaults, **given.values})
    entries.size("d_kv")
    if role == EMBEDDING:  # an encoder alone, or the encoder of an encoder-decoder
        family, max_positions = family._replace(expected={}), _MOST_TOKENS
    config = described(family, given, role, max_positions)
    block = config.stacks[0].blocks[0]
    entries.expect({"is_gated_act": block.gated})  # which repeats the activation
    if "dense_act_fn" in entries.values:
        names = {**UNGATED, "silu": ("silu", False)}
        entries.choice("dense_act_fn", *(name for name, (ours, _) in names.items() if ours == block.activation))
    is_scaled = entries.flag("tie_word_embeddings")  # the default of scale_decoder_outputs
    if entries.has("scale_decoder_outputs"):
        is_scaled = entries.flag("scale_decoder_outputs")
    if config.head is None or not is_scaled:
        return config
    return config._replace(head=config.head._replace(scale=1 / math.sqrt(config.embed_dim)))


def _unscaled(entries: Entries, i: int) -> float:
    return 1.0


FAMILY = Family(
    model_types=("t5",),
    roles=frozenset({EMBEDDING, TEXT_TO_TEXT}),
    keys=Keys(
        embed_dim="d_model",
        stacks=(
            StackKeys("num_layers", "num_heads", "d_ff"),
            StackKeys("num_decoder_layers", "num_heads", "d_ff"),
        ),
        head_dim="d_kv",
        max_positions="",
        activation="feed_forward_proj",
        eps="layer_norm_epsilon",
        num_buckets="relative_attention_num_buckets",
        max_distance="relative_attention_max_distance",
    ),
    stacks=(_stack("encoder", 1), _stack("decoder", 2)),
    head=HeadNames(is_optional=True),
    prefix="",
    defaults={
        "vocab_size": 32128,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 6,
        "num_heads": 8,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu",
        "tie_word_embeddings": True,
        "eos_token_id": 1,
    },
    expected={"is_encoder_decoder": True, "is_decoder": False},
    norm="rms",
    activations={
        "relu": ("relu", False),
        "gelu": ("gelu", False),
        "gelu_new": ("gelu_tanh", False),
        "gated-relu": ("relu", True),
        "gated-gelu": ("gelu_tanh", True),
        "gated-gelu_new": ("gelu_tanh", True),
        "gated-silu": ("silu", True),
    },
    biases={},
    scale=_unscaled,
    is_causal=True,
    describe=describe,
)
