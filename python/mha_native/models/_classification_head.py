"""The heads of classifiers: from the vector of a token to a number for each label."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._block_names import Tensors
from ._dense import Dense
from .families.family import Family

TEXTS, TOKENS = "ForSequenceClassification", "ForTokenClassification"  # what a model is for, as transformers has it


class _Step(NamedTuple):
    name: str  # of its tensors, "weight" and "bias"
    activation: str  # by its name in torch.nn


_DENSE_AND_OUT_PROJ = (_Step("classifier.dense", "Tanh"), _Step("classifier.out_proj", "Identity"))
_CLASSIFIER = _Step("classifier", "Identity")

# By the prefix of a family: what the first token of a text goes through. Every step but the last keeps the features.
_HEADS_OF_TEXTS = {
    "bert.": (_Step("pooler.dense", "Tanh"), _CLASSIFIER),
    "distilbert.": (_Step("pre_classifier", "ReLU"), _CLASSIFIER),
    "mpnet.": _DENSE_AND_OUT_PROJ,
    "roberta.": _DENSE_AND_OUT_PROJ,
}


class ClassificationHeadConfig(NamedTuple):
    """The parts of a head."""

    steps: tuple[_Step, ...]
    embed_dim: int  # E
    num_labels: int  # L

    def tensor_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of its tensors."""
        for step in self.steps:
            out_features = self.num_labels if step is self.steps[-1] else self.embed_dim
            yield f"{step.name}.weight", (out_features, self.embed_dim)
            yield f"{step.name}.bias", (out_features,)


def head_of(family: Family, task: str, embed_dim: int, num_labels: int) -> ClassificationHeadConfig:
    """The head that a model of this family has for `TEXTS` or `TOKENS`."""
    steps = _HEADS_OF_TEXTS[family.prefix] if task == TEXTS else (_CLASSIFIER,)
    return ClassificationHeadConfig(steps, embed_dim, num_labels)


class ClassificationHead:
    """A head with its weights, in float32 whatever the model is computed in."""

    def __init__(self, config: ClassificationHeadConfig, tensors: Tensors) -> None:
        self._steps = [
            Dense(tensors[f"{step.name}.weight"], tensors[f"{step.name}.bias"], f"torch.nn.{step.activation}")
            for step in config.steps
        ]

    def __call__(self, vectors: NDArray[Any]) -> NDArray[np.float32]:
        """The logits [n, L] of `vectors` [n, E], each from its own vector alone."""
        for step in self._steps:
            vectors = step(vectors, None)
        return vectors
