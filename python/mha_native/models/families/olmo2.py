"""OLMo 2: Llama with norms of results in place of norms of inputs, and of all heads of queries and keys together."""

from ..architecture.config import ATTENTION, OUTPUT_NORMS
from ..architecture.family import GENERATION
from .llama import FAMILY as LLAMA
from .llama import NAMES

OUTPUT_NORM_NAMES = NAMES._replace(
    blocks=NAMES.blocks._replace(output_norm1="post_attention_layernorm", output_norm2="post_feedforward_layernorm")
)

FAMILY = LLAMA._replace(
    model_types=("olmo2",),
    roles=frozenset({GENERATION}),
    stacks=(OUTPUT_NORM_NAMES,),
    defaults={**LLAMA.defaults, "rms_norm_eps": 1e-5},
    norms=OUTPUT_NORMS,
    joint_qk_norm=True,
    biases={"attention_bias": ATTENTION},
)
