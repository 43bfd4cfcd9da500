"""The feed-forward part of a transformer layer: two matrix products with an activation between them, row by row."""

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray
from numpy.typing import DTypeLike, NDArray

from .. import _core
from .._arrays import Tensor, like, to_numpy
from .._dtypes import checked_dtype, packed_state, unpacked_state
from ._constructor_arguments import (
    Seed,
    WeightDType,
    check_room,
    checked_generator,
    checked_size,
    checked_weight_dtype,
    initial_weights,
)
from ._module_state import Leaf, linear_state, linear_weights
from ._torch_modules import activation_name, checked_module


class Sizes(NamedTuple):
    """Sizes and options of a feed-forward layer."""

    embed_dim: int
    feedforward_dim: int
    activation: str
    bias: bool


class FeedForward(Leaf):
    """``activation(x W_1^T + b_1) W_2^T + b_2`` of each row.

    Parameters
    ----------
    embed_dim : int
        E, the features of the input and of the result.
    feedforward_dim : int
        F, the features in between.
    activation : {"relu", "gelu", "gelu_tanh", "silu"}, default "relu"
        ``max(h, 0)``; ``h P(X <= h)`` with X from the standard normal distribution; the approximation of that by tanh;
        or ``h / (1 + exp(-h))``.
    bias : bool, default True
        Add a bias in both products.
    dtype : {"float32", "float64", "float16", "bfloat16"}, default "float32"
        Of the weights, and of what the layer takes and gives. Arrays of bfloat16 are those of the package ml_dtypes;
        tensors of other libraries do without it.
    weight_dtype : {"float32", "bfloat16", "int8"}, optional
        What both matrices of weights are stored as, of a layer in float32: see `quantize`. Default: `dtype`.
    seed : int or numpy.random.Generator, optional
        Of the initial weights, which follow the rule of ``torch.nn.Linear``: uniform up to ``1 / sqrt(features read)``.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> feed_forward = mha.FeedForward(64, 256, activation="gelu", seed=0)
    >>> x = np.random.default_rng(1).standard_normal((2, 10, 64), dtype=np.float32)
    >>> feed_forward(x).shape
    (2, 10, 64)
    """

    def __init__(
        self,
        embed_dim: int,
        feedforward_dim: int,
        *,
        activation: str = "relu",
        bias: bool = True,
        dtype: DTypeLike = "float32",
        weight_dtype: WeightDType = None,
        seed: Seed = None,
    ) -> None:
        name = "FeedForward"
        sizes = Sizes(
            checked_size(name, "embed_dim", embed_dim),
            checked_size(name, "feedforward_dim", feedforward_dim),
            activation,
            _core.boolean(name, "bias", bias),
        )
        kind = checked_dtype(name, dtype)
        rng = checked_generator(name, seed)
        shapes, state = _shapes(sizes), {}
        check_room(name, shapes.values())
        for which, shape in shapes.items():
            bound = 1 / math.sqrt(sizes.embed_dim if which.startswith("linear1") else sizes.feedforward_dim)
            state[which] = initial_weights(rng.uniform(-bound, bound, shape), kind)
        self._set_state(sizes, kind, checked_weight_dtype(name, weight_dtype, kind), state)

    def __call__(self, x: Tensor, *, out: Tensor | None = None, num_threads: int | None = None) -> Tensor:
        """Apply both products to each row of `x`.

        Parameters
        ----------
        x : [..., E]
            NumPy array, or CPU tensor of any library that speaks DLPack, with 1 to 4 axes, of the dtype of the layer.
        out : [..., E], optional
            Array to write the result to; it may be `x` itself.
        num_threads : int, optional
            Threads for this call; default: `mha_native.num_threads`.

        Returns
        -------
        out : [..., E]
            Of the kind of `x`.
        """
        array = self._core.forward(
            x if type(x) is ndarray else to_numpy("FeedForward", "x", x),
            out if out is None or type(out) is ndarray else to_numpy("FeedForward", "out", out),
            num_threads,
        )
        return array if type(x) is ndarray else like(x, array) if out is None else out

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Copies of ``linear1.weight`` [F, E] and ``linear2.weight`` [E, F], and of ``linear1.bias`` and
        ``linear2.bias``: the names of ``torch.nn.TransformerEncoderLayer``. Matrices in int8 have
        ``linear1.weight_scale`` [F] and ``linear2.weight_scale`` [E]."""
        up, down = self._core.weights()
        return linear_state("linear1", up) | linear_state("linear2", down)

    @property
    def embed_dim(self) -> int:
        """E, the features of the input and of the result."""
        return self._sizes.embed_dim

    @property
    def feedforward_dim(self) -> int:
        """F, the features between the two products."""
        return self._sizes.feedforward_dim

    @property
    def activation(self) -> str:
        """The name of the activation between the two products."""
        return self._sizes.activation

    @property
    def bias(self) -> bool:
        """Whether the products have biases."""
        return self._sizes.bias

    @classmethod
    def _from_torch(cls, function: str, module: Any) -> "FeedForward":
        """The feed-forward part of a ``torch.nn.TransformerEncoderLayer`` or ``TransformerDecoderLayer``."""
        linears = {name: checked_module(function, getattr(module, name), "Linear") for name in ("linear1", "linear2")}
        state = {
            f"{name}.{which}": to_numpy(function, f"{name}.{which}", tensor)
            for name, linear in linears.items()
            for which, tensor in linear.state_dict().items()
        }
        width, features = state["linear1.weight"].shape
        feed_forward = cls.__new__(cls)
        sizes = Sizes(features, width, activation_name(function, module.activation), "linear1.bias" in state)
        dtype = checked_dtype(function, state["linear1.weight"].dtype)
        feed_forward._set_state(sizes, dtype, _core.dtype_name(dtype), state)
        return feed_forward

    def _configuration(self) -> dict[str, Any]:
        return self._sizes._asdict()

    def __getstate__(self) -> dict[str, Any]:
        dtypes = {"dtype": _core.dtype_name(self.dtype), "weight_dtype": self.weight_dtype}
        return {"sizes": tuple(self._sizes), **dtypes, "state": packed_state(self.state_dict())}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        dtype, state = checked_dtype("FeedForward", saved["dtype"]), unpacked_state(saved["state"])
        self._set_state(Sizes(*saved["sizes"]), dtype, saved["weight_dtype"], state)

    def _set_state(
        self, sizes: Sizes, dtype: np.dtype[Any], weight_dtype: str, state: Mapping[str, NDArray[Any]]
    ) -> None:
        self._sizes = sizes
        self._weight_dtype = weight_dtype
        self._load(dtype, state)

    def _state_shapes(self, names: Collection[str]) -> dict[str, tuple[int, ...]]:
        return self._with_scales(_shapes(self._sizes), names)

    def _make_core(self, arrays: Mapping[str, NDArray[Any]]) -> _core.FeedForward:
        up, down = linear_weights(arrays, "linear1"), linear_weights(arrays, "linear2")
        return _core.FeedForward(up, down, self._sizes.activation, self._weight_dtype)


def _shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, rows, features in (
        ("linear1", sizes.feedforward_dim, sizes.embed_dim),
        ("linear2", sizes.embed_dim, sizes.feedforward_dim),
    ):
        shapes[f"{name}.weight"] = (rows, features)
        if sizes.bias:
            shapes[f"{name}.bias"] = (rows,)
    return shapes
