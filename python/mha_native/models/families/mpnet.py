"""MPNet: positions begin behind the number of padding, tokens have no types, and scores a bias for each distance."""

from collections.abc import Mapping

from ...functions.options import ScoreOptions
from ..architecture.relative_buckets import position_bias_of_buckets
from ..architecture.tensor_names import Tensors
from .family import BLOCK_NAMES, Family, Keys, Names

_BIAS_OF_BUCKETS = "encoder.relative_attention_bias.weight"


def _options(tensors: Tensors, sizes: Mapping[str, int]) -> ScoreOptions:
    return {"position_bias": position_bias_of_buckets(tensors[_BIAS_OF_BUCKETS])}


FAMILY = Family(
    model_types=("mpnet",),
    prefix="mpnet.",
    keys=Keys(token_types=None),
    names=Names(
        blocks=BLOCK_NAMES._replace(
            query="attention.attn.q",
            key="attention.attn.k",
            value="attention.attn.v",
            out="attention.attn.o",
            norm1="attention.LayerNorm",
        )
    ),
    padding=1,
    further_sizes={"relative_attention_num_buckets": 32},
    further_tensors={_BIAS_OF_BUCKETS: ("relative_attention_num_buckets", "num_heads")},
    options=_options,
    # The model has these numbers, whatever config.json says.
    fixed={"pad_token_id": 1, "relative_attention_num_buckets": 32},
)
