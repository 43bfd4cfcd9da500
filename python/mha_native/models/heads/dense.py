"""A linear map and an activation: the Dense module of sentence-transformers, and the steps of heads."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..files.checkpoint import Checkpoint
from ..files.entries import Entries
from ..files.modules_json import check_ends
from .activations import activation_of, checked_activation

_KEYS = (
    "in_features", "out_features", "bias", "activation_function", "module_input_name", "module_output_name",
    "use_residual",
)  # fmt: skip


class DenseConfig(NamedTuple):
    """The settings in config.json of a Dense module."""

    folder: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str  # name in torch
    has_residual: bool = False  # whether x, or a linear map of it, is added to the result

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of its tensors."""
        shapes: dict[str, tuple[int, ...]] = {"linear.weight": (self.out_features, self.in_features)}
        if self.has_residual and self.in_features != self.out_features:
            shapes["residual.weight"] = (self.out_features, self.in_features)
        return shapes | ({"linear.bias": (self.out_features,)} if self.bias else {})


class Dense:
    """Compute ``activation(W x + b)`` for each vector x, always in float32."""

    def __init__(self, weight: NDArray[np.float32], bias: NDArray[np.float32] | None, activation: str) -> None:
        self._weight = weight
        self._bias = np.float32(0) if bias is None else bias
        self._activation = activation

    def __call__(self, vectors: NDArray[Any], num_threads: int | None) -> NDArray[np.float32]:
        """Compute one product for each of `vectors` [n, in_features], so bits do not depend on the other rows."""
        activation = activation_of(self._activation)
        results = np.empty((len(vectors), len(self._weight)), np.float32)
        with np.errstate(all="ignore"):  # values that are not finite stay so in the embedding
            for vector, result in zip(vectors.astype(np.float32, copy=False), results, strict=True):
                result[:] = activation(self._weight @ vector + self._bias)
        return results


def load_dense(config: DenseConfig) -> Dense:
    """Read the weights of a Dense in its folder."""
    with Checkpoint(config.folder, config.tensor_shapes().items()) as tensors:
        if not config.bias and "linear.bias" in tensors:
            raise ValueError(f"{config.folder / 'config.json'}: bias must be true, as there is a linear.bias")
        bias = tensors["linear.bias"] if config.bias else None
        return Dense(tensors["linear.weight"], bias, config.activation)


def read_dense(folder: Path, in_features: int, vectors: str = "sentence_embedding") -> DenseConfig:
    """Read config.json in the folder of a Dense with `in_features` inputs. Only a Dense of the `vectors`
    "token_embeddings" may have a residual.

    Raises OSError or ValueError if the file cannot be read, does not fit, or asks for an unsupported feature.
    """
    path = folder / "config.json"
    entries = Entries.read(path)
    entries.refuse_others(_KEYS)
    check_ends(entries, vectors)
    entries.choice("in_features", in_features)
    has_residual = vectors == "token_embeddings" and entries.flag("use_residual")
    if not has_residual:
        entries.expect({"use_residual": False})
    activation = entries.values.get("activation_function", "torch.nn.modules.activation.Tanh")
    activation = checked_activation(path, "activation_function", activation)
    features = entries.size("out_features")
    return DenseConfig(folder, in_features, features, entries.flag("bias", True), activation, has_residual)
