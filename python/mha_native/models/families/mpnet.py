"""MPNet: positions begin after the number of padding, tokens have no types, and scores have a bias by distance."""

from .bert import FAMILY as BERT
from .bert import NAMES

FAMILY = BERT._replace(
    model_types=("mpnet",),
    prefix="mpnet.",
    keys=BERT.keys._replace(token_types="", padding="pad_token_id", num_buckets="relative_attention_num_buckets"),
    stacks=(
        NAMES._replace(
            blocks=NAMES.blocks._replace(
                query="attention.attn.q",
                key="attention.attn.k",
                value="attention.attn.v",
                out="attention.attn.o",
                norm1="attention.LayerNorm",
            ),
            position_bias="encoder.relative_attention_bias.weight",
        ),
    ),
    defaults={**BERT.defaults, "pad_token_id": 1, "relative_attention_num_buckets": 32},
    # The model of transformers ignores these entries and has these numbers.
    expected={**BERT.expected, "pad_token_id": 1, "relative_attention_num_buckets": 32},
)
