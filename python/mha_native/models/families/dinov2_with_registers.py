"""DINOv2 with registers: rows without a position, in which the model keeps what belongs to no patch."""

from .dinov2 import FAMILY as DINOV2

(_NAMES,) = DINOV2.stacks

FAMILY = DINOV2._replace(
    model_types=("dinov2_with_registers",),
    prefix="dinov2_with_registers.",
    stacks=(_NAMES._replace(front_end=_NAMES.front_end._replace(registers="embeddings.register_tokens")),),
    keys=DINOV2.keys._replace(registers="num_register_tokens"),
    defaults={**DINOV2.defaults, "patch_size": 16, "num_register_tokens": 4},
    antialias=True,
)
