"""ModernBERT: norms before sublayers, gated feed-forwards, rotary positions, and windows in most layers."""

from ..architecture.config import ATTENTION, FEED_FORWARD, ModelConfig
from ..architecture.family import EMBEDDING, FULL, GATED, SLIDING, Family, Keys, described
from ..architecture.tensor_names import BlockNames, StackNames
from ..files.entries import Entries
from ..front_ends.tokens import TokensNames


def _window(entries: Entries) -> tuple[int, int]:
    radius = entries.size("local_attention") // 2
    return radius, radius


def _is_sliding(entries: Entries, i: int) -> bool:
    return i % entries.size("global_attn_every_n_layers") != 0


def _describe(family: Family, given: Entries, role: str, max_positions: int | None = None) -> ModelConfig:
    config = described(family, given, role, max_positions)
    (stack,) = config.stacks
    first = stack.blocks[0]._replace(norms=frozenset({"norm2"}))  # the norm of embeddings comes right before
    return config._replace(stacks=(stack._replace(blocks=(first, *stack.blocks[1:])),))


FAMILY = Family(
    model_types=("modernbert",),
    roles=frozenset({EMBEDDING}),
    keys=Keys(activation="hidden_activation", eps="norm_eps", norm_bias="norm_bias", layer_types="layer_types"),
    stacks=(
        StackNames(
            front_end=TokensNames(words=("embeddings.tok_embeddings.weight",), norm="embeddings.norm"),
            blocks=BlockNames(
                layer="layers.{}.",
                query="attn.Wqkv",
                key="attn.Wqkv",
                value="attn.Wqkv",
                out="attn.Wo",
                gate="mlp.Wi",
                up="mlp.Wi",
                down="mlp.Wo",
                norm1="attn_norm",
                norm2="mlp_norm",
            ),
            final_norm="final_norm",
        ),
    ),
    defaults={
        "hidden_activation": "gelu",
        "norm_eps": 1e-5,
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
    },
    refused={"rope_scaling": "positions must be described by rope_parameters"},
    expected={"is_decoder": False, "add_cross_attention": False, "partial_rotary_factor": 1.0},
    activations=GATED,
    biases={"attention_bias": ATTENTION, "mlp_bias": FEED_FORWARD},
    bases={FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)},
    window=_window,
    is_sliding=_is_sliding,
    describe=_describe,
)
