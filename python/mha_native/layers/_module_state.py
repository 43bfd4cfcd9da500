"""State dicts of layers and stacks. A part has a prefix of names. Loading checks all parts before it changes one."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from .. import _core
from ..functions.arrays import Tensor, to_numpy
from ..functions.block_matrix import BlockMatrix, from_core, in_numbers, to_core
from ..functions.dtypes import WEIGHT_FORMATS, checked_dtype, packed_state
from ..functions.instances import bare
from ..functions.messages import in_the_name_of, listed, name_of_type, names_sizes, shown
from ._constructor_arguments import WeightDType, checked_weight_dtype
from ._snapshots import change, no_change
from ._tape import Backward, Recording, recorded

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

Module = TypeVar("Module", bound="ModuleState")
AnyLeaf = TypeVar("AnyLeaf", bound="Leaf")

# The weights of a linear map in the core: matrix, bias, and the scale of a matrix in int8. A matrix in blocks is
# (bytes, format).
LinearWeights: TypeAlias = "tuple[Any, NDArray[Any] | None, NDArray[Any] | None]"


class ModuleState:
    """A layer with its own weights (`Leaf`), or a layer or stack with several such layers as parts."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if constructor := cls.__dict__.get("__init__"):
            setattr(cls, "__init__", names_sizes(constructor))  # noqa: B010 - mypy refuses the assignment

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return copies of the weights, with the names and the layout of torch's module of the same name.

        For a layer in bfloat16 they are arrays of ml_dtypes. Without this package use them only for `load_state_dict`:
        NumPy sees bytes. ``layer.astype("float32").state_dict()`` has the numbers.
        """
        leaves = self._leaves()
        now = zip(leaves, snapshots(leaves.values()), strict=True)
        return {prefix + name: array for prefix, leaf in now for name, array in leaf.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace the weights by `state`, all of them or none.

        A call in another thread, of this module or of a module that contains it, uses all the old weights or all the
        new ones.

        Parameters
        ----------
        state : mapping of names to arrays or CPU tensors
            As from `state_dict`.

        Raises
        ------
        ValueError
            If names are missing or unexpected, or shapes differ: one message lists them. Nothing changes.
        TypeError
            If an array has another dtype. First convert the layer to that dtype with `astype`.
        """
        arrays = self._checked_state(self.dtype, state)
        with in_the_name_of(f"{type(self).__name__}.load_state_dict: state"):
            self._take(arrays)

    def astype(self: Module, dtype: DTypeLike) -> Module:
        """Return a copy in another dtype, with every weight rounded once. Widening to more bits is exact.

        Parameters
        ----------
        dtype : {"float32", "float64", "float16", "bfloat16"}
            In float16, numbers above 65504 become infinite.

        Returns
        -------
        module
            A new module. If `dtype` differs from the old one, all weights are stored in `dtype`, even after
            `quantize`.
        """
        kind = checked_dtype(f"{type(self).__name__}.astype", dtype)
        return self._copied(lambda leaf: leaf._converted(kind))

    def quantize(self: Module, weight_dtype: WeightDType) -> Module:
        """Return a copy with weights in another format. Activations, biases, norms and attention stay in float32.

        Parameters
        ----------
        weight_dtype : str
            "bfloat16": rounded to 8 significant bits. A product of few rows waits for weights, and takes half the time.
            "int8": integers in -127 ... 127 with a scale for each output feature. The input rows are quantized one by
            one in the same way, and the sums of products are exact. "int4": 4.25 bits for a weight, an integer in
            -8 ... 7 times an integer in 0 ... 15 for each 16 input features, with a scale for each output feature. A
            search makes the sum of squared errors small. Results have the bits of a layer with the same weights in
            int8. "float32": the current weights in float32.

        Returns
        -------
        module
            A new module. Its ``state_dict`` holds the rounded weights. Weights in int8 and int4 are arrays of int8,
            with an array of factors for their rows, ``..._scale`` [out].
        """
        function = f"{type(self).__name__}.quantize"
        name = checked_weight_dtype(function, weight_dtype, self.dtype)
        return self._copied(lambda leaf: leaf._quantized(name))

    @property
    def weight_dtype(self) -> str:
        """The storage format of the matrices; "mixed" if there are several, which `weight_formats` lists.

        Routers of experts do not count: they stay in the dtype of the layer.
        """
        names = {prefix for prefix, leaf in self._leaves().items() if leaf._stays_in_dtype}
        formats = {stored for name, stored in self.weight_formats().items() if not name.startswith(tuple(names))}
        if len(formats) > 1:
            return "mixed"
        return formats.pop() if formats else next(iter(self._leaves().values()))._weight_dtype

    def weight_formats(self) -> dict[str, str]:
        """Return the storage format of each matrix, by its name in ``state_dict``."""
        leaves = self._leaves()
        now = zip(leaves, snapshots(leaves.values()), strict=True)
        return {prefix + name: stored for prefix, leaf in now for name, stored in leaf._formats().items()}

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of weights, inputs and results."""
        dtype: np.dtype[Any] = next(iter(self._leaves().values()))._core.dtype
        return dtype

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self._configuration().items())
        dtype = _core.dtype_name(self.dtype)
        stored = "" if self.weight_dtype == dtype else f", weight_dtype='{self.weight_dtype}'"
        return f"{type(self).__name__}({given}, dtype='{dtype}'{stored})"

    def __setattr__(self, name: str, value: Any) -> None:
        with change():  # it may be a part of this one
            super().__setattr__(name, value)

    def _copied(self: Module, copy_leaf: Callable[[Leaf], Leaf]) -> Module:
        """Return a copy with new leaves, which `copy_leaf` makes of the current ones."""
        leaves = list(self._leaves().values())
        now = zip(leaves, snapshots(leaves), strict=True)
        return copy.deepcopy(self, {id(leaf): copy_leaf(snapshot) for leaf, snapshot in now})

    def _configuration(self) -> dict[str, Any]:
        """Return the arguments of the constructor, without dtypes and seed."""
        raise NotImplementedError

    def _record(
        self, arrays: tuple[Any, ...], options: Mapping[str, Any], recording: Recording
    ) -> tuple[NDArray[Any], Backward]:
        """Return the result of a call, and its backward pass. `arrays` are the inputs, `options` other arguments."""
        raise NotImplementedError

    def _start(
        self, arrays: tuple[Any, ...], options: Mapping[str, Any], recording: Recording
    ) -> tuple[NDArray[Any], Backward]:
        """Record a call of the whole module."""
        return recorded(self, arrays, options, recording)

    def _weight_names(self) -> tuple[str, ...]:
        """Return the names of the state dict of a plain module, without its arrays."""
        return tuple(prefix + name for prefix, leaf in self._leaves().items() for name in leaf._state_shapes(()))

    def _children(self) -> dict[str, ModuleState]:
        """Return the parts, by the prefix of their names in the state dict."""
        raise NotImplementedError

    def _leaves(self) -> dict[str, Leaf]:
        return {
            prefix + inner: leaf for prefix, part in self._children().items() for inner, leaf in part._leaves().items()
        }

    def _load(self, dtype: np.dtype[Any], state: Mapping[str, Tensor]) -> None:
        self._take(self._checked_state(dtype, state))

    def _checked_state(self, dtype: np.dtype[Any], state: Mapping[str, Tensor]) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the arrays of a state dict by the prefixes of `_leaves`, after checks of names, shapes and dtypes."""
        function = f"{type(self).__name__}.load_state_dict"
        if not isinstance(state, Mapping):
            raise TypeError(f"{function}: state must be a mapping of names to arrays; got {name_of_type(state)}")
        leaves = self._leaves()
        names: dict[str, set[str]] = {prefix: set() for prefix in leaves}
        for name in map(str, state):  # a stack with experts has thousands of leaves
            for end in (0, *(i + 1 for i, letter in enumerate(name) if letter == ".")):
                if name[:end] in names:
                    names[name[:end]].add(name[end:])
        shapes = {prefix: leaf._state_shapes(names[prefix]) for prefix, leaf in leaves.items()}
        for prefix, of_leaf in shapes.items():
            for name in [name for name in of_leaf if isinstance(state.get(prefix + name), BlockMatrix)]:
                of_leaf.pop(f"{name}_scale", None)
        expected = {prefix + name: shape for prefix, of_leaf in shapes.items() for name, shape in of_leaf.items()}
        arrays = checked_arrays(function, expected, dtype, state)
        return {prefix: {name: arrays[prefix + name] for name in of_leaf} for prefix, of_leaf in shapes.items()}

    def _take(self, arrays: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
        leaves = self._leaves()
        cores = [leaf._make_core(arrays[prefix]) for prefix, leaf in leaves.items()]
        with change():  # in one call, so that a signal handler cannot stop it halfway
            deque(map(object.__setattr__, leaves.values(), repeat("_core"), cores), maxlen=0)


class Leaf(ModuleState):
    """A layer with weights in an object of the core. New weights need a new object."""

    _core: Any
    _weight_dtype: str
    _stays_in_dtype: ClassVar[bool] = False  # whether no `quantize` changes its format

    def state_dict(self) -> dict[str, NDArray[Any]]:
        raise NotImplementedError

    def _state_shapes(self, names: Collection[str]) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes that a state dict must have. `names` are its actual names."""
        raise NotImplementedError

    def _formats(self) -> dict[str, str]:
        """Return the storage format of each matrix, by its name in the state dict."""
        return {}

    def _named_formats(self, names: Iterable[str]) -> dict[str, str]:
        """Return the formats in the core of the matrices `names`, in its order."""
        own = _core.dtype_name(self.dtype)
        return {name: stored or own for name, stored in zip(names, self._core.formats, strict=True)}

    def _make_core(self, arrays: Mapping[str, NDArray[Any]]) -> Any:
        """Return an object of the core of arrays, after checks of their names, shapes and dtypes."""
        raise NotImplementedError

    def _quantized(self, weight_dtype: str) -> Leaf:
        """Return a new layer with the same weights in the format `weight_dtype`."""
        saved = self.__getstate__()
        saved |= {"weight_dtype": weight_dtype, "state": in_numbers(saved["state"])}
        if not WEIGHT_FORMATS.get(weight_dtype):
            saved["state"] = _without_scales(saved["state"])
        leaf = bare(type(self))
        leaf.__setstate__(saved)
        return leaf

    def _converted(self, dtype: np.dtype[Any]) -> Leaf:
        """Return a new layer in `dtype`; a copy, if this layer is in that dtype already."""
        leaf, saved = bare(type(self)), self.__getstate__()
        name = _core.dtype_name(dtype)
        if name != _core.dtype_name(self.dtype):
            state = {
                which: _core.convert(array, dtype)
                for which, array in _without_scales(in_numbers(self.state_dict())).items()
            }
            saved |= {"dtype": name, "weight_dtype": name, "state": packed_state(state)}
        leaf.__setstate__(saved)
        return leaf

    def _with_scales(self, shapes: dict[str, tuple[int, ...]], names: Collection[str]) -> dict[str, tuple[int, ...]]:
        """Return `shapes`, with the scales if the weights in `names` are int8 already."""
        if not WEIGHT_FORMATS.get(self._weight_dtype) or not any(name.endswith("weight_scale") for name in names):
            return shapes
        matrices = {name: shape for name, shape in shapes.items() if name.endswith("weight") and len(shape) == 2}
        return shapes | {f"{name}_scale": shape[:1] for name, shape in matrices.items()}

    def __getstate__(self) -> dict[str, Any]:
        raise NotImplementedError

    def __setstate__(self, saved: dict[str, Any]) -> None:
        raise NotImplementedError

    def _leaves(self) -> dict[str, Leaf]:
        return {"": self}


def snapshots(leaves: Iterable[AnyLeaf]) -> list[AnyLeaf]:
    """Return layers with the current weights of `leaves`, which do not change with them."""
    with no_change():
        return [_snapshot(leaf) for leaf in leaves]


def _snapshot(leaf: AnyLeaf) -> AnyLeaf:
    snapshot = bare(type(leaf))
    vars(snapshot).update(vars(leaf))
    return snapshot


def linear_weights(arrays: Mapping[str, NDArray[Any]], prefix: str) -> LinearWeights:
    """Return the weights of a linear map, whose names in the state dict begin with `prefix`."""
    return to_core(arrays[f"{prefix}weight"]), arrays.get(f"{prefix}bias"), arrays.get(f"{prefix}weight_scale")


def linear_state(prefix: str, weights: LinearWeights) -> dict[str, NDArray[Any]]:
    """Undo `linear_weights`."""
    weight, bias, scale = weights
    state = {f"{prefix}weight": from_core(weight), f"{prefix}weight_scale": scale, f"{prefix}bias": bias}
    return {name: array for name, array in state.items() if array is not None}


def checked_arrays(
    function: str, expected: Mapping[str, tuple[int, ...]], dtype: np.dtype[Any], state: Mapping[str, Tensor]
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a state dict, which must have exactly the names and shapes `expected`.

    Matrices with scales must be int8, and all other arrays `dtype`. In float32 a matrix may be a BlockMatrix.
    """
    arrays: dict[str, Any] = {name: to_numpy(function, name, state[name]) for name in expected if name in state}
    wrong_kinds = [
        f"{name} is a {name_of_type(x)}" for name, x in arrays.items() if not isinstance(x, np.ndarray | BlockMatrix)
    ]
    if wrong_kinds:
        raise TypeError(f"{function}: expected arrays; {listed(wrong_kinds)}")

    complaints = {
        "missing": [name for name in expected if name not in state],
        "unexpected": [name if isinstance(name, str) else shown(name) for name in state if name not in expected],
        "of the wrong shape": [
            f"{name} {list(arrays[name].shape)} instead of {list(shape)}"
            for name, shape in expected.items()
            if name in arrays and arrays[name].shape != shape
        ],
    }
    if any(complaints.values()):
        raise ValueError(f"{function}: " + "; ".join(f"{what}: {listed(n)}" for what, n in complaints.items() if n))
    own = _core.dtype_name(dtype)
    wanted = {name: "int8" if f"{name}_scale" in expected else own for name in expected}
    blocks = [name for name, array in arrays.items() if isinstance(array, BlockMatrix)]
    if blocks and own != "float32":
        raise TypeError(f"{function}: a BlockMatrix needs a layer in float32, and the layer is {own}: {listed(blocks)}")
    wrong_dtypes = [
        f"{name} {given}" + " instead of int8" * (wanted[name] != own)
        for name, given in (
            (name, _core.dtype_name(array.dtype)) for name, array in arrays.items() if name not in blocks
        )
        if given != wanted[name]
    ]
    if wrong_dtypes:
        hint = "" if "int8" in wanted.values() else ": the astype of a layer in their dtype takes them"
        raise TypeError(f"{function}: the layer is {own}; got {listed(wrong_dtypes)}{hint}")
    return arrays


def _without_scales(state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return a state dict with each int8 matrix multiplied by its scales."""
    return {
        name: array * state[f"{name}_scale"][:, None] if f"{name}_scale" in state else array
        for name, array in state.items()
        if not name.endswith("weight_scale")
    }
