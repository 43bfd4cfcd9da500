"""umT5: mT5 with a bias by distance in every layer."""

from .mt5 import FAMILY as MT5
from .t5 import FAMILY as T5

FAMILY = T5._replace(
    model_types=("umt5",),
    stacks=tuple(
        stack._replace(position_bias=stack.position_bias.replace("block.0", "block.{}")) for stack in T5.stacks
    ),
    defaults=MT5.defaults,
)
