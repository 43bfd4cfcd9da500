"""Norms of rows of features: as data, and as layers."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...functions.block_matrix import BlockMatrix
from ...layers.layer_norm import LayerNorm
from ...layers.norm import Norm
from ...layers.rms_norm import RMSNorm
from ..files.source import Matrix, Shapes, Tensors


class NormConfig(NamedTuple):
    """A norm of rows of features."""

    # "layer", "rms", or "rms_unit_offset", which multiplies with 1 plus its weight; "rms_joint" for queries and keys.
    kind: str
    eps: float
    bias: bool = False

    def shapes(self, name: str, features: int) -> Shapes:
        """Yield the names and shapes of the tensors of the norm called `name`."""
        for part in self._parts:
            yield f"{name}.{part}", (features,)

    def read(self, name: str, tensors: Tensors, dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
        """Return the weights of the norm called `name`: ``weight``, and ``bias`` if it has one."""
        return {part: in_dtype(tensors[f"{name}.{part}"], dtype) for part in self._parts}

    @property
    def _parts(self) -> tuple[str, ...]:
        return ("weight", "bias") if self.bias else ("weight",)


def make_norm(config: NormConfig, weights: Mapping[str, NDArray[Any]], dtype: np.dtype[Any]) -> Norm:
    """Return the norm with weights in `dtype`: ``weight``, and ``bias`` if it has one."""
    weight, options = weights["weight"], dict[str, Any](eps=config.eps, dtype=dtype)
    if config.kind == "layer":
        return LayerNorm.from_weights(weight, weights.get("bias"), **options)
    return RMSNorm.from_weights(weight, unit_offset=config.kind == "rms_unit_offset", **options)


def in_dtype(numbers: Matrix, dtype: np.dtype[Any]) -> Any:
    """Return `numbers`, or a copy rounded to `dtype` if they are in another dtype. Blocks stay blocks in float32."""
    if isinstance(numbers, BlockMatrix):
        if dtype == np.float32:
            return numbers
        numbers = numbers.dequantize()
    return numbers if _core.dtype_name(numbers.dtype) == _core.dtype_name(dtype) else _core.convert(numbers, dtype)
