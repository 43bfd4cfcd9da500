"""mBART: norms before each part and behind the last layer, and a language as the first token."""

from ..family import Family, bart_names
from .bart import DEFAULTS

FAMILY = Family(
    model_types=("mbart",),
    encoder=bart_names("encoder", final_norm=True),
    decoder=bart_names("decoder", final_norm=True),
    defaults=DEFAULTS,
    norm_first=True,
)
