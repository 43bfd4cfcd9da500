"""Sizes of a multi-head attention layer, and its weights in a state dict: names, shapes, initial values."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import _core
from ..functions.block_matrix import split_rows, to_core
from ._constructor_arguments import (
    Biases,
    Seed,
    check_room,
    checked_biases,
    checked_generator,
    checked_size,
    initial_weights,
)
from ._given_weights import GivenWeights
from ._module_state import LinearWeights, linear_weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The four projections, in the order in which the core takes them.
PROJECTIONS = ("query", "key", "value", "out")


class Parts(NamedTuple):
    """Optional parts of a multi-head attention layer."""

    bias: bool | tuple[str, ...]  # in all projections, in none, or in the named ones
    add_bias_kv: bool
    add_zero_attn: bool

    def has_bias(self, projection: str) -> bool:
        return self.bias if isinstance(self.bias, bool) else projection in self.bias

    @property
    def in_biases(self) -> str:
        """The letters of q, k and v whose projection has a bias."""
        return "".join(name[0] for name in PROJECTIONS[:3] if self.has_bias(name))


class Sizes(NamedTuple):
    """Sizes of a multi-head attention layer, in the order in which the core takes them."""

    embed_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_head_dim: int
    kdim: int
    vdim: int
    out_dim: int

    @property
    def are_stackable(self) -> bool:
        """Whether query, key and value have equally many features, so that their projections fit in one matrix."""
        return self.kdim == self.vdim == self.embed_dim

    @property
    def in_rows(self) -> tuple[int, int, int]:
        """Output features of the projections: H D for query, Hk D for key, Hk Dv for value."""
        heads, kv_heads = self.num_heads, self.num_kv_heads
        return heads * self.head_dim, kv_heads * self.head_dim, kv_heads * self.value_head_dim

    def state_shapes(self, parts: Parts, stacked: bool, stacked_biases: bool) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of a state dict, with query, key and value in one matrix and bias or in three."""
        rows = self.in_rows
        shapes: dict[str, tuple[int, ...]] = {"in_proj_weight": (sum(rows), self.embed_dim)}
        if not stacked:
            features = (self.embed_dim, self.kdim, self.vdim)
            shapes = {f"{letter}_proj_weight": (rows[i], features[i]) for i, letter in enumerate("qkv")}
        if stacked_biases:
            shapes["in_proj_bias"] = (sum(rows),)
        else:
            shapes |= {f"{letter}_proj_bias": (rows["qkv".index(letter)],) for letter in parts.in_biases}
        if parts.add_bias_kv:
            shapes |= {"bias_k": (1, 1, rows[1]), "bias_v": (1, 1, rows[2])}
        shapes["out_proj.weight"] = (self.out_dim, self.num_heads * self.value_head_dim)
        if parts.has_bias("out"):
            shapes["out_proj.bias"] = (self.out_dim,)
        return shapes


def checked_parts(bias: Biases, add_bias_kv: bool, add_zero_attn: bool) -> Parts:
    """Check the arguments of a constructor, and return the parts."""
    name = "MultiHeadAttention"
    return Parts(
        checked_biases(name, bias, PROJECTIONS),
        _core.boolean(name, "add_bias_kv", add_bias_kv),
        _core.boolean(name, "add_zero_attn", add_zero_attn),
    )


def parts_of_weights(arrays: Mapping[str, NDArray[Any]], add_zero_attn: bool) -> Parts:
    """Return the parts of a layer with these weights: the biases and the added key that have weights."""
    letters = "qkv" if "in_proj_bias" in arrays else [letter for letter in "qkv" if f"{letter}_proj_bias" in arrays]
    biases = [name for name in PROJECTIONS[:3] if name[0] in letters] + ["out"] * ("out_proj.bias" in arrays)
    return checked_parts(biases, "bias_k" in arrays or "bias_v" in arrays, add_zero_attn)


def sizes_of_weights(function: str, given: GivenWeights, num_heads: int, num_kv_heads: int | None) -> Sizes:
    """Return the sizes of a layer with these weights."""
    heads = checked_size(function, "num_heads", num_heads)
    kv_heads = heads if num_kv_heads is None else checked_size(function, "num_kv_heads", num_kv_heads)
    out_dim, columns = given.shape(function, "out_proj.weight", "out_dim", "H Dv")
    value_head_dim, rest = divmod(columns, heads)
    if rest:
        raise ValueError(f"{function}: out_proj.weight must have H Dv columns for num_heads, {heads}; got {columns}")
    if any(f"{letter}_proj_weight" in given.arrays for letter in "qkv"):
        rows, embed_dim = given.shape(function, "q_proj_weight", "H D", "embed_dim")
        kdim = given.shape(function, "k_proj_weight", "Hk D", "kdim")[1]
        vdim = given.shape(function, "v_proj_weight", "Hk Dv", "vdim")[1]
        head_dim, rest = divmod(rows, heads)
        rule = f"q_proj_weight must have H D rows for num_heads, {heads}"
    else:
        rows, embed_dim = given.shape(function, "in_proj_weight", "H D + Hk D + Hk Dv", "embed_dim")
        kdim = vdim = embed_dim
        head_dim, rest = divmod(rows - kv_heads * value_head_dim, heads + kv_heads)
        rule = f"in_proj_weight must have H D + Hk D + Hk Dv rows for num_heads, {heads}, and num_kv_heads, {kv_heads}"
    if rest or head_dim < 1:
        raise ValueError(f"{function}: {rule}; got {rows}")
    return resolve_sizes(embed_dim, heads, kv_heads, head_dim, value_head_dim, kdim, vdim, out_dim)


def resolve_sizes(embed_dim: int, num_heads: int, *others: int | None) -> Sizes:
    """Check the sizes of a layer, and return them with defaults in place of None."""
    num_kv_heads, head_dim, value_head_dim, kdim, vdim, out_dim = others
    given = Sizes(
        embed_dim,
        num_heads,
        num_heads if num_kv_heads is None else num_kv_heads,
        1 if head_dim is None else head_dim,
        1 if value_head_dim is None else value_head_dim,
        embed_dim if kdim is None else kdim,
        embed_dim if vdim is None else vdim,
        embed_dim if out_dim is None else out_dim,
    )
    sizes = Sizes(*(checked_size("MultiHeadAttention", name, size) for name, size in given._asdict().items()))
    if head_dim is None:
        if sizes.embed_dim % sizes.num_heads:
            raise ValueError(
                "MultiHeadAttention: embed_dim must be a multiple of num_heads if head_dim is not given; "
                f"got embed_dim {embed_dim}, num_heads {num_heads}"
            )
        sizes = sizes._replace(head_dim=sizes.embed_dim // sizes.num_heads)
    if value_head_dim is None:
        sizes = sizes._replace(value_head_dim=sizes.head_dim)
    if sizes.num_heads % sizes.num_kv_heads:
        raise ValueError(
            "MultiHeadAttention: num_heads must be a multiple of num_kv_heads; "
            f"got num_heads {num_heads}, num_kv_heads {num_kv_heads}"
        )
    return sizes


def initial_state(sizes: Sizes, parts: Parts, dtype: np.dtype[Any], seed: Seed) -> dict[str, NDArray[Any]]:
    """Return random weights by the rules of torch.

    The projections into the heads are Xavier-uniform, as one block if they are stacked. The projection out of the heads
    follows ``torch.nn.Linear``. An added key and its value are Xavier-normal.
    """
    rng = checked_generator("MultiHeadAttention", seed)
    shapes = state_shapes(sizes, parts, ())
    check_room("MultiHeadAttention", shapes.values())
    state = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            numbers = np.zeros(shape)
        elif len(shape) == 3:
            numbers = rng.normal(0, 1 / math.sqrt(shape[2]), shape)
        else:
            rows, features = shape
            bound = 1 / math.sqrt(features) if name == "out_proj.weight" else math.sqrt(6 / (features + rows))
            numbers = rng.uniform(-bound, bound, shape)
        state[name] = initial_weights(numbers, dtype)
    return state


def state_shapes(sizes: Sizes, parts: Parts, names: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes that a state dict must have.

    Projections are in one matrix, unless `names` has one of the three matrices. Their biases are in one array, unless
    `names` has one of the three biases, or the layer lacks one.
    """
    stacked = sizes.are_stackable and not any(f"{letter}_proj_weight" in names for letter in "qkv")
    stacked_biases = parts.in_biases == "qkv" and not any(f"{letter}_proj_bias" in names for letter in "qkv")
    return sizes.state_shapes(parts, stacked, stacked_biases)


def split_state(
    sizes: Sizes, parts: Parts, arrays: Mapping[str, NDArray[Any]]
) -> tuple[tuple[LinearWeights, ...], tuple[NDArray[Any] | None, NDArray[Any] | None]]:
    """Return the weights as the core takes them: of query, key, value and out, and the added key and its value."""
    splits = [sizes.in_rows[0], sum(sizes.in_rows[:2])]

    def of_heads(kind: str) -> list[Any]:
        """Return the weights, biases or scales of query, key and value; None for a missing array."""
        if f"in_proj_{kind}" in arrays:
            return list(map(to_core, split_rows(arrays[f"in_proj_{kind}"], splits)))
        return [to_core(arrays.get(f"{letter}_proj_{kind}")) for letter in "qkv"]

    in_proj = zip(of_heads("weight"), of_heads("bias"), of_heads("weight_scale"), strict=True)
    added = (arrays["bias_k"][0, 0], arrays["bias_v"][0, 0]) if parts.add_bias_kv else (None, None)
    return (*in_proj, linear_weights(arrays, "out_proj.")), added
