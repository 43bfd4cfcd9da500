"""Embeddings with 8 bits or 1 bit for each feature, in the formats of sentence-transformers."""

import logging
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..functions.messages import listed, shown
from ._tensors import as_array

Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]

PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")

_STEPS = 255  # between the least and the greatest of 8 bits
_FEW = 100  # fewer embeddings give ranges that rarely fit others

_logger = logging.getLogger(__name__)


def check_precision(function: str, precision: object) -> None:
    """Raise ValueError unless `precision` is None or one of PRECISIONS."""
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(f"{function}: precision must be one of {listed(PRECISIONS)}; got {shown(precision)}")


def quantize_embeddings(
    embeddings: Any, precision: Precision, ranges: Any = None, calibration_embeddings: Any = None
) -> NDArray[Any]:
    """Convert embeddings to fewer bits for each feature.

    Parameters
    ----------
    embeddings : [N, E] or [E]
        Numbers, an array, a tensor, or a list of either.
    precision : {"float32", "int8", "uint8", "binary", "ubinary"}
        The latter two have one bit for each feature, 1 if it is above 0, and 8 features in a byte, the first one in
        its highest bit; "binary" is "ubinary" less 128.
    ranges : [2, E], optional
        For 8 bits: the least and the greatest value of each feature, 255 equal steps apart. Values outside are clipped
        to the least or the greatest number of 8 bits.
    calibration_embeddings : [M, E], optional
        Embeddings that determine the ranges. Default: `embeddings`, at least 2. A few embeddings give ranges that
        fit no others.

    Returns
    -------
    quantized : [N, E], or for bits [N, ceil(E / 8)]
        The dtype is `precision`; for bits int8 or uint8.

    Raises
    ------
    TypeError, ValueError
        If embeddings are integers, `precision` is unknown, or no ranges can be determined.

    Examples
    --------
    >>> import numpy as np
    >>> from mha_native.sentence_transformers import quantize_embeddings
    >>> embeddings = np.array([[-1, 0.5, 0.1], [1, 0, -0.1], [0, 1, 0.1]], dtype=np.float32)
    >>> quantize_embeddings(embeddings, "int8", ranges=np.array([[-1, -1, -1], [1.5, 1.5, 1.5]]))
    array([[-128,   25,  -16],
           [  76,  -26,  -37],
           [ -26,   76,  -16]], dtype=int8)
    >>> quantize_embeddings(embeddings, "ubinary")
    array([[ 96],
           [128],
           [ 96]], dtype=uint8)
    """
    function = "quantize_embeddings"
    check_precision(function, precision)
    numbers = as_array(embeddings)
    if not np.issubdtype(numbers.dtype, np.floating):
        raise TypeError(f"{function}: embeddings must be floating-point numbers; got {numbers.dtype}")
    if precision in ("binary", "ubinary"):
        bits: NDArray[Any] = np.packbits(numbers > 0, axis=-1)
        return bits if precision == "ubinary" else (bits ^ 128).view(np.int8)  # in two's complement less 128
    if precision not in ("int8", "uint8"):
        return numbers.astype(np.float32)
    if len(numbers) == 0:
        return np.zeros(numbers.shape, precision)
    if ranges is None:
        ranges = _ranges(function, precision, numbers, calibration_embeddings)
    limits = as_array(ranges).astype(np.float32, copy=False)
    if limits.shape != (2, numbers.shape[-1]):
        raise ValueError(f"{function}: ranges must be [2, {numbers.shape[-1]}]; got {limits.shape}")
    least, greatest = limits
    step = (greatest - least) / _STEPS
    steps = np.clip(np.floor((numbers - least) / np.where(step == 0, 1, step)), 0, _STEPS)
    quantized: NDArray[Any] = (steps - 128 if precision == "int8" else steps).astype(precision)
    return quantized


def _ranges(function: str, precision: str, embeddings: NDArray[Any], calibration: Any) -> NDArray[Any]:
    """Return the least and the greatest value of each feature: [2, E]."""
    if calibration is None:
        if embeddings.ndim == 1 or len(embeddings) == 1:
            raise ValueError(
                f"{function}: embeddings must be several for the ranges of {precision}, or there must be ranges or "
                f"calibration_embeddings; got {embeddings.shape}"
            )
        if len(embeddings) < _FEW:
            _logger.warning(
                "the ranges of %s come from %d embeddings only; pass ranges, or calibration_embeddings, of %d or more",
                precision,
                len(embeddings),
                _FEW,
            )
        calibration = embeddings
    numbers = as_array(calibration)
    return np.stack([numbers.min(axis=0), numbers.max(axis=0)])
