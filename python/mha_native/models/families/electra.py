"""ELECTRA, the discriminator: BERT with tables of fewer features, which a linear map widens."""

from .bert import FAMILY as BERT
from .bert import NAMES

FAMILY = BERT._replace(
    model_types=("electra",),
    prefix="electra.",
    keys=BERT.keys._replace(table_dim="embedding_size"),
    stacks=(NAMES._replace(front_end=NAMES.front_end._replace(projection="embeddings_project")),),
    defaults={**BERT.defaults, "embedding_size": 128},
)
