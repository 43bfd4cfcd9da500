"""GLM-4 of 2025: the model of 2024 with further norms of the results of sublayers."""

from ..architecture.config import NORMS, OUTPUT_NORMS
from .glm import FAMILY as GLM

FAMILY = GLM._replace(
    model_types=("glm4",),
    stacks=tuple(
        names._replace(
            blocks=names.blocks._replace(output_norm1="post_self_attn_layernorm", output_norm2="post_mlp_layernorm")
        )
        for names in GLM.stacks
    ),
    norms=NORMS | OUTPUT_NORMS,
)
