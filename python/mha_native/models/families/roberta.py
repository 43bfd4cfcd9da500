"""RoBERTa, and models that differ from it in their tokenizers alone: positions begin behind the number of padding."""

from .family import Family

FAMILY = Family(model_types=("roberta", "xlm-roberta", "camembert"), prefix="roberta.", padding=1)
