"""The heads of encoders of images, from the rows of an image to one vector, or to a logit for each label."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...functions.arrays import widened
from ...layers.feed_forward import FeedForward
from ...layers.multi_head_attention import MultiHeadAttention
from ..architecture.config import BlockConfig
from ..architecture.norms import NormConfig, in_dtype, make_norm
from ..architecture.open import OpenModel
from ..files.entries import Entries
from ..files.source import Shapes, Tensors
from .dense import Dense

# The class in transformers of a model with labels, and of DeiT with the labels of a teacher.
IMAGES = "ForImageClassification"
_WITH_TEACHER = f"{IMAGES}WithTeacher"

_FLOAT32 = np.dtype(np.float32)

# Activations of the pooler, and their names in torch.nn.
_POOLER_ACTIVATIONS = {"tanh": "Tanh", "gelu": "GELU", "relu": "ReLU", "silu": "SiLU", "sigmoid": "Sigmoid"}


class _Names(NamedTuple):
    """The steps from the rows of an image to its vector: tensors by their names, "" for steps that a family lacks."""

    norm: str = ""  # of the first row
    pooler: str = ""  # a linear map with an activation; without its tensors, the vector is the first row
    probe: str = ""  # attention of one query to all rows, and a feed-forward
    projection: str = ""  # a linear map without a bias, to the features that texts have, too


# By model type.
_OF_CLIP = _Names(norm="post_layernorm", projection="visual_projection")
_OF_SIGLIP = _Names(probe="head")
_VECTORS = {
    "vit": _Names(pooler="pooler.dense"),
    "deit": _Names(pooler="pooler.dense"),
    "dinov2": _Names(),
    "dinov2_with_registers": _Names(),
    "clip": _OF_CLIP,
    "clip_vision_model": _OF_CLIP,
    "siglip": _OF_SIGLIP,
    "siglip_vision_model": _OF_SIGLIP,
}

# Classes whose vectors are projected. Others of the family are for vectors before that.
_PROJECTED = ("CLIPModel", "CLIPVisionModelWithProjection")


class ProbeConfig(NamedTuple):
    """Attention of one query, the probe, to all rows of an image; then ``x + feed_forward(norm(x))``."""

    name: str  # the prefix of its tensors
    block: BlockConfig  # a layer of the model, whose sizes, activation and norm it has

    def shapes(self) -> Shapes:
        """Yield names and shapes of its tensors."""
        width, inner = self.block.embed_dim, self.block.feedforward_dim
        yield f"{self.name}.probe", (1, 1, width)
        yield f"{self.name}.attention.in_proj_weight", (3 * width, width)
        yield f"{self.name}.attention.in_proj_bias", (3 * width,)
        for part, rows, columns in (("attention.out_proj", width, width), ("mlp.fc1", inner, width),
                                    ("mlp.fc2", width, inner)):  # fmt: skip
            yield f"{self.name}.{part}.weight", (rows, columns)
            yield f"{self.name}.{part}.bias", (rows,)
        yield from self.block.norm.shapes(f"{self.name}.layernorm", width)


class ImageHeadConfig(NamedTuple):
    """The steps from the rows of an image to its vector."""

    embed_dim: int  # E
    norm: tuple[str, NormConfig] | None = None
    pooler: tuple[str, str, int] | None = None  # the name, the activation in torch.nn, and the features
    probe: ProbeConfig | None = None
    projection: tuple[str, int] | None = None  # the name and the features

    @property
    def features(self) -> int:
        """The number of features of a vector."""
        return self.projection[1] if self.projection else self.pooler[2] if self.pooler else self.embed_dim

    def tensor_shapes(self) -> Shapes:
        """Yield names and shapes of its tensors."""
        width = self.embed_dim
        if self.norm is not None:
            yield from self.norm[1].shapes(self.norm[0], width)
        if self.pooler is not None:
            name, _, features = self.pooler
            yield f"{name}.weight", (features, width)
            yield f"{name}.bias", (features,)
        if self.probe is not None:
            yield from self.probe.shapes()
        if self.projection is not None:
            yield f"{self.projection[0]}.weight", (self.projection[1], width)


def image_head_of(opened: OpenModel, entries: Entries) -> ImageHeadConfig:
    """Return the head of an encoder of images. `entries` are those of its section of config.json.

    Raises ValueError if they ask for an unsupported feature.
    """
    config = opened.source.config
    names, block = _VECTORS[str(config["model_type"])], opened.config.stacks[0].blocks[0]
    width = block.embed_dim
    with opened.source.tensors((), opened.family.prefix) as tensors:
        has_pooler = any(f"{names.pooler}.{part}" in tensors for part in ("weight", "bias"))
        has_projection = f"{names.projection}.weight" in tensors
    pooler = projection = None
    if names.pooler and has_pooler:
        activation = _POOLER_ACTIVATIONS[entries.choice("pooler_act", *_POOLER_ACTIVATIONS, default="tanh")]
        pooler = names.pooler, activation, entries.size_or_none("pooler_output_size") or width
    if names.projection and (has_projection or _class_of(config) in _PROJECTED):
        whole = Entries(opened.source.path, config) if config["model_type"] == "clip" else entries
        projection = names.projection, whole.size("projection_dim", 512)
    if names.probe:
        entries.choice("vision_use_head", True, default=True)
    return ImageHeadConfig(
        width,
        (names.norm, block.norm) if names.norm else None,
        pooler,
        ProbeConfig(names.probe, block) if names.probe else None,
        projection,
    )


def _class_of(config: Mapping[str, Any]) -> str:
    """Return the class in transformers that config.json names, or ""."""
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


class ImageHead:
    """The steps from the rows of an image to its vector, with their weights."""

    def __init__(self, config: ImageHeadConfig, tensors: Tensors, dtype: np.dtype[Any]) -> None:
        self.config = config
        self._norm = None
        if config.norm is not None:
            name, norm = config.norm
            self._norm = make_norm(norm, norm.read(name, tensors, _FLOAT32), _FLOAT32)
        self._pooler = self._projection = None
        if config.pooler is not None:
            name, activation, _ = config.pooler
            self._pooler = Dense(tensors[f"{name}.weight"], tensors[f"{name}.bias"], f"torch.nn.{activation}")
        if config.projection is not None:
            self._projection = Dense(tensors[f"{config.projection[0]}.weight"], None, "torch.nn.Identity")
        self._probe = None if config.probe is None else Probe.read(config.probe, tensors).astype(dtype)

    def __call__(self, rows: NDArray[Any], num_threads: int | None) -> NDArray[np.float32]:
        """Return the vectors [N, features] of images with the rows [N, T, E]."""
        if self._probe is not None:
            vectors = self._probe(rows, num_threads)
        else:
            vectors = widened(np.ascontiguousarray(rows[:, 0])).astype(np.float32, copy=False)
        if self._norm is not None:
            vectors = self._norm(vectors, num_threads=num_threads)
        for step in (self._pooler, self._projection):
            if step is not None:
                vectors = step(vectors, num_threads)
        return vectors

    def astype(self, dtype: np.dtype[Any]) -> "ImageHead":
        """Return the same head for rows in another dtype. What has no rows but the first is always in float32."""
        other = object.__new__(ImageHead)
        other.__dict__ |= self.__dict__
        other._probe = None if self._probe is None else self._probe.astype(dtype)
        return other


class Probe(NamedTuple):
    """The layers of a `ProbeConfig`, in the dtype of the model."""

    query: NDArray[Any]  # [1, 1, E]
    attention: MultiHeadAttention
    norm: Any
    feed_forward: FeedForward

    @classmethod
    def read(cls, config: ProbeConfig, tensors: Tensors) -> "Probe":
        """Return the layers with their weights, in float32."""
        names = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
        state = {name: tensors[f"{config.name}.attention.{name}"] for name in names}
        inner = {
            f"{theirs}.{which}": tensors[f"{config.name}.mlp.{ours}.{which}"]
            for ours, theirs in (("fc1", "linear1"), ("fc2", "linear2"))
            for which in ("weight", "bias")
        }
        norm = config.block.norm
        return cls(
            tensors[f"{config.name}.probe"],
            MultiHeadAttention.from_weights(state, config.block.num_heads),
            make_norm(norm, norm.read(f"{config.name}.layernorm", tensors, _FLOAT32), _FLOAT32),
            FeedForward.from_weights(inner, activation=config.block.activation),
        )

    def astype(self, dtype: np.dtype[Any]) -> "Probe":
        """Return the same layers in another dtype."""
        query = in_dtype(self.query, dtype)
        return Probe(query, self.attention.astype(dtype), self.norm.astype(dtype), self.feed_forward.astype(dtype))

    def __call__(self, rows: NDArray[Any], num_threads: int | None) -> NDArray[np.float32]:
        """Return the vectors [N, E] of images with the rows [N, T, E]."""
        queries = np.repeat(self.query, len(rows), axis=0)
        seen: Any = self.attention(queries, rows, rows, num_threads=num_threads)[:, 0]
        added: Any = self.feed_forward(self.norm(seen, num_threads=num_threads), num_threads=num_threads)
        vectors: NDArray[np.float32] = (widened(seen) + widened(added)).astype(np.float32, copy=False)
        return vectors


# From the rows [N, T, E] of images in float32, and the number of rows before the patches, to what a linear map reads.
_Chosen = Callable[[NDArray[np.float32], int], NDArray[np.float32]]


def _first(rows: NDArray[np.float32], before: int) -> NDArray[np.float32]:
    return rows[:, 0]


def _second(rows: NDArray[np.float32], before: int) -> NDArray[np.float32]:
    return rows[:, 1]


def _mean(rows: NDArray[np.float32], before: int) -> NDArray[np.float32]:
    return np.stack([of_image[before:].mean(axis=0) for of_image in rows])


def _first_and_mean(rows: NDArray[np.float32], before: int) -> NDArray[np.float32]:
    return np.concatenate([rows[:, 0], _mean(rows, before)], axis=1)


# The linear maps of a classifier, whose logits are averaged, by model type and, for a second head, by class.
_LABELS: dict[str, dict[str, _Chosen]] = {
    "vit": {"classifier": _first},
    "deit": {"classifier": _first},
    _WITH_TEACHER: {"cls_classifier": _first, "distillation_classifier": _second},
    "dinov2": {"classifier": _first_and_mean},
    "dinov2_with_registers": {"classifier": _first_and_mean},
    "clip": {"classifier": _mean},
    "siglip": {"classifier": _mean},
}


class LabelHeadConfig(NamedTuple):
    """The linear maps from the rows of an image to a logit for each label."""

    maps: Mapping[str, _Chosen]
    embed_dim: int  # E
    num_labels: int  # L
    before: int  # the rows before the patches

    def tensor_shapes(self) -> Shapes:
        """Yield names and shapes of its tensors."""
        for name, chosen in self.maps.items():
            features = self.embed_dim * (2 if chosen is _first_and_mean else 1)
            yield f"{name}.weight", (self.num_labels, features)
            yield f"{name}.bias", (self.num_labels,)


def task_of(config: Mapping[str, Any]) -> str:
    """Return the end of the name of the class in transformers of a classifier of images with this config.json."""
    return _WITH_TEACHER if _class_of(config).endswith(_WITH_TEACHER) else IMAGES


def label_head_of(opened: OpenModel, num_labels: int) -> LabelHeadConfig:
    """Return the head of a classifier of images. ValueError if the family has none."""
    config = opened.source.config
    kind, task = str(config["model_type"]), task_of(config)
    if kind not in _LABELS:
        raise ValueError(f"{opened.source.path}: model_type must be of a family with classifiers; got {kind!r}")
    front_end = opened.config.stacks[0].front_end
    maps = _LABELS[task if task in _LABELS else kind]
    return LabelHeadConfig(maps, front_end.embed_dim, num_labels, front_end.first_patch)


class LabelHead:
    """A head with its weights, always in float32."""

    def __init__(self, config: LabelHeadConfig, tensors: Tensors) -> None:
        self._before = config.before
        self._maps = [
            (chosen, Dense(tensors[f"{name}.weight"], tensors[f"{name}.bias"], "torch.nn.Identity"))
            for name, chosen in config.maps.items()
        ]

    def __call__(self, rows: NDArray[Any], num_threads: int | None) -> NDArray[np.float32]:
        """Return the logits [N, L] of images with the rows [N, T, E]."""
        numbers = widened(rows).astype(np.float32, copy=False)
        logits = [of_map(chosen(numbers, self._before), num_threads) for chosen, of_map in self._maps]
        total: NDArray[np.float32] = sum(logits[1:], logits[0])
        return total / np.float32(len(logits)) if len(logits) > 1 else total
