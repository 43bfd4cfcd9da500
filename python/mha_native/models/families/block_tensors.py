"""The tensors of a layer: their shapes by a `BlockConfig`, and their names by those that a family has for its parts."""

from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from .._blocks import BlockConfig
from .family import Tensors


def tensor_shapes(block: BlockConfig, layer: str, parts: Mapping[str, str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tensors of a layer whose names begin with `layer`, and go on as `parts` says.

    Parts of one name are one tensor, one below the other in the order of `parts`.
    """
    shapes = _part_shapes(block)
    for name, members in _members(block, parts).items():
        for end in (".weight", ".bias"):
            with_end = [shapes[part + end] for part in members if part + end in shapes]
            if with_end:
                yield f"{layer}{name}{end}", (sum(shape[0] for shape in with_end), *with_end[0][1:])


def part_tensors(
    block: BlockConfig, layer: str, parts: Mapping[str, str], tensors: Tensors
) -> dict[str, NDArray[Any]]:
    """The same tensors by the names of the parts, such as ``query.weight`` and ``norm1.bias``."""
    shapes, state = _part_shapes(block), {}
    for name, members in _members(block, parts).items():
        for end in (".weight", ".bias"):
            with_end = [part + end for part in members if part + end in shapes]
            whole, first = tensors[f"{layer}{name}{end}"] if with_end else None, 0
            for part in with_end:
                state[part], first = whole[first : first + shapes[part][0]], first + shapes[part][0]
    return state


def _members(block: BlockConfig, parts: Mapping[str, str]) -> dict[str, list[str]]:
    """The parts that the layer has, by their names."""
    shapes, members = _part_shapes(block), {}
    for part, name in parts.items():
        if f"{part}.weight" in shapes:
            members.setdefault(name, []).append(part)
    return members


def _part_shapes(block: BlockConfig) -> dict[str, tuple[int, ...]]:
    """The shapes of the weight and the bias of each part that the layer has."""
    width, inner = block.embed_dim, block.feedforward_dim
    heads, kv_heads = block.num_heads * block.head_dim, block.num_kv_heads * block.head_dim
    products = {"query": (heads, width), "key": (kv_heads, width), "value": (kv_heads, width), "out": (width, heads)}
    products |= {"linear1": (inner, width), "linear2": (width, inner)}
    if block.gated:
        products["gate"] = (inner, width)
    shapes: dict[str, tuple[int, ...]] = {}
    for part, shape in products.items():
        shapes[f"{part}.weight"] = shape
        if part in block.biases:
            shapes[f"{part}.bias"] = shape[:1]
    norms = dict.fromkeys(block.norms, (block.norm, width))
    if block.qk_norm is not None:
        norms |= dict.fromkeys(("query_norm", "key_norm"), (block.qk_norm, block.head_dim))
    for part, (norm, features) in norms.items():
        shapes[f"{part}.weight"] = (features,)
        if norm.bias:
            shapes[f"{part}.bias"] = (features,)
    return shapes
