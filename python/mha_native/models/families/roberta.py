"""RoBERTa and models that differ from it in their tokenizers alone: positions begin after the number of padding."""

from .bert import FAMILY as BERT

FAMILY = BERT._replace(
    model_types=("roberta", "xlm-roberta", "camembert"),
    prefix="roberta.",
    keys=BERT.keys._replace(padding="pad_token_id"),
    defaults={**BERT.defaults, "pad_token_id": 1},
)
