"""The feed-forward part of a transformer layer: two matrix products with an activation between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core
from ..functions.activation import activation as apply
from ..functions.activation import activation_gradient
from ..functions.arrays import Tensor
from ..functions.dtypes import checked_dtype
from ..functions.instances import bare
from ..functions.messages import in_the_name_of, names_sizes
from ._constructor_arguments import Biases, Seed, WeightDType, checked_biases, checked_size, checked_weight_dtype
from ._given_weights import given_weights
from ._row_layers import LayerOfMaps, LinearMap, initial_state
from ._tape import Backward, Recording, added, no_gradients, through_map
from ._torch_modules import activation_name, checked_module

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray
    from typing_extensions import Self  # in typing from Python 3.11 on

# The products that every feed-forward has, and the product that a gated one adds.
_PRODUCTS = ("linear1", "linear2", "gate")


class Sizes(NamedTuple):
    """Sizes and options of a feed-forward layer."""

    embed_dim: int
    feedforward_dim: int
    activation: str
    bias: bool | tuple[str, ...]  # all maps, no map, or the maps by name
    gated: bool = False

    def maps(self) -> tuple[LinearMap, ...]:
        inner, outer = self.feedforward_dim, self.embed_dim
        shapes = {"linear1": (inner, outer), "linear2": (outer, inner)}
        if self.gated:
            shapes["gate"] = (inner, outer)
        return tuple(
            LinearMap(f"{name}.", *shape, self.bias if isinstance(self.bias, bool) else name in self.bias)
            for name, shape in shapes.items()
        )


class FeedForward(LayerOfMaps):
    """``activation(x W_1^T + b_1) W_2^T + b_2`` of each row.

    With a gate it is ``(activation(x W_g^T + b_g) * (x W_1^T + b_1)) W_2^T + b_2``.

    Parameters
    ----------
    embed_dim : int
        E, the features of the input and of the result.
    feedforward_dim : int
        F, the features in between.
    activation : {"relu", "gelu", "gelu_tanh", "silu", "swiglu_oai", "quick_gelu"}, default "relu"
        ``max(h, 0)``; ``h P(X <= h)`` with X from the standard normal distribution; its approximation by tanh;
        ``h / (1 + exp(-h))``; ``m / (1 + exp(-1.702 m))`` with ``m = min(h, 7)``, whose factor in a gated layer is not
        ``u`` but ``1 + clip(u, -7, 7)``: the layers of gpt-oss; or ``h / (1 + exp(-1.702 h))``: the layers of CLIP.
    gated : bool, default False
        Multiply the F features by a gate, a third product. The activation is applied to the gate only.
    bias : bool or set of names, default True
        Add a bias in all products, in none, or in the named ones: "linear1", "linear2", "gate".
    dtype : {"float32", "float64", "float16", "bfloat16"}, default "float32"
        The dtype of weights, inputs and results. Arrays of bfloat16 need the package ml_dtypes; tensors of other
        libraries do not.
    weight_dtype : str, optional
        The storage format of the matrices of a layer in float32: see `quantize`. Default: `dtype`.
    seed : int or numpy.random.Generator, optional
        Seed of the initial weights, which follow the rule of ``torch.nn.Linear``: uniform up to
        ``1 / sqrt(input features)``.

    See Also
    --------
    from_weights : A layer with your own weights. Torch has no such module, and this class has no ``from_torch``.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> feed_forward = mha.FeedForward(64, 256, activation="gelu", seed=0)
    >>> x = np.random.default_rng(1).standard_normal((2, 10, 64), dtype=np.float32)
    >>> feed_forward(x).shape
    (2, 10, 64)
    """

    _sizes_type = Sizes

    def __init__(
        self,
        embed_dim: int,
        feedforward_dim: int,
        *,
        activation: str = "relu",
        gated: bool = False,
        bias: Biases = True,
        dtype: DTypeLike = "float32",
        weight_dtype: WeightDType = None,
        seed: Seed = None,
    ) -> None:
        name = "FeedForward"
        gated = _core.boolean(name, "gated", gated)
        sizes = Sizes(
            checked_size(name, "embed_dim", embed_dim),
            checked_size(name, "feedforward_dim", feedforward_dim),
            activation,
            checked_biases(name, bias, _PRODUCTS[: 3 if gated else 2]),
            gated,
        )
        kind = checked_dtype(name, dtype)
        state = initial_state(name, sizes.maps(), kind, seed)
        self._set_state(sizes, kind, checked_weight_dtype(name, weight_dtype, kind), state)

    @classmethod
    @names_sizes
    def from_weights(
        cls,
        weights: Mapping[str, Tensor],
        *,
        activation: str = "relu",
        dtype: DTypeLike | None = None,
        weight_dtype: WeightDType = None,
    ) -> Self:
        """Return a layer with a copy of these weights.

        Parameters
        ----------
        weights : mapping of names to arrays or CPU tensors
            The names and shapes of `state_dict`: ``linear1.weight`` [F, E], ``linear2.weight`` [E, F], with a gate
            ``gate.weight`` [F, E], and the bias of each product that adds one. They say whether there is a gate, and
            which products have a bias.
        activation : {"relu", "gelu", "gelu_tanh", "silu", "swiglu_oai", "quick_gelu"}, default "relu"
            As for `FeedForward`.
        dtype : {"float32", "float64", "float16", "bfloat16"}, optional
            The dtype of the layer. Weights in another dtype are rounded once. Default: the dtype of the weights.
        weight_dtype : str, optional
            The storage format of the matrices, as for `FeedForward`. Default: `dtype`, or "int8" if there are scales.

        Raises
        ------
        TypeError, ValueError
            If an argument breaks a rule. One message lists all missing and unexpected names, and all wrong shapes.

        Examples
        --------
        >>> import numpy as np
        >>> import mha_native as mha
        >>> rng = np.random.default_rng(0)
        >>> up, down = rng.standard_normal((2, 256, 64), dtype=np.float32)
        >>> layer = mha.FeedForward.from_weights({"linear1.weight": up, "linear2.weight": down.T}, activation="gelu")
        >>> layer.bias, layer.gated, layer(np.ones((2, 64), np.float32)).shape
        (False, False, (2, 64))
        """
        function = f"{cls.__name__}.from_weights"
        with in_the_name_of(function):
            given = given_weights(function, weights, dtype, weight_dtype)
            width, features = given.shape(function, "linear1.weight", "feedforward_dim", "embed_dim")
            gated = any(name.startswith("gate.") for name in given.arrays)
            bias = checked_biases(
                function, [name for name in _PRODUCTS if f"{name}.bias" in given.arrays], _PRODUCTS[: 3 if gated else 2]
            )
            layer = bare(cls)
            sizes = Sizes(features, width, activation, bias, gated)
            layer._set_state(sizes, given.dtype, given.weight_dtype, given.arrays)
        return layer

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return copies of ``linear1.weight`` [F, E], ``linear2.weight`` [E, F], ``linear1.bias``, ``linear2.bias``.

        The names are the names of ``torch.nn.TransformerEncoderLayer``. A gate has ``gate.weight`` [F, E] and
        ``gate.bias``. Matrices in int8 have ``linear1.weight_scale`` [F], ``linear2.weight_scale`` [E] and so on.
        """
        return super().state_dict()

    @property
    def embed_dim(self) -> int:
        """E, the features of the input and of the result."""
        return int(self._sizes.embed_dim)

    @property
    def feedforward_dim(self) -> int:
        """F, the features between the two products."""
        return int(self._sizes.feedforward_dim)

    @property
    def activation(self) -> str:
        """The name of the activation."""
        return str(self._sizes.activation)

    @property
    def gated(self) -> bool:
        """Whether there is a gate."""
        return bool(self._sizes.gated)

    @property
    def bias(self) -> bool | tuple[str, ...]:
        """Whether all products have biases, or the names of the products that have one."""
        biases: bool | tuple[str, ...] = self._sizes.bias
        return biases

    def _record(
        self, arrays: tuple[Any, ...], options: Mapping[str, Any], recording: Recording
    ) -> tuple[NDArray[Any], Backward]:
        core, threads, activation = self._core, recording.num_threads, self.activation
        if not recording.is_needed:
            return core.forward(*arrays, None, threads), no_gradients

        def hidden(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
            """Return the argument of the activation, and its factor if there is a gate."""
            up = core.up.forward(x, None, threads)
            return (core.gate.forward(x, None, threads), up) if self.gated else (up, None)

        def activated(of: tuple[NDArray[Any], NDArray[Any] | None]) -> NDArray[Any]:
            out: NDArray[Any] = apply(of[0], activation=activation, up=of[1], num_threads=threads)
            return out

        def backward(arrays: tuple[Any, ...], dout: NDArray[Any], weights: dict[str, Any]) -> dict[str, Any]:
            (x,), needs_x, state = arrays, "x" in recording.inputs, self.state_dict()
            of = kept.pop() if kept else hidden(x)
            through = needs_x or any(not name.startswith("linear2.") for name in recording.weights)
            second = activated(of) if "linear2.weight" in recording.weights else None
            dhidden = through_map(recording, "linear2.", second, state["linear2.weight"], dout, weights, through)
            if dhidden is None:
                return {}
            del second
            found = activation_gradient(of[0], dhidden, activation=activation, up=of[1], num_threads=threads)
            del of, dhidden
            products = {"gate.": found.x, "linear1.": found.up} if self.gated else {"linear1.": found.x}
            dx = None
            for name, dproduct in products.items():
                own = through_map(recording, name, x, state[f"{name}weight"], dproduct, weights, needs_x)
                dx = added(dx, own, threads) if needs_x else None
            return {"x": dx} if needs_x else {}

        # Rows of 16 bits are activated before they are rounded, so that the whole layer is called.
        kept = []
        if self.dtype.itemsize > 2:
            kept.append(hidden(*arrays))
            return core.down.forward(activated(kept[0]), None, threads), backward
        return core.forward(*arrays, None, threads), backward

    @classmethod
    def _from_torch(cls, function: str, module: Any) -> Self:
        """Return the feed-forward part of a ``torch.nn.TransformerEncoderLayer`` or ``TransformerDecoderLayer``."""
        linears = {name: checked_module(function, getattr(module, name), "Linear") for name in ("linear1", "linear2")}
        weights = {
            f"{name}.{which}": tensor
            for name, linear in linears.items()
            for which, tensor in linear.state_dict().items()
        }
        with in_the_name_of(function):
            layer = cls.from_weights(weights, activation=activation_name(function, module.activation))
        if not isinstance(layer.bias, bool):  # torch itself makes no such module
            missing = "linear2" if "linear1" in layer.bias else "linear1"
            raise ValueError(f"{function}: missing: {missing}.bias")
        return layer

    def _make_core(self, arrays: Mapping[str, NDArray[Any]]) -> _core.FeedForward:
        return _core.FeedForward(tuple(self._weights_of_maps(arrays)), self._sizes.activation, self._weight_dtype)
