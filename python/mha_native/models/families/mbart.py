"""mBART: BART with norms before sublayers and after the last layer, and a language as the first token."""

from .bart import FAMILY as BART
from .bart import names

FAMILY = BART._replace(
    model_types=("mbart",),
    stacks=names(final_norm=True),
    defaults={name: value for name, value in BART.defaults.items() if name != "decoder_start_token_id"},
    norm_first=True,
)
