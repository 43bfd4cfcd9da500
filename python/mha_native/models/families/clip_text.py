"""CLIP: its encoder of texts, in which a token sees none after it."""

from ..architecture.family import TEXTS_OF_IMAGES, Keys
from ..architecture.tensor_names import StackNames
from ..front_ends.tokens import TokensNames
from .clip import BLOCKS
from .clip import FAMILY as CLIP

FAMILY = CLIP._replace(
    model_types=("clip", "clip_text_model"),
    roles=frozenset({TEXTS_OF_IMAGES}),
    prefix="text_model.",
    section={"clip": "text_config"},
    stacks=(
        StackNames(
            front_end=TokensNames(
                words=("embeddings.token_embedding.weight",), positions="embeddings.position_embedding.weight"
            ),
            blocks=BLOCKS,
            final_norm="final_layer_norm",
        ),
    ),
    keys=Keys(eps="layer_norm_eps"),
    defaults={
        "vocab_size": 49408,
        "hidden_size": 512,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
        "max_position_embeddings": 77,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
        "eos_token_id": 49407,
        "projection_dim": 512,
    },
    expected={"model_type": "clip_text_model"},
    is_causal=True,
)
