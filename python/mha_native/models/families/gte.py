"""GTE: BERT with gated feed-forwards and rotary positions."""

from ..architecture.config import ATTENTION
from ..architecture.family import GATED
from ..architecture.tensor_names import BlockNames
from .bert import FAMILY as BERT
from .bert import NAMES

FAMILY = BERT._replace(
    model_types=("gte",),
    prefix="gte.",
    stacks=(
        NAMES._replace(
            front_end=NAMES.front_end._replace(positions=""),
            blocks=BlockNames(
                layer="encoder.layer.{}.",
                query="attention.qkv_proj",
                key="attention.qkv_proj",
                value="attention.qkv_proj",
                out="attention.o_proj",
                gate="mlp.up_gate_proj",
                up="mlp.up_gate_proj",
                down="mlp.down_proj",
                norm1="attn_ln",
                norm2="mlp_ln",
                up_first=True,
            ),
        ),
    ),
    defaults={**BERT.defaults, "type_vocab_size": 1},
    expected={"is_decoder": False, "add_cross_attention": False, "partial_rotary_factor": 1.0},
    activations=GATED,
    biases={"": ATTENTION | {"down"}},
    bases={"": ("rope_theta", 160_000.0)},
    fewest_types=0,
)
