"""Conversion of tensors of other libraries to NumPy arrays and back, by DLPack. The core checks the arrays."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .. import _core

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A NumPy array, or a CPU tensor of any library that speaks DLPack.
Tensor: TypeAlias = Any

# DLPack's names for memory that the CPU can read: its own, and memory pinned for CUDA or ROCm.
_HOST_DEVICES = (1, 3, 11)

# The most characters of another library's message that an error message repeats: a few lines of a terminal.
_LONGEST_REASON = 240


def to_numpy(function: str, name: str, tensor: Tensor) -> Any:
    """Return an array over the memory of `tensor`, or `tensor` itself if it is an array, or not a tensor.

    Callers skip this function for the type ``numpy.ndarray``: an attention call on a few tokens takes as long as a few
    Python calls.

    Raises
    ------
    TypeError
        For tensors that cannot be read without a copy, a loss, or a gradient, and for tensors without numbers in
        memory.
    """
    kind: Any = type(tensor)
    exchange = _exchange_of(kind)
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
        if is_neg is not None and is_neg() is True:  # a view of torch, which DLPack cannot express
            raise ValueError("its memory holds the numbers with the opposite sign; pass its .resolve_neg()")
        if exchange is not None:
            try:
                array = _core.array_of_tensor(exchange, tensor)
            except Exception:  # of any kind; the next attempt fails, too, with a readable message
                array = None
            if array is not None:
                return array
        device = int(tensor.__dlpack_device__()[0])
        if device in _HOST_DEVICES:
            _importer_of(tensor)
            return _core.from_dlpack(_capsule_of(tensor), tensor)
    except Exception as error:  # of any kind that the other library raises
        dtype = getattr(tensor, "dtype", "of unknown dtype")
        reason = str(error).partition("\n")[0][:_LONGEST_REASON]
        raise TypeError(
            f"{function}: {name} ({_kind_of(tensor)}, {dtype}) cannot be read by NumPy: {reason}"
        ) from error
    place = getattr(tensor, "device", f"DLPack type {device}")
    raise TypeError(f"{function}: {name} ({_kind_of(tensor)}) is on a device, {place}; copy it to the CPU")


def widened(array: NDArray[Any]) -> NDArray[Any]:
    """Return numbers of 16 bits in float32, in which the core sums them, and other arrays as they are."""
    return _core.convert(array, "float32") if array.itemsize == 2 else array


def like(tensor: Tensor, array: NDArray[Any]) -> Tensor:
    """Return a tensor of the kind of `tensor` over the memory of `array`."""
    if isinstance(tensor, np.ndarray):
        return array
    kind: Any = type(tensor)
    exchange = _exchange_of(kind)
    if exchange is not None and (exchanged := _core.tensor_of_array(exchange, array)) is not None:
        return exchanged
    return _importer_of(tensor)(_core.DLPackArray(array))


def _kind_of(tensor: Tensor) -> str:
    return f"{type(tensor).__module__}.{type(tensor).__qualname__}"


def _capsule_of(tensor: Tensor) -> Any:
    """Return the DLPack capsule of `tensor`, in the version that says whether memory may be written, if possible."""
    try:
        return tensor.__dlpack__(max_version=(1, 0))
    except TypeError:  # older than the argument
        return tensor.__dlpack__()


@functools.lru_cache(maxsize=64)
def _exchange_of(kind: type) -> Any:
    """Return DLPack's C exchange API of a type, which exchanges tensors without a Python call, or None.

    The exchange API of a base class is not used if a class has its own ``__dlpack__``, which may refuse tensors. The
    search takes as long as half an exchange, so it is done once for each type.
    """
    for base in kind.__mro__:
        if "__dlpack__" in base.__dict__:
            return base.__dict__.get("__dlpack_c_exchange_api__")
    return None


def _records_gradients(tensor: Tensor) -> bool:
    """Return whether the library of `tensor` records gradients now: torch does not under ``no_grad``."""
    is_grad_enabled = _function_of_library(tensor, "is_grad_enabled")
    return is_grad_enabled is None or bool(is_grad_enabled())


def _importer_of(tensor: Tensor) -> Callable[[Any], Tensor]:
    """Return the function ``from_dlpack`` of the library of `tensor`."""
    if hasattr(tensor, "__array_namespace__"):
        found: Callable[[Any], Tensor] = tensor.__array_namespace__().from_dlpack
        return found
    importer = _function_of_library(tensor, "from_dlpack")
    if importer is None:
        raise TypeError("its library has no from_dlpack to give a result back through")
    return importer


def _function_of_library(tensor: Tensor, name: str) -> Callable[..., Any] | None:
    """Return the function `name` of the library that defines the type of `tensor`, or a base of it."""
    for base in type(tensor).__mro__:
        library = sys.modules.get(base.__module__.partition(".")[0])
        if hasattr(library, name):
            found: Callable[..., Any] = getattr(library, name)
            return found
    return None
