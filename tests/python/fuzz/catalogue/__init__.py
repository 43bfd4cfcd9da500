"""Valid calls of all that is public, for `invalid_calls.py` to change one argument of.

An entry is named as messages name it; what stands behind a blank tells entries of one name apart. It makes new objects
and arguments for each call, since a call may change them.
"""

from . import (
    attention,
    caches,
    classifiers,
    gradients,
    images,
    language_models,
    layers,
    models,
    reference,
    seq2seq_models,
    serving,
    speech,
    speech_models,
    transformers,
)
from .entry import CATALOGUE, Arguments

__all__ = [
    "CATALOGUE", "Arguments", "attention", "caches", "classifiers", "gradients", "images", "language_models", "layers",
    "models", "reference", "seq2seq_models", "serving", "speech", "speech_models", "transformers",
]  # fmt: skip
