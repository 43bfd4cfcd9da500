"""BERT: every other family is said by how it differs from this one."""

from .family import Family

FAMILY = Family(model_types=("bert",), prefix="bert.")
