"""A feed-forward layer with experts, of which each row goes through a few."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..functions.arrays import Tensor
from ..functions.block_matrix import in_numbers
from ..functions.dtypes import checked_dtype, packed_state, unpacked_state
from ..functions.instances import bare
from ..functions.messages import in_the_name_of, listed, names_sizes, shown
from ..functions.scalars import checked_boolean, checked_integer, checked_real
from ._constructor_arguments import Seed, WeightDType, checked_generator, checked_size
from ._given_weights import given_weights
from ._module_state import Leaf, ModuleState
from ._row_layers import RowModule
from ._snapshots import composed
from ._tape import Backward, Recording, no_gradients
from .feed_forward import FeedForward
from .linear import Linear

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray
    from typing_extensions import Self  # in typing from Python 3.11 on

# How logits of the router become scores.
SCORES = ("softmax", "sigmoid")


class Router(Linear):
    """A linear map whose matrix is always stored in the dtype of the layer: a small error may choose another expert."""

    _stays_in_dtype = True

    def _make_core(self, arrays: Mapping[str, NDArray[Any]]) -> _core.Linear:
        return super()._make_core(in_numbers(arrays))

    def _quantized(self, weight_dtype: str) -> Leaf:
        return super()._quantized(_core.dtype_name(self.dtype))


class Correction(Leaf):
    """A number for each expert, which is added to its score where experts are chosen."""

    def __init__(self, numbers: NDArray[Any]) -> None:
        self._core = numbers
        self._weight_dtype = _core.dtype_name(numbers.dtype)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"": self._core.copy()}

    def _state_shapes(self, names: Collection[str]) -> dict[str, tuple[int, ...]]:
        return {"": self._core.shape}

    def _make_core(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        return arrays[""].copy()

    def _quantized(self, weight_dtype: str) -> Leaf:
        return Correction(self._core)

    def _converted(self, dtype: np.dtype[Any]) -> Leaf:
        return Correction(_core.convert(self._core, dtype))

    def __getstate__(self) -> dict[str, Any]:
        return packed_state(self.state_dict())

    def __setstate__(self, saved: dict[str, Any]) -> None:
        Correction.__init__(self, unpacked_state(saved)[""])


class Experts(RowModule):
    """The weighted sum of the results of a few `FeedForward` layers, the experts, which each row chooses by itself.

    The router, a linear map, gives each row a score for each expert. The `experts_per_token` experts with the largest
    scores are chosen, and weighted by these scores. Expert networks of Mixtral, Qwen3-MoE, gpt-oss and others are of
    this kind. Only the weights of chosen experts are read.

    Parameters
    ----------
    embed_dim : int
        E, the features of the input and of the result.
    feedforward_dim : int
        F, the features in the middle of each expert.
    num_experts : int
        N, the number of experts.
    experts_per_token : int
        The number of experts that a row chooses, at most N.
    activation, gated, bias : optional
        As for each `FeedForward`; the defaults are "silu", True and False.
    router_bias : bool, default False
        Add a bias to the logits of the router.
    scores : {"softmax", "sigmoid"}, default "softmax"
        The function from logits to scores: the softmax over all experts, or the logistic function of each logit.
    normalize : bool, default True
        Divide the scores of the chosen experts by their sum.
    scale : float, default 1.0
        The factor of the weights after that.
    shared_dim : int, optional
        The features in the middle of a further expert, which all rows go through. Default: there is none.
    shared_gate : bool, default False
        Weight the shared expert by the logistic function of a linear map with one output.
    dtype : {"float32", "float64", "float16", "bfloat16"}, default "float32"
        The dtype of weights, inputs and results.
    weight_dtype : str, optional
        The storage format of the matrices of the experts: see `quantize`. The router stays in `dtype`.
    seed : int or numpy.random.Generator, optional
        Seed of the initial weights, which follow the rule of ``torch.nn.Linear``.

    Attributes
    ----------
    router : Linear
    experts : tuple of FeedForward
    shared : FeedForward or None
    shared_gate : Linear or None

    See Also
    --------
    from_weights : A layer with your own weights.
    EncoderLayer.from_parts : A layer of a transformer with experts as its feed-forward.

    Notes
    -----
    Results are added in the order of the experts, the shared one last. A row has the same bits in any batch. Gradients
    are unsupported.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> layer = mha.Experts(64, 32, num_experts=8, experts_per_token=2, seed=0)
    >>> x = np.random.default_rng(1).standard_normal((2, 10, 64), dtype=np.float32)
    >>> layer(x).shape
    (2, 10, 64)

    The same result for one row, from its parts:

    >>> row, logits = x[0, 0], layer.router(x[0, 0])
    >>> chosen = np.argsort(logits)[-2:]
    >>> weights = np.exp(logits[chosen]) / np.exp(logits[chosen]).sum()
    >>> y = sum(weight * layer.experts[i](row) for weight, i in zip(weights, chosen))
    >>> np.allclose(layer(row), y, atol=1e-6)
    True
    """

    shared: FeedForward | None = None
    shared_gate: Linear | None = None
    _correction: Correction | None = None

    def __init__(
        self,
        embed_dim: int,
        feedforward_dim: int,
        num_experts: int,
        experts_per_token: int,
        *,
        activation: str = "silu",
        gated: bool = True,
        bias: bool = False,
        router_bias: bool = False,
        scores: str = "softmax",
        normalize: bool = True,
        scale: float = 1.0,
        shared_dim: int | None = None,
        shared_gate: bool = False,
        dtype: DTypeLike = "float32",
        weight_dtype: WeightDType = None,
        seed: Seed = None,
    ) -> None:
        name = "Experts"
        rng, kind = checked_generator(name, seed), checked_dtype(name, dtype)
        count = checked_size(name, "num_experts", num_experts)
        shared_gate = checked_boolean(name, "shared_gate", shared_gate)
        if shared_gate and shared_dim is None:
            raise ValueError(f"{name}: shared_gate must be False without shared_dim; got True")

        def expert(width: int) -> FeedForward:
            arguments: Any = {"dtype": kind, "weight_dtype": weight_dtype, "seed": rng}
            return FeedForward(embed_dim, width, activation=activation, gated=gated, bias=bias, **arguments)

        with in_the_name_of(name, bias="router_bias", out_features="num_experts", in_features="embed_dim"):
            router = Router(embed_dim, count, bias=router_bias, dtype=kind, seed=rng)
        with in_the_name_of(name):
            experts = [expert(feedforward_dim) for _ in range(count)]
        with in_the_name_of(name, feedforward_dim="shared_dim"):
            shared = None if shared_dim is None else expert(shared_dim)
        gate = Router(embed_dim, 1, bias=False, dtype=kind, seed=rng) if shared_gate else None
        self._set(name, router, experts, experts_per_token, scores, normalize, scale, shared, gate, None)

    @classmethod
    @names_sizes
    def from_weights(
        cls,
        weights: Mapping[str, Tensor],
        experts_per_token: int,
        *,
        activation: str = "silu",
        scores: str = "softmax",
        normalize: bool = True,
        scale: float = 1.0,
        dtype: DTypeLike | None = None,
        weight_dtype: WeightDType = None,
    ) -> Self:
        """Return a layer with a copy of these weights.

        Parameters
        ----------
        weights : mapping of names to arrays or CPU tensors
            The names and shapes of `state_dict`. They say how many experts there are, which maps have a bias, whether
            experts have a gate, and whether there is a shared expert with or without a gate of its own. With the scores
            "sigmoid" there may be a ``correction`` [N], which is added to scores where experts are chosen.
        experts_per_token, activation, scores, normalize, scale
            As for `Experts`.
        dtype : {"float32", "float64", "float16", "bfloat16"}, optional
            The dtype of the layer. Weights in another dtype are rounded once. Default: the dtype of the weights.
        weight_dtype : str, optional
            The storage format of the matrices of the experts, as for `Experts`. Default: `dtype`, or "int8" if there
            are scales.

        Raises
        ------
        TypeError, ValueError
            If an argument breaks a rule. The message for a part begins with the prefix of its names.

        Examples
        --------
        >>> import mha_native as mha
        >>> layer = mha.Experts(64, 32, num_experts=4, experts_per_token=2, seed=0)
        >>> same = mha.Experts.from_weights(layer.state_dict(), experts_per_token=2)
        >>> same.num_experts, same.feedforward_dim
        (4, 32)
        """
        function = f"{cls.__name__}.from_weights"
        with in_the_name_of(function):
            given = given_weights(function, weights, dtype, weight_dtype)
        parts: dict[str, dict[str, NDArray[Any]]] = {}
        for name, array in given.arrays.items():
            prefix = next((own for own in ("router.", "shared_gate.", "shared.") if name.startswith(own)), "")
            if name.startswith("experts."):
                prefix = ".".join(name.split(".")[:2]) + "."
            parts.setdefault(prefix, {})[name.removeprefix(prefix)] = array
        others = parts.pop("", {})
        formats: Any = {"dtype": given.dtype}
        if weight_dtype is not None:  # else matrices in int8 and in blocks stay as they are
            formats["weight_dtype"] = given.weight_dtype
        router, gate = parts.pop("router.", {}), parts.pop("shared_gate.", None)
        shared = parts.pop("shared.", None)
        experts = [parts.pop(f"experts.{i}.", None) for i in range(len(parts))]
        correction = others.pop("correction", None)
        if others or parts or None in experts or not experts:
            raise ValueError(
                f"{function}: weights must have the names of state_dict, with experts numbered from 0; "
                f"got {listed([*parts, *others])}"
            )

        def expert(prefix: str, own: Any) -> FeedForward:
            with in_the_name_of(f"{function}: {prefix}"):
                return FeedForward.from_weights(own, activation=activation, **formats)

        def linear(prefix: str, own: Any) -> Router:
            if "weight" not in own or own.keys() - {"weight", "bias"}:
                raise ValueError(f"{function}: {prefix} must have a weight, and at most a bias; got {listed(own)}")
            with in_the_name_of(f"{function}: {prefix}"):
                return Router.from_weights(**own, dtype=given.dtype, weight_dtype=_core.dtype_name(given.dtype))

        layer = bare(cls)
        layer._set(
            function,
            linear("router", router),
            [expert(f"experts.{i}", own) for i, own in enumerate(experts)],
            experts_per_token,
            scores,
            normalize,
            scale,
            None if shared is None else expert("shared", shared),
            None if gate is None else linear("shared_gate", gate),
            None if correction is None else Correction(correction.copy()),
        )
        return layer

    def _set(
        self,
        function: str,
        router: Linear,
        experts: Sequence[FeedForward],
        experts_per_token: int,
        scores: str,
        normalize: bool,
        scale: float,
        shared: FeedForward | None,
        shared_gate: Linear | None,
        correction: Correction | None,
    ) -> None:
        if not isinstance(scores, str) or scores not in SCORES:
            kind = ValueError if isinstance(scores, str) else TypeError
            raise kind(f"{function}: scores must be 'softmax' or 'sigmoid'; got {shown(scores)}")
        self.router, self.experts, self.shared, self.shared_gate = router, tuple(experts), shared, shared_gate
        self._correction = correction
        self._choice = (
            checked_integer(function, "experts_per_token", experts_per_token, 1),
            scores == "sigmoid",
            checked_boolean(function, "normalize", normalize),
            checked_real(function, "scale", scale),
        )
        with in_the_name_of(function):
            self._compose()  # it compares sizes

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return copies of the weights.

        The names are ``experts.0.linear1.weight`` and so on, as of `FeedForward`; ``router.weight`` [N, E] and
        ``router.bias`` [N]; ``shared.linear1.weight`` and so on; ``shared_gate.weight`` [1, E]; ``correction`` [N].
        """
        return super().state_dict()

    @property
    def embed_dim(self) -> int:
        """E, the features of the input and of the result."""
        return self.router.in_features

    @property
    def feedforward_dim(self) -> int:
        """F, the features in the middle of each expert."""
        return self.experts[0].feedforward_dim

    @property
    def num_experts(self) -> int:
        """N, the number of experts."""
        return len(self.experts)

    @property
    def experts_per_token(self) -> int:
        """The number of experts that a row chooses."""
        return self._choice[0]

    @property
    def activation(self) -> str:
        """The name of the activation."""
        return self.experts[0].activation

    @property
    def scores(self) -> str:
        """How logits of the router become scores."""
        return SCORES[self._choice[1]]

    @property
    def normalize(self) -> bool:
        """Whether the scores of the chosen experts are divided by their sum."""
        return self._choice[2]

    @property
    def scale(self) -> float:
        """The factor of the weights."""
        return self._choice[3]

    def _compose(self) -> _core.Experts:
        cores = [expert._core for expert in self.experts]
        shared, gate = (None if part is None else part._core for part in (self.shared, self.shared_gate))
        correction = None if self._correction is None else _core.convert(self._correction._core, "float32")
        return _core.Experts(self.router._core, cores, self._choice, shared, gate, correction)

    _core: Any = property(lambda self: composed(self, self._compose))

    def _children(self) -> dict[str, ModuleState]:
        experts: dict[str, Any] = {f"experts.{i}.": expert for i, expert in enumerate(self.experts)}
        parts = {"shared.": self.shared, "router.": self.router, "shared_gate.": self.shared_gate}
        parts["correction"] = self._correction  # type: ignore[assignment]
        return experts | {prefix: part for prefix, part in parts.items() if part is not None}

    def _configuration(self) -> dict[str, Any]:
        first = self.experts[0]
        sizes = {"embed_dim": self.embed_dim, "feedforward_dim": self.feedforward_dim}
        sizes |= {"num_experts": self.num_experts, "experts_per_token": self.experts_per_token}
        kinds = {"activation": first.activation, "gated": first.gated, "bias": first.bias}
        choice = {"router_bias": self.router.bias, "scores": self.scores}
        choice |= {"normalize": self.normalize, "scale": self.scale}
        shared = {} if self.shared is None else {"shared_dim": self.shared.feedforward_dim}
        shared |= {"shared_gate": True} if self.shared_gate is not None else {}
        return {**sizes, **kinds, **choice, **shared}

    def _record(
        self, arrays: tuple[Any, ...], options: Mapping[str, Any], recording: Recording
    ) -> tuple[NDArray[Any], Backward]:
        if recording.is_needed:
            raise ValueError(
                "Experts.forward_and_record: gradients of experts, and of layers before them, are unsupported; choose "
                "others with wrt"
            )
        return self._core.forward(*arrays, None, recording.num_threads), no_gradients
