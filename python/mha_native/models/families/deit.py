"""DeiT: ViT with a second special row, whose label a teacher has chosen."""

from ..front_ends.patches import PatchesNames
from .vit import FAMILY as VIT
from .vit import NAMES

FAMILY = VIT._replace(
    model_types=("deit",),
    prefix="deit.",
    stacks=(
        NAMES._replace(
            front_end=PatchesNames(special=("embeddings.cls_token", "embeddings.distillation_token")),
        ),
    ),
)
