"""The front end of sound: a row for two frames of a spectrogram, from two convolutions and positions."""

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ...functions.activation import activation
from ...functions.arrays import widened
from ...layers.linear import Linear
from ..architecture.norms import in_dtype
from ..files.source import Matrix, Shapes, Tensors

# Both convolutions read a frame and its neighbours.
_KERNEL = 3


class FramesConfig(NamedTuple):
    """The rows of frames: ``gelu(conv2(gelu(conv1(frames)))) + positions``, where conv2 takes every second frame."""

    mel_bins: int  # M, the features of a frame
    embed_dim: int  # E
    max_positions: int  # S, the largest number of rows; twice as many frames

    def built(self, tables: Mapping[str, Any]) -> "Frames":
        """Return the front end with `tables`."""
        return Frames(self, tables)


class FramesNames(NamedTuple):
    """The names of the tensors of `FramesConfig`."""

    conv1: str = "encoder.conv1"
    conv2: str = "encoder.conv2"
    positions: str = "encoder.embed_positions.weight"

    def shapes(self, config: FramesConfig, present: Container[str]) -> Shapes:
        """Yield names and shapes of all tensors."""
        for name, features in ((self.conv1, config.mel_bins), (self.conv2, config.embed_dim)):
            yield f"{name}.weight", (config.embed_dim, features, _KERNEL)
            yield f"{name}.bias", (config.embed_dim,)
        yield self.positions, (config.max_positions, config.embed_dim)

    def read(self, config: FramesConfig, words: Matrix, tensors: Tensors, dtype: np.dtype[Any]) -> dict[str, Any]:
        """Return the tables of `Frames` in `dtype`. The word table belongs to the other stack."""
        tables = {"positions": in_dtype(tensors[self.positions], dtype)}
        for part in ("conv1", "conv2"):
            name: str = getattr(self, part)
            # Row t of the input of a product has the frames t - 1, t and t + 1 one after another.
            weight = tensors[f"{name}.weight"].swapaxes(1, 2).reshape(config.embed_dim, -1)
            tables[f"{part}_weight"] = in_dtype(weight, dtype)
            tables[f"{part}_bias"] = in_dtype(tensors[f"{name}.bias"], dtype)
        return tables


class Frames:
    """Rows of frames.

    `tables` are in the dtype of the model: ``positions`` [S, E]; ``conv1_weight`` [E, 3 M] and ``conv2_weight`` [E, 3
    E], with the features of a frame before those of the next one; ``conv1_bias`` and ``conv2_bias`` [E].
    """

    def __init__(self, config: FramesConfig, tables: Mapping[str, Any]) -> None:
        self.config, self.tables = config, dict(tables)
        self._convolutions = [
            Linear.from_weights(tables[f"{part}_weight"], tables[f"{part}_bias"]) for part in ("conv1", "conv2")
        ]

    def matrices(self) -> list[Any]:
        """Return the largest tables: the matrices of the convolutions."""
        return [self.tables["conv1_weight"], self.tables["conv2_weight"]]

    def astype(self, dtype: np.dtype[Any]) -> "Frames":
        """Return the same front end in another dtype."""
        return Frames(self.config, {name: in_dtype(table, dtype) for name, table in self.tables.items()})

    def __call__(self, features: NDArray[np.floating], num_threads: int | None) -> NDArray[Any]:
        """Return the rows [B * T / 2, E] of the frames of B windows, `features` [B, M, T] with an even T."""
        batch, _, length = features.shape
        dtype, width = self.tables["positions"].dtype, self.config.embed_dim
        frames = _padded((batch, length, self.config.mel_bins), dtype)
        native = features.dtype.newbyteorder("=")
        frames[:, 1:-1] = in_dtype(np.ascontiguousarray(features.swapaxes(1, 2), native), dtype)
        hidden = _padded((1, length, width), dtype)[0]
        rows = np.empty((batch, length // 2, width), dtype)
        first, second = self._convolutions
        inner = hidden[1:-1]
        for of_window, wanted in zip(frames, rows, strict=True):
            first(_windows(of_window, 1), out=inner, num_threads=num_threads)
            inner[:] = activation(inner, activation="gelu", num_threads=num_threads)
            second(_windows(hidden, 2), out=wanted, num_threads=num_threads)
            wanted[:] = activation(wanted, activation="gelu", num_threads=num_threads)
        positions = self.tables["positions"][: length // 2]
        if widened(rows) is rows:
            rows += positions
        else:  # the sum is rounded once
            rows = in_dtype(widened(rows) + widened(positions), dtype)
        return rows.reshape(-1, width)


def _padded(shape: tuple[int, int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array for the frames of windows, with a frame of zeros before and after each window."""
    batch, length, features = shape
    array = np.empty((batch, length + 2, features), dtype)
    array[:, [0, -1]] = 0
    return array


def _windows(frames: NDArray[Any], stride: int) -> NDArray[Any]:
    """Return a view of padded frames [T + 2, F]: a frame with its neighbours, [T / stride, 3 F]."""
    rows, features = (len(frames) - _KERNEL) // stride + 1, frames.shape[1]
    shape, step = (rows, _KERNEL * features), frames.strides[0]
    return as_strided(frames, shape, (stride * step, frames.itemsize), writeable=False)
