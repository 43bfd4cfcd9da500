"""The heads of classifiers, which map the vector of a token to a logit for each label."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..architecture.family import Family
from ..architecture.norms import NormConfig, make_norm
from ..files.entries import Entries
from ..files.source import Shapes, Tensors
from .dense import Dense

# The task of a model, in the names of its class in transformers.
TEXTS, TOKENS = "ForSequenceClassification", "ForTokenClassification"


class _Step(NamedTuple):
    name: str  # prefix of its tensors, "weight" and "bias"
    activation: str  # name in torch.nn
    bias: bool = True
    norm: str | None = None  # prefix of the tensors of a norm after the activation
    norm_config: NormConfig | None = None

    def tensor_shapes(self, out_features: int, in_features: int) -> Shapes:
        yield f"{self.name}.weight", (out_features, in_features)
        if self.bias:
            yield f"{self.name}.bias", (out_features,)
        if self.norm_config is not None and self.norm is not None:
            yield from self.norm_config.shapes(self.norm, out_features)


_DENSE_AND_OUT_PROJ = (_Step("classifier.dense", "Tanh"), _Step("classifier.out_proj", "Identity"))
_CLASSIFIER = _Step("classifier", "Identity")
_POOLER = (_Step("pooler.dense", "Tanh"), _CLASSIFIER)

# The steps after the first token of a text, by the prefix of the family. All but the last keep the number of features.
_HEADS_OF_TEXTS = {
    "bert.": _POOLER,
    "distilbert.": (_Step("pre_classifier", "ReLU"), _CLASSIFIER),
    "mpnet.": _DENSE_AND_OUT_PROJ,
    "roberta.": _DENSE_AND_OUT_PROJ,
    "nomic_bert.": _POOLER,
    "gte.": _POOLER,
    "albert.": (_Step("pooler", "Tanh"), _CLASSIFIER),
    "electra.": (_Step("classifier.dense", "GELU"), _Step("classifier.out_proj", "Identity")),
}

# Activations that config.json chooses for the heads of ModernBERT and DeBERTa, and their names in torch.nn.
_ACTIVATIONS = {"gelu": "GELU", "silu": "SiLU", "swish": "SiLU", "relu": "ReLU", "tanh": "Tanh"}


class ClassificationHeadConfig(NamedTuple):
    """The parts of a head."""

    steps: tuple[_Step, ...]
    embed_dim: int  # E
    num_labels: int  # L
    pooling: str = "cls"  # or "mean": the vector of a text that enters the head

    def tensor_shapes(self) -> Shapes:
        """Yield names and shapes of its tensors."""
        for step in self.steps:
            out_features = self.num_labels if step is self.steps[-1] else self.embed_dim
            yield from step.tensor_shapes(out_features, self.embed_dim)


def head_of(path: Path, family: Family, task: str, embed_dim: int, num_labels: int) -> ClassificationHeadConfig:
    """Return the head of a model of this family for `TEXTS` or `TOKENS`; `path` is its config.json.

    Raises ValueError if the family has no supported head, or if config.json asks for an unsupported feature.
    """
    if family.model_types == ("modernbert",):
        entries = Entries.read(path)
        pooling = entries.choice("classifier_pooling", "cls", "mean", default="cls")
        return ClassificationHeadConfig((_step_of_modernbert(entries), _CLASSIFIER), embed_dim, num_labels, pooling)
    if family.model_types == ("deberta-v2",):
        pooler = _Step("pooler.dense", _activation(Entries.read(path), "pooler_hidden_act"))
        return ClassificationHeadConfig((pooler, _CLASSIFIER)[task != TEXTS :], embed_dim, num_labels)
    if family.prefix not in _HEADS_OF_TEXTS:
        raise ValueError(f"{path}: model_type must be of a family with classifiers; got {family.model_types[0]!r}")
    steps = _HEADS_OF_TEXTS[family.prefix] if task == TEXTS else (_CLASSIFIER,)
    return ClassificationHeadConfig(steps, embed_dim, num_labels)


def _activation(entries: Entries, name: str) -> str:
    return _ACTIVATIONS[entries.choice(name, *_ACTIVATIONS, default="gelu")]


def _step_of_modernbert(entries: Entries) -> _Step:
    activation = _activation(entries, "classifier_activation")
    norm = NormConfig("layer", entries.positive("norm_eps", 1e-5), bias=entries.flag("norm_bias"))
    return _Step("head.dense", activation, entries.flag("classifier_bias"), "head.norm", norm)


class ClassificationHead:
    """A head with its weights, always in float32."""

    def __init__(self, config: ClassificationHeadConfig, tensors: Tensors) -> None:
        self.pooling = config.pooling
        self._steps = [_Layer(step, tensors) for step in config.steps]

    def __call__(self, vectors: NDArray[Any]) -> NDArray[np.float32]:
        """Return the logits [n, L] of `vectors` [n, E]. Rows do not depend on each other."""
        for step in self._steps:
            vectors = step(vectors)
        return vectors


class _Layer:
    def __init__(self, step: _Step, tensors: Tensors) -> None:
        bias = tensors[f"{step.name}.bias"] if step.bias else None
        self._dense = Dense(tensors[f"{step.name}.weight"], bias, f"torch.nn.{step.activation}")
        self._norm: Any = None
        if step.norm_config is not None and step.norm is not None:
            dtype = np.dtype(np.float32)
            self._norm = make_norm(step.norm_config, step.norm_config.read(step.norm, tensors, dtype), dtype)

    def __call__(self, vectors: NDArray[Any]) -> NDArray[np.float32]:
        vectors = self._dense(vectors, None)
        return vectors if self._norm is None else self._norm(vectors)
