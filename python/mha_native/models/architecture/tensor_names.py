"""The names of the tensors of a model in a checkpoint, and their layout there."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ...functions.block_matrix import split_rows
from ..files.source import Matrix, Shapes, Tensors
from ..front_ends.tokens import TokensNames
from .config import BlockConfig
from .norms import in_dtype


class BlockNames(NamedTuple):
    """The names of the parts of layer {}. Each part has a weight, and a bias if it is in `BlockConfig.biases`.

    Parts with the same name are one matrix in the checkpoint, stacked by rows in the order of the fields.
    """

    layer: str  # the prefix of all names
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
    memory_query: str = ""
    memory_key: str = ""
    memory_value: str = ""
    memory_out: str = ""
    memory_norm: str = ""
    ungated_up: str = ""  # the name of ``up`` in a layer without a gate, if it differs
    transposed: bool = False  # whether matrices are [input features, output features]
    up_first: bool = False  # whether up comes before the gate, where both are one matrix

    def shapes(self, config: BlockConfig, i: int) -> Shapes:
        """Yield names and shapes of all tensors of layer `i`."""
        for name, parts in self._matrices(config, i).items():
            rows, features = sum(rows for rows, _ in parts.values()), next(iter(parts.values()))[1]
            yield f"{name}.weight", (features, rows) if self.transposed else (rows, features)
            if config.biases & parts.keys():
                yield f"{name}.bias", (rows,)
        for part, features, norm in config.all_norms():
            yield from norm.shapes(self._name(part, i), features)

    def read(self, config: BlockConfig, i: int, tensors: Tensors, dtype: np.dtype[Any]) -> dict[str, Matrix]:
        """Return the weights of layer `i`, for `make_layer`: in `dtype`, or matrices in the blocks of the files."""
        weights: dict[str, Matrix] = {}
        for name, parts in self._matrices(config, i).items():
            ends = np.cumsum([rows for rows, _ in parts.values()])[:-1].tolist()
            matrix = tensors.matrix(f"{name}.weight", self.transposed)
            for part, rows in zip(parts, split_rows(matrix, ends), strict=True):
                weights[f"{part}.weight"] = in_dtype(rows, dtype)
            if config.biases & parts.keys():
                for part, bias in zip(parts, np.split(tensors[f"{name}.bias"], ends), strict=True):
                    weights[f"{part}.bias"] = in_dtype(bias, dtype)
        for part, _, norm in config.all_norms():
            read = norm.read(self._name(part, i), tensors, dtype)
            weights |= {f"{part}.{which}": numbers for which, numbers in read.items()}
        return weights

    def _name(self, part: str, i: int) -> str:
        name: str = getattr(self, part)
        return f"{self.layer.format(i)}{name}"

    def _matrices(self, config: BlockConfig, i: int) -> Mapping[str, dict[str, tuple[int, int]]]:
        """Return the parts of each matrix of the checkpoint, with their shapes."""
        matrices: dict[str, dict[str, tuple[int, int]]] = {}
        products = config.products()
        if self.up_first:
            products = {"up": products["up"], **products}
        for part, shape in products.items():
            name = "ungated_up" if part == "up" and self.ungated_up and not config.gated else part
            matrices.setdefault(self._name(name, i), {})[part] = shape
        return matrices


class StackNames(NamedTuple):
    """The names of the tensors of a stack; "" for tensors that it lacks."""

    blocks: BlockNames
    front_end: TokensNames = TokensNames()
    final_norm: str = ""
    position_bias: str = ""  # the table [buckets, H] of the bias by distance


class HeadNames(NamedTuple):
    """The names of the tensors of a language head."""

    weight: str = "lm_head.weight"
    bias: str = ""  # the tensor that is added to logits, if the checkpoint has it
    is_optional: bool = False  # whether a tied model uses the matrix of the head if the checkpoint has one
