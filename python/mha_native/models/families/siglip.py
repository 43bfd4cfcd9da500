"""SigLIP, and SigLIP 2 for images of one size: its encoder of images. siglip_text.py has its encoder of texts."""

from ..front_ends.patches import PatchesNames
from .clip import FAMILY as CLIP

(_NAMES,) = CLIP.stacks

FAMILY = CLIP._replace(
    model_types=("siglip", "siglip_vision_model"),
    section={"siglip": "vision_config"},
    stacks=(
        _NAMES._replace(
            front_end=PatchesNames(
                projection="embeddings.patch_embedding",
                positions="embeddings.position_embedding.weight",
                special=(),
                is_flat=True,
            ),
            final_norm="post_layernorm",
        ),
    ),
    defaults={
        **CLIP.defaults,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
        "patch_size": 16,
        "vision_use_head": True,
    },
    expected={"model_type": "siglip_vision_model"},
    has_patch_bias=True,
)
