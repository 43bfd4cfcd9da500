"""What the tensors of a layer are called in a checkpoint, and how they lie there."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .build import BlockConfig, in_dtype


class Tensors(Protocol):
    """Tensors of a checkpoint by their names."""

    def __getitem__(self, name: str, /) -> NDArray[np.float32]: ...


class BlockNames(NamedTuple):
    """The names of the parts of layer {}, each of which has a weight, and a bias if the layer says so.

    Parts with the same name are one matrix there, one below the other in the order of the fields.

    Attributes
    ----------
    layer : str
        What all names begin with.
    transposed : bool
        Matrices are [features that are read, features of the result].
    up_first : bool
        Where gate and up are one matrix, up lies above the gate.
    """

    layer: str
    query: str
    key: str
    value: str
    out: str
    up: str
    down: str
    norm1: str
    norm2: str
    gate: str = ""
    output_norm1: str = ""
    output_norm2: str = ""
    query_norm: str = ""
    key_norm: str = ""
    transposed: bool = False
    up_first: bool = False

    def shapes(self, config: BlockConfig, i: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of all tensors of layer `i`."""
        for name, parts in self._matrices(config, i).items():
            rows, features = sum(rows for rows, _ in parts.values()), next(iter(parts.values()))[1]
            yield f"{name}.weight", (features, rows) if self.transposed else (rows, features)
            if config.biases & parts.keys():
                yield f"{name}.bias", (rows,)
        for part, features, norm in config.all_norms():
            yield f"{self._name(part, i)}.weight", (features,)
            if norm.bias:
                yield f"{self._name(part, i)}.bias", (features,)

    def read(self, config: BlockConfig, i: int, tensors: Tensors, dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
        """The weights of layer `i`, as `make_layer` takes them."""
        weights = {}
        for name, parts in self._matrices(config, i).items():
            ends = np.cumsum([rows for rows, _ in parts.values()])[:-1]
            matrix = tensors[f"{name}.weight"]
            for part, rows in zip(parts, np.split(matrix.T if self.transposed else matrix, ends), strict=True):
                weights[f"{part}.weight"] = in_dtype(rows, dtype)
            if config.biases & parts.keys():
                for part, bias in zip(parts, np.split(tensors[f"{name}.bias"], ends), strict=True):
                    weights[f"{part}.bias"] = in_dtype(bias, dtype)
        for part, _, norm in config.all_norms():
            for which in ["weight"] + ["bias"] * norm.bias:
                weights[f"{part}.{which}"] = in_dtype(tensors[f"{self._name(part, i)}.{which}"], dtype)
        return weights

    def _name(self, part: str, i: int) -> str:
        name: str = getattr(self, part)
        return f"{self.layer.format(i)}{name}"

    def _matrices(self, config: BlockConfig, i: int) -> Mapping[str, dict[str, tuple[int, int]]]:
        """The parts that each matrix of the checkpoint has, with their shapes."""
        matrices: dict[str, dict[str, tuple[int, int]]] = {}
        products = config.products()
        if self.up_first:
            products = {"up": products["up"], **products}
        for part, shape in products.items():
            matrices.setdefault(self._name(part, i), {})[part] = shape
        return matrices
