"""CLIP: its encoder of images. clip_text.py has its encoder of texts."""

from ..architecture.config import ATTENTION, FEED_FORWARD
from ..architecture.family import IMAGES, UNGATED_WITH_QUICK, Family, Keys
from ..architecture.tensor_names import BlockNames, StackNames
from ..front_ends.patches import PatchesNames

BLOCKS = BlockNames(
    layer="encoder.layers.{}.",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    out="self_attn.out_proj",
    up="mlp.fc1",
    down="mlp.fc2",
    norm1="layer_norm1",
    norm2="layer_norm2",
)

FAMILY = Family(
    model_types=("clip", "clip_vision_model"),
    roles=frozenset({IMAGES}),
    prefix="vision_model.",
    section={"clip": "vision_config"},
    stacks=(
        StackNames(
            front_end=PatchesNames(
                projection="embeddings.patch_embedding",
                positions="embeddings.position_embedding.weight",
                special=("embeddings.class_embedding",),
                norm="pre_layrnorm",
                is_flat=True,
            ),
            blocks=BLOCKS,
        ),
    ),
    keys=Keys(
        max_positions="",
        eps="layer_norm_eps",
        image_size="image_size",
        patch_size="patch_size",
        channels="num_channels",
    ),
    defaults={
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
        "image_size": 224,
        "patch_size": 32,
        "num_channels": 3,
        "projection_dim": 512,
    },
    expected={"model_type": "clip_vision_model"},
    activations=UNGATED_WITH_QUICK,
    biases={"": ATTENTION | FEED_FORWARD},
    has_patch_bias=False,
)
