"""The names of the tensors of a model in a checkpoint, and their layout there."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...functions.block_matrix import BlockMatrix, split_rows
from ..files.source import Matrix, Shapes, Tensors
from ..front_ends.tokens import TokensNames
from .config import BlockConfig, StackConfig
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
    position_key: str = ""
    position_query: str = ""
    router: str = ""
    correction: str = ""  # a tensor, of experts with corrected scores
    expert: str = ""  # the prefix of the names of expert {}
    # The parts of an expert, after its prefix, and of the shared one.
    expert_gate: str = "gate_proj"
    expert_up: str = "up_proj"
    expert_down: str = "down_proj"
    shared_gate: str = ""  # the map whose logistic function weights the shared expert
    shared: str = ""  # the prefix of its other parts
    sinks: str = ""  # a tensor
    out_scale: str = ""  # a tensor, the factor of ``out``
    down_scale: str = ""  # a tensor, the factor of ``down``
    # The names of ``up`` and ``down`` in a layer without a gate, if they differ.
    ungated_up: str = ""
    ungated_down: str = ""
    transposed: bool = False  # whether matrices are [input features, output features]
    by_heads: bool = False  # whether query, key and value, in one matrix, are stacked head by head
    up_first: bool = False  # whether up comes before the gate, where both are one matrix

    def shapes(self, config: BlockConfig, i: int) -> Shapes:
        """Yield names and shapes of all tensors of layer `i`."""
        for name, parts in self._matrices(config, i).items():
            rows, features = sum(rows for rows, _ in parts.values()), next(iter(parts.values()))[1]
            yield f"{name}.weight", (features, rows) if self.transposed else (rows, features)
            if any(map(config.has_bias, parts)):
                yield f"{name}.bias", (rows,)
        yield from self._vectors(config, i).values()
        yield from ((name, (config.embed_dim,)) for name in self._scales(config, i).values())
        for part, features, norm in config.all_norms():
            yield from norm.shapes(self._name(part, i), features)

    def read(self, config: BlockConfig, i: int, tensors: Tensors, dtype: np.dtype[Any]) -> dict[str, Matrix]:
        """Return the weights of layer `i`, for `make_layer`: in `dtype`, or matrices in the blocks of the files."""
        weights: dict[str, Matrix] = {}
        scales = {part: tensors[name] for part, name in self._scales(config, i).items()}
        for name, parts in self._matrices(config, i).items():
            ends = np.cumsum([rows for rows, _ in parts.values()])[:-1].tolist()
            arrays: dict[str, Any] = {"weight": tensors.matrix(f"{name}.weight", self.transposed)}
            if any(map(config.has_bias, parts)):
                arrays["bias"] = tensors[f"{name}.bias"]
            for which, array in arrays.items():
                if self.by_heads and len(parts) == 3:
                    array = _part_by_part(array, config.num_heads)
                for part, rows in zip(parts, split_rows(array, ends), strict=True):
                    scaled = _scaled(rows, scales[part]) if part in scales else rows
                    weights[f"{part}.{which}"] = in_dtype(scaled, dtype)
        for part, (name, _) in self._vectors(config, i).items():
            # Sinks are an option of attention: they are not rounded, as a position bias is not.
            weights[part] = tensors[name] if part == "sinks" else in_dtype(tensors[name], dtype)
        for part, _, norm in config.all_norms():
            read = norm.read(self._name(part, i), tensors, dtype)
            weights |= {f"{part}.{which}": numbers for which, numbers in read.items()}
        return weights

    def _name(self, part: str, i: int) -> str:
        """Return the name of a part of layer `i`, such as "query", "shared.up" or "experts.3.up"."""
        owner, _, own = part.rpartition(".")
        name: str = getattr(self, f"expert_{own}" if owner else own)
        if owner:
            name = (self.shared if owner == "shared" else self.expert.format(owner.partition(".")[2])) + name
        return f"{self.layer.format(i)}{name}"

    def _vectors(self, config: BlockConfig, i: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the tensors that belong to no product and no norm, by their parts: names and shapes."""
        vectors: dict[str, tuple[str, tuple[int, ...]]] = {}
        if config.experts is not None and config.experts.has_correction:
            vectors["correction"] = self._name("correction", i), (config.experts.num_experts,)
        if config.has_sinks:
            vectors["sinks"] = self._name("sinks", i), (config.num_heads,)
        return vectors

    def _scales(self, config: BlockConfig, i: int) -> dict[str, str]:
        """Return the tensors with a factor for each row of a matrix, by the parts of the matrices."""
        parts = ("out", "down") if config.has_scales else ()
        return {part: self._name(f"{part}_scale", i) for part in parts}

    def _matrices(self, config: BlockConfig, i: int) -> Mapping[str, dict[str, tuple[int, int]]]:
        """Return the parts of each matrix of the checkpoint, with their shapes."""
        matrices: dict[str, dict[str, tuple[int, int]]] = {}
        products = config.products()
        if self.up_first:
            products = {"up": products["up"], **products}
        for part, shape in products.items():
            name = f"ungated_{part}"
            is_own = not config.gated and bool(getattr(self, name, ""))
            matrices.setdefault(self._name(name if is_own else part, i), {})[part] = shape
        return matrices


def _scaled(rows: Any, factors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the rows of a matrix, or numbers, each times its factor. Rows in blocks become numbers."""
    numbers: NDArray[np.float32] = rows.dequantize() if isinstance(rows, BlockMatrix) else rows
    return numbers * (factors[:, None] if numbers.ndim == 2 else factors)


def _part_by_part(rows: Any, num_heads: int) -> Any:
    """Return rows in the order of all queries, all keys, all values; they are stacked head by head."""
    if isinstance(rows, BlockMatrix):
        return BlockMatrix(_part_by_part(rows.data, num_heads), rows.dtype, rows.in_features)
    return rows.reshape(num_heads, 3, -1, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)


class StackNames(NamedTuple):
    """The names of the tensors of a stack; "" for tensors that it lacks."""

    blocks: BlockNames
    front_end: Any = TokensNames()  # or a `FramesNames`, or a `PatchesNames`
    final_norm: str = ""
    position_bias: str = ""  # the table [buckets, H] of the bias by distance; with {}: of layer {}
    relative: str = ""  # the table [2 span, E] of relative positions
    relative_norm: str = ""

    def position_biases(self, config: StackConfig) -> list[str]:
        """Return the names of the tables of the bias by distance: one, or one for each layer."""
        return list(dict.fromkeys(self.position_bias.format(i) for i in range(len(config.blocks))))


class HeadNames(NamedTuple):
    """The names of the tensors of a language head."""

    weight: str = "lm_head.weight"
    bias: str = ""  # the tensor that is added to logits, if the checkpoint has it
    is_optional: bool = False  # whether a tied model uses the matrix of the head if the checkpoint has one
