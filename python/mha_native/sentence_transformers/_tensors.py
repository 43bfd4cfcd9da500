"""Conversion of tensors of torch to arrays, and back. A call that asks for a tensor imports torch."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..functions.needed_packages import pip_install


def is_tensor(value: object) -> bool:
    """Return whether `value` is a tensor of torch, or a list that begins with a tensor."""
    if isinstance(value, (list, tuple)) and value:
        value = value[0]
    return type(value).__module__.partition(".")[0] == "torch"


def as_array(value: Any) -> NDArray[Any]:
    """Convert an array, a tensor, or a list of either to an array of numbers. A bfloat16 of torch becomes float32."""
    if isinstance(value, (list, tuple)) and is_tensor(value):
        return np.stack([as_array(each) for each in value])
    if not is_tensor(value):
        return np.asarray(value)
    tensor = value.detach().cpu()
    array: NDArray[Any] = (tensor.float() if "bfloat16" in str(tensor.dtype) else tensor).numpy()
    return array


def results(function: str, array: NDArray[Any], is_one: bool, convert_to_numpy: bool, convert_to_tensor: bool) -> Any:
    """Return the rows of `array` in the requested form, or the only row if `is_one`."""
    if convert_to_numpy and not convert_to_tensor:
        return array[0] if is_one else array
    tensor = as_tensor(function, "convert_to_tensor" if convert_to_tensor else "convert_to_numpy", array)
    if is_one:
        return tensor[0]
    return tensor if convert_to_tensor else list(tensor)


def as_tensor(function: str, name: str, array: NDArray[Any]) -> Any:
    """Return a tensor of torch that shares the memory of `array`."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"{function} {name}: torch is not installed: {pip_install('torch')}") from error
    return torch.from_numpy(array)
