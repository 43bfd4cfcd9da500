"""T5, the first one and version 1.1, of which Flan-T5 is one: RMSNorm, no biases, and a bias of scores by distance."""

from ...architecture.tensor_names import BlockNames
from ..family import Family, Keys, MemoryNames, StackKeys, StackNames


def _stack(stack: str, feed_forward: int) -> StackNames:
    """The names of a stack whose feed-forward is the part of that number in a layer."""
    return StackNames(
        blocks=BlockNames(
            layer=f"{stack}.block.{{}}.layer.",
            query="0.SelfAttention.q",
            key="0.SelfAttention.k",
            value="0.SelfAttention.v",
            out="0.SelfAttention.o",
            norm1="0.layer_norm",
            gate=f"{feed_forward}.DenseReluDense.wi_0",
            up=f"{feed_forward}.DenseReluDense.wi_1",
            down=f"{feed_forward}.DenseReluDense.wo",
            norm2=f"{feed_forward}.layer_norm",
        ),
        positions=None,
        embedding_norm=None,
        final_norm=f"{stack}.final_layer_norm",
        position_bias=f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        ungated_up=f"{feed_forward}.DenseReluDense.wi",
    )


FAMILY = Family(
    model_types=("t5",),
    keys=Keys(
        encoder=StackKeys("num_layers", "num_heads", "d_ff"),
        decoder=StackKeys("num_decoder_layers", "num_heads", "d_ff"),
        head_dim="d_kv",
        max_positions=None,
        activation="feed_forward_proj",
        gated="is_gated_act",
        inner_activation="dense_act_fn",
        eps="layer_norm_epsilon",
        scales_embeddings=None,
        scales_output="scale_decoder_outputs",
        num_buckets="relative_attention_num_buckets",
        max_distance="relative_attention_max_distance",
    ),
    encoder=_stack("encoder", 1),
    decoder=_stack("decoder", 2),
    memory=MemoryNames(
        query="1.EncDecAttention.q",
        key="1.EncDecAttention.k",
        value="1.EncDecAttention.v",
        out="1.EncDecAttention.o",
        norm="1.layer_norm",
    ),
    prefix="",
    logit_bias=None,
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
    activations={
        "relu": ("relu", False),
        "gelu": ("gelu", False),
        "gelu_new": ("gelu_tanh", False),
        "gated-relu": ("relu", True),
        "gated-gelu": ("gelu_tanh", True),
        "gated-gelu_new": ("gelu_tanh", True),
        "gated-silu": ("silu", True),
    },
    norm="rms",
    norm_first=True,
    biases=frozenset(),
    scales_scores=False,
)
