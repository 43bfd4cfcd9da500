"""Arguments of the constructors of layers, and their checks: sizes, dtypes of weights, seeds."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import numpy as np

from .. import _core
from ..functions.dtypes import WEIGHT_FORMATS, checked_dtype, numpy_dtype
from ..functions.messages import listed, shown
from ..functions.scalars import checked_integer
from .rotary_embedding import RotaryEmbedding

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

# Seed of the initial weights. None: a different seed each time. A generator: its next numbers.
Seed: TypeAlias = "int | np.random.Generator | None"  # in quotes: numpy.random is loaded when it is used

# The linear maps of a layer that have a bias: all, none, or the named ones.
Biases: TypeAlias = bool | Collection[str]

# The storage format of weights. None: the dtype of the layer.
WeightDType: TypeAlias = "DTypeLike | None"


# The kinds of norms by name, each with the default of its eps.
NORM_EPS = {"layer": 1e-5, "rms": 1e-6, "rms_unit_offset": 1e-6}


class LayerArguments(TypedDict, total=False):
    """Keyword arguments of encoder and decoder layers, as documented at `EncoderLayer`."""

    activation: str
    gated: bool
    norm_first: bool
    norm: str
    output_norms: bool
    eps: float | None
    num_kv_heads: int | None
    head_dim: int | None
    bias: bool
    qk_norm: str | None
    qk_norm_eps: float | None
    rotary: RotaryEmbedding | None
    dtype: DTypeLike
    weight_dtype: WeightDType
    seed: Seed


class DecoderArguments(LayerArguments, total=False):
    """Keyword arguments of decoder layers, as documented at `DecoderLayer`."""

    memory_dim: int | None


def checked_size(function: str, name: str, size: int) -> int:
    """Return the size that a caller gave, an int of at least 1."""
    return checked_integer(function, name, size, 1)


def optional_size(function: str, name: str, size: int | None) -> int | None:
    """Return an optional size, checked as by `checked_size`."""
    return None if size is None else checked_size(function, name, size)


def checked_biases(function: str, bias: Biases, names: Sequence[str]) -> bool | tuple[str, ...]:
    """Return the linear maps of `names` that have a bias: True for all, False for none, else names in their order."""
    if not isinstance(bias, set | frozenset | list | tuple):
        return _core.boolean(function, "bias", bias)
    if unknown := [name for name in bias if not (isinstance(name, str) and name in names)]:
        known = ", ".join(map(repr, names))
        raise ValueError(f"{function}: bias must be True, False or a set of {known}; got {listed(map(shown, unknown))}")
    chosen = tuple(name for name in names if name in bias)
    return chosen if 0 < len(chosen) < len(names) else bool(chosen)


def check_room(function: str, shapes: Iterable[tuple[int, ...]]) -> None:
    """MemoryError for weights with more bytes than addresses, for which NumPy raises other errors."""
    for shape in shapes:
        if math.prod(shape) > sys.maxsize // np.dtype(np.float64).itemsize:
            raise MemoryError(f"{function}: could not allocate weights {list(shape)}")


def initial_weights(numbers: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `numbers` in `dtype`. A layer in 16 bits starts with the rounded weights of a layer in float32."""
    return _core.convert(numbers if dtype == np.float64 else numbers.astype(np.float32), dtype)


def checked_weight_dtype(function: str, weight_dtype: WeightDType, dtype: np.dtype[Any]) -> str:
    """Return the storage format of the weights of a layer in `dtype`, by name, because NumPy has no bfloat16."""
    own = _core.dtype_name(dtype)
    if weight_dtype is None:
        return own
    choices = [own, *WEIGHT_FORMATS] if own == "float32" else [own]
    rule = f"{function}: weight_dtype of a layer in {own} must be {' or '.join(map(repr, choices))}"
    name = weight_dtype if isinstance(weight_dtype, str) else _core.dtype_name(numpy_dtype(rule, weight_dtype))
    if name not in choices:
        raise TypeError(f"{rule}; got {shown(name)}")
    return name


def checked_dtypes(function: str, dtype: DTypeLike, weight_dtype: WeightDType) -> tuple[np.dtype[Any], str | None]:
    """Return the dtype of a model, and the storage format of its weights by name; None for the default."""
    kind = checked_dtype(function, dtype)
    return kind, None if weight_dtype is None else checked_weight_dtype(function, weight_dtype, kind)


def checked_generator(function: str, seed: Seed) -> np.random.Generator:
    """Return the generator of random numbers of a seed, or the generator that a caller gave."""
    try:
        return np.random.default_rng(seed)
    except Exception as error:
        kind = ValueError if isinstance(seed, int) else TypeError
        rule = "seed must be an integer of at least 0, a numpy.random.Generator, or None"
        raise kind(f"{function}: {rule}; got {shown(seed)}") from error
