"""The encoder of T5, as sentence-t5 and GTR have it: RMSNorm, no biases, and a bias of scores by distance."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...functions.options import ScoreOptions
from ..architecture.relative_buckets import position_bias_of_buckets
from ..architecture.tensor_names import Tensors
from ..seq2seq.config import described
from ..seq2seq.families import FAMILIES as ENCODER_DECODERS
from .family import Family, Names
from .text_config import TextConfig

_T5 = ENCODER_DECODERS["t5"]
_BUCKETS = str(_T5.encoder.position_bias)

# A text may have any number of tokens, but something is wrong with one of so many.
_MOST_TOKENS = 1 << 20


def read_t5(path: Path, values: Mapping[str, Any], family: Family) -> TextConfig:
    """The entries of config.json, read from `path`. ValueError if it says what is not computed."""
    # Whether there is a decoder, too, is all one to the encoder.
    config = described(_T5._replace(expected={}), path, values)
    block = config.encoder[0]
    if not block.gated and _T5.encoder.ungated_up is not None:
        blocks = family.names.blocks._replace(up=_T5.encoder.ungated_up)
        family = family._replace(names=family.names._replace(blocks=blocks))
    return TextConfig(
        family=family,
        vocab_size=config.vocab_size,
        embed_dim=config.embed_dim,
        max_positions=_MOST_TOKENS,
        num_layers=len(config.encoder),
        blocks=(block,),
        norm=None,
        final_norm=config.norm,
        further_sizes={"num_buckets": config.num_buckets or 0, "max_distance": config.max_distance or 0},
    )


def _options(tensors: Tensors, sizes: Mapping[str, int]) -> ScoreOptions:
    return {"position_bias": position_bias_of_buckets(tensors[_BUCKETS], sizes["max_distance"])}


FAMILY = Family(
    model_types=_T5.model_types,
    prefix=_T5.prefix,
    names=Names(
        words="shared.weight",
        positions=None,
        token_types=None,
        norm=None,
        blocks=_T5.encoder.blocks,
        final_norm=_T5.encoder.final_norm,
    ),
    further_tensors={_BUCKETS: ("num_buckets", "num_heads")},
    options=_options,
)
