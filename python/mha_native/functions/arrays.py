"""Tensors of other libraries, in and out through DLPack. What is left is a NumPy array, which the core judges."""

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import _core

# A NumPy array, or a CPU tensor of any library that speaks DLPack.
Tensor: TypeAlias = Any

# DLPack's names for memory that the CPU reads like its own: its own, and pinned for CUDA or ROCm.
_HOST_DEVICES = (1, 3, 11)

# Characters of another library's message that one of ours repeats: a few lines of a terminal.
_LONGEST_REASON = 240


def to_numpy(function: str, name: str, tensor: Tensor) -> Any:
    """`tensor` itself if it is an array or no tensor at all, else an array over the same memory.

    Callers skip this function for the type ``numpy.ndarray``: an attention call on a few tokens takes no longer than a
    handful of Python calls.

    Raises
    ------
    TypeError
        For what cannot be read without a copy, a loss, or a gradient, and for what has no numbers in its memory.
    """
    exchange = _exchange_of(type(tensor))  # type: ignore[arg-type]  # a type is hashable
    if exchange is None:
        if isinstance(tensor, np.ndarray):
            if isinstance(tensor, np.ma.MaskedArray):
                raise TypeError(
                    f"{function}: {name} is a numpy.ma.MaskedArray; pass its data, and its mask as attn_mask"
                )
            return tensor
        if not hasattr(tensor, "__dlpack__"):
            return tensor
    if getattr(tensor, "requires_grad", False):
        if _records_gradients(tensor):
            raise TypeError(
                f"{function}: {name} ({_kind_of(tensor)}) needs a gradient, and none is computed; pass its .detach()"
            )
        tensor = tensor.detach()
    try:
        is_neg = getattr(tensor, "is_neg", None)
        if is_neg is not None and is_neg() is True:  # a view of torch, of which DLPack says nothing
            raise ValueError("its memory holds the numbers with the opposite sign; pass its .resolve_neg()")
        if exchange is not None:
            try:
                array = _core.array_of_tensor(exchange, tensor)
            except Exception:  # whatever the other library raises; what follows fails, too, in words for a reader
                array = None
            if array is not None:
                return array
        device = int(tensor.__dlpack_device__()[0])
        if device in _HOST_DEVICES:
            _importer_of(tensor)
            return _core.from_dlpack(_capsule_of(tensor))
    except Exception as error:  # whatever the other library raises
        kind, dtype = _kind_of(tensor), getattr(tensor, "dtype", "of unknown dtype")
        reason = str(error).partition("\n")[0][:_LONGEST_REASON]
        raise TypeError(f"{function}: {name} ({kind}, {dtype}) cannot be read by NumPy: {reason}") from error
    place = getattr(tensor, "device", f"DLPack type {device}")
    raise TypeError(f"{function}: {name} ({_kind_of(tensor)}) is on a device, {place}; copy it to the CPU")


def widened(array: NDArray[Any]) -> NDArray[Any]:
    """Numbers of 16 bits in float32, which is what theirs are summed in, here as in the core; others as they are."""
    return _core.convert(array, "float32") if array.itemsize == 2 else array


def like(tensor: Tensor, array: NDArray[Any]) -> Tensor:
    """`array` as the kind of tensor that `tensor` is, over the same memory."""
    if isinstance(tensor, np.ndarray):
        return array
    exchange = _exchange_of(type(tensor))  # type: ignore[arg-type]  # a type is hashable
    if exchange is not None and (exchanged := _core.tensor_of_array(exchange, array)) is not None:
        return exchanged
    return _importer_of(tensor)(_core.DLPackArray(array))


def _kind_of(tensor: Tensor) -> str:
    return f"{type(tensor).__module__}.{type(tensor).__qualname__}"


def _capsule_of(tensor: Tensor) -> Any:
    """What the core reads, of a version that says whether it may write, if the library of `tensor` has one."""
    try:
        return tensor.__dlpack__(max_version=(1, 0))
    except TypeError:  # older than the argument
        return tensor.__dlpack__()


@functools.lru_cache(maxsize=64)
def _exchange_of(kind: type) -> Any:
    """What tensors of a type are exchanged by without a call of Python, or None: DLPack's C exchange API.

    A class that has its own ``__dlpack__`` has its own exchange, too, or none: it may refuse what its base gives. To
    look for it takes as long as half an exchange; it is found once for each type.
    """
    for base in kind.__mro__:
        if "__dlpack__" in base.__dict__:
            return base.__dict__.get("__dlpack_c_exchange_api__")
    return None


def _records_gradients(tensor: Tensor) -> bool:
    """Whether the library of `tensor` takes note of what gradients need: torch does not under ``no_grad``."""
    is_grad_enabled = _function_of_library(tensor, "is_grad_enabled")
    return is_grad_enabled is None or bool(is_grad_enabled())


def _importer_of(tensor: Tensor) -> Callable[[Any], Tensor]:
    """The ``from_dlpack`` of the library that `tensor` comes from."""
    if hasattr(tensor, "__array_namespace__"):
        return tensor.__array_namespace__().from_dlpack  # type: ignore[no-any-return]
    importer = _function_of_library(tensor, "from_dlpack")
    if importer is None:
        raise TypeError("its library has no from_dlpack to give a result back through")
    return importer


def _function_of_library(tensor: Tensor, name: str) -> Callable[..., Any] | None:
    """The function called `name` of the library that the type of `tensor`, or a base of it, is from."""
    for base in type(tensor).__mro__:
        library = sys.modules.get(base.__module__.partition(".")[0])
        if hasattr(library, name):
            return getattr(library, name)  # type: ignore[no-any-return]
    return None
