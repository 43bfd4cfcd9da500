"""Recorded calls: the memory of a layer for its backward pass, and the gradients that it returns.

Each class of layers has one method `_record`, which computes its forward pass and returns a function for the backward
pass. A layer with parts calls the methods of its parts. The inputs of a call are not kept with it: whoever calls the
backward function has them, or computes them again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy import ndarray

from .. import _core
from ..functions.arrays import Tensor, like, to_numpy
from ..functions.instances import bare
from ..functions.linear import linear_gradient
from ..functions.messages import in_the_name_of, listed, name_of_type, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The inputs of a call in their order, the gradient by its result, and a dict for the gradients of weights -> gradients
# of the inputs and options by name. No returned array is an argument.
Backward: TypeAlias = "Callable[[tuple[Any, ...], NDArray[Any], dict[str, Any]], dict[str, Any]]"

# The options of attention that have gradients.
OPTIONS_WITH_GRADIENTS = ("attn_mask", "alibi_slopes", "position_bias", "sinks")

RECOMPUTE = ("none", "attention", "layer")


class Gradients(NamedTuple):
    """Gradients of one call, from `Tape.backward`.

    Attributes
    ----------
    inputs : dict
        Gradients by the names of the arguments of the call, each with the shape, the dtype and the kind of its
        argument; gradients of options are float64 for layers in float64, else float32.
    weights : dict
        Gradients by the names of `state_dict`, NumPy arrays of the shape and dtype of the weights.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> norm = mha.LayerNorm(4)
    >>> y, tape = norm.forward_and_record(np.ones((2, 4), np.float32), wrt=("bias", "x"))
    >>> gradients = tape.backward(np.ones_like(y))
    >>> gradients.weights
    {'bias': array([2., 2., 2., 2.], dtype=float32)}
    >>> gradients.inputs["x"].shape
    (2, 4)
    """

    inputs: dict[str, Tensor]
    weights: dict[str, NDArray[Any]]


class Recording(NamedTuple):
    """Gradients that are wanted of a module, and how much its calls keep."""

    weights: frozenset[str]  # names in the state dict of the module
    inputs: frozenset[str]  # arguments, and options
    recompute: str
    num_threads: int | None
    prefix: str = ""  # of the names in the state dict of the whole

    def part(self, prefix: str, part: Any, *inputs: str) -> Recording:
        """Return the recording of a part, whose names in the state dict begin with `prefix`."""
        names = () if part is None else part._weight_names()
        own = frozenset(name for name in names if prefix + name in self.weights)
        return self._replace(weights=own, inputs=frozenset(inputs), prefix=self.prefix + prefix)

    def frozen(self) -> Recording:
        """Return the recording of a call without gradients."""
        return self._replace(weights=frozenset(), inputs=frozenset())

    @property
    def is_needed(self) -> bool:
        """Whether a gradient is wanted."""
        return bool(self.weights or self.inputs)

    def store(self, weights: dict[str, Any], found: Mapping[str, Any]) -> None:
        """Store those gradients of weights that are wanted."""
        for name, gradient in found.items():
            if gradient is not None and name in self.weights:
                weights[self.prefix + name] = gradient

    def wanted(self, **names: str) -> tuple[str, ...]:
        """Return those of the arguments of a function that are wanted weights, given their names in the state dict."""
        return tuple(argument for argument, name in names.items() if name in self.weights)


class Tape:
    """Memory of a recorded call, for its backward pass. A layer makes it.

    A tape is used once: `backward` frees the memory. Until then the weights of the layer may change, but not the arrays
    of the call.

    See Also
    --------
    EncoderLayer.forward_and_record : Record a call.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> layer = mha.Linear(4, 3, seed=0)
    >>> y, tape = layer.forward_and_record(np.ones((8, 4), np.float32))
    >>> tape.backward(np.ones_like(y)).weights["bias"]
    array([8., 8., 8.], dtype=float32)
    """

    _call: tuple[Backward, tuple[Any, ...]] | None
    _shape: tuple[int, ...]  # of the result
    _dtype: np.dtype[Any]
    _given: Mapping[str, Tensor]  # arguments that may have gradients

    def backward(self, dout: Tensor) -> Gradients:
        """Return the gradients of a function of the result of the call.

        Parameters
        ----------
        dout : the shape and dtype of the result
            The gradient of the function by the result: NumPy array or CPU tensor.

        Returns
        -------
        Gradients
            With the gradients that the call was recorded for.

        Raises
        ------
        TypeError, ValueError
            If `dout` has another shape or dtype. The tape can still be used.
        RuntimeError
            If the tape was used before.

        Notes
        -----
        The number of threads does not change one bit, nor does the argument `recompute` of the call.
        """
        function = "Tape.backward"
        array = dout if type(dout) is ndarray else to_numpy(function, "dout", dout)
        if not isinstance(array, ndarray):
            raise TypeError(f"{function}: dout must be an array of the shape of the result; got {name_of_type(dout)}")
        if array.dtype != self._dtype:
            rule = f"dout must be {_core.dtype_name(self._dtype)}, as the result"
            raise TypeError(f"{function}: {rule}; got {_core.dtype_name(array.dtype)}")
        if array.shape != self._shape:
            raise ValueError(
                f"{function}: dout must have the shape of the result, {list(self._shape)}; got {list(array.shape)}"
            )
        if not array.flags.aligned:
            raise TypeError(f"{function}: dout must be aligned in memory")
        call, self._call = self._call, None
        if call is None:
            raise RuntimeError(f"{function}: a tape can be used once; record the call again")
        backward, arrays = call
        del call
        weights: dict[str, NDArray[Any]] = {}
        inputs = backward(arrays, np.ascontiguousarray(array), weights)
        return Gradients(
            {name: like(self._given[name], inputs[name]) for name in self._given if name in inputs}, weights
        )


def record(
    module: Any,
    arguments: Mapping[str, Tensor | None],
    options: Mapping[str, Any],
    recompute: str,
    wrt: Collection[str] | None,
    num_threads: int | None,
) -> tuple[Tensor, Tape]:
    """Return the result and the tape of a call of `module`, whose inputs are `arguments`, in the order of `_record`."""
    name = type(module).__name__
    function = f"{name}.forward_and_record"
    if not (isinstance(recompute, str) and recompute in RECOMPUTE):
        known = ", ".join(map(repr, RECOMPUTE))
        raise (ValueError if isinstance(recompute, str) else TypeError)(
            f"{function}: recompute must be one of {known}; got {shown(recompute)}"
        )
    for prefix, leaf in module._leaves().items():
        if leaf.weight_dtype != (own := _core.dtype_name(leaf.dtype)):
            raise TypeError(
                f"{function}: weight_dtype must be {own!r}, the dtype of the layer, to have gradients; "
                f"got {leaf.weight_dtype!r} in {prefix.rstrip('.') or 'the layer'}"
            )
    given = {argument: tensor for argument, tensor in arguments.items() if tensor is not None}
    given |= {option: options[option] for option in OPTIONS_WITH_GRADIENTS if options.get(option) is not None}
    weights, inputs = _wanted(function, module, wrt, set(given), {name for name in arguments if name in given})
    arrays = tuple(to_numpy(function, argument, tensor) for argument, tensor in arguments.items())
    read = {option: to_numpy(function, option, value) for option, value in options.items()}
    snapshot = module._copied(lambda leaf: leaf)  # later changes of weights leave it alone
    with in_the_name_of(function):
        out, backward = snapshot._start(arrays, read, Recording(weights, inputs, recompute, num_threads))
    tape = bare(Tape)
    tape._call = (_in_order(backward, snapshot._weight_names()), arrays)
    tape._shape, tape._dtype, tape._given = out.shape, out.dtype, given
    return like(next(iter(arguments.values())), out), tape


def recorded(
    module: Any, arrays: tuple[Any, ...], options: Mapping[str, Any], recording: Recording
) -> tuple[NDArray[Any], Backward]:
    """Record a call of `module`; with ``recompute="layer"`` keep nothing, and call it again in the backward pass."""
    if recording.recompute != "layer" or not recording.is_needed:
        plain: tuple[NDArray[Any], Backward] = module._record(arrays, options, recording)
        return plain
    out, _ = module._record(arrays, options, recording.frozen())

    def backward(arrays: tuple[Any, ...], dout: NDArray[Any], weights: dict[str, Any]) -> dict[str, Any]:
        _, again = module._record(arrays, options, recording._replace(recompute="none"))
        found: dict[str, Any] = again(arrays, dout, weights)
        return found

    return out, backward


def no_gradients(arrays: tuple[Any, ...], dout: NDArray[Any], weights: dict[str, Any]) -> dict[str, Any]:
    """Return no gradients, of a call for which none is wanted."""
    return {}


def added(x: NDArray[Any] | None, own: Any, num_threads: int | None) -> NDArray[Any]:
    """Add `x`, if there is one, to `own`, an array that nobody else holds."""
    return own if x is None else _core.add_and_normalize(own, x, None, own, num_threads)[0]


def through_map(
    recording: Recording,
    prefix: str,
    x: NDArray[Any] | None,
    weight: NDArray[Any],
    dout: NDArray[Any],
    weights: dict[str, Any],
    is_needed: bool,
) -> Any:
    """Take a gradient back through a linear map, whose weights begin with `prefix`; None unless `is_needed`."""
    names = {"weight": f"{prefix}weight", "bias": f"{prefix}bias"}
    wrt = recording.wanted(**names) + ("x",) * is_needed
    if not wrt:
        return None
    found = linear_gradient(x, weight, dout, wrt=wrt, num_threads=recording.num_threads)
    recording.store(weights, {names["weight"]: found.weight, names["bias"]: found.bias})
    return found.x


def add_gradients(total: dict[str, Any], more: Mapping[str, Any], num_threads: int | None) -> None:
    """Add gradients of inputs to those of the same name."""
    for name, gradient in more.items():
        total[name] = added(total.get(name), gradient, num_threads)


def _in_order(backward: Backward, names: Collection[str]) -> Backward:
    """Return the backward pass with the gradients of weights in the order of the state dict."""

    def ordered(arrays: tuple[Any, ...], dout: NDArray[Any], weights: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        inputs = backward(arrays, dout, found)
        weights.update((name, found[name]) for name in names if name in found)
        return inputs

    return ordered


def _wanted(
    function: str, module: Any, wrt: Collection[str] | None, known: set[str], inputs: set[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the weights, and of the inputs and options, whose gradients a caller wants."""
    names = module._weight_names()
    if wrt is None:
        return frozenset(names), frozenset(inputs)
    is_one = isinstance(wrt, str) or (isinstance(wrt, np.ndarray) and wrt.ndim == 0)
    if is_one or not isinstance(wrt, Collection) or not all(isinstance(each, str) for each in wrt):
        raise TypeError(f"{function}: wrt must be a tuple of names; got {shown(wrt)}")
    weights, others = set[str](), set[str]()
    for each in wrt:
        chosen = {name for name in names if name == each or name.startswith(f"{each.removesuffix('.')}.")}
        if not chosen and each not in known:
            raise ValueError(
                f"{function}: wrt must name weights, parts with weights, or given inputs ({listed(sorted(known))}); "
                f"got {shown(each)}"
            )
        weights |= chosen
        others |= {each} & known
    return frozenset(weights), frozenset(others)
