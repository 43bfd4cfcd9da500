"""The front end of images: a row for each patch of pixels, from a projection and positions, after special rows."""

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...functions.arrays import widened
from ...layers.linear import Linear
from ..architecture.norms import NormConfig, in_dtype, make_norm
from ..files.source import Matrix, Shapes, Tensors

Grid = tuple[int, int]

# The slopes of the cubic functions of torch, without and with antialiasing.
_CUBIC, _CUBIC_ANTIALIASED = -0.75, -0.5


class PatchesConfig(NamedTuple):
    """The rows of an image: ``norm([special + positions, registers, patches @ weight + bias + positions])``."""

    channels: int  # C
    embed_dim: int  # E
    image: Grid  # height and width of the images that the positions are trained for
    patch: Grid  # height and width of a patch
    special: int  # S, the rows before the patches that have positions
    registers: int = 0  # R, the rows between these and the patches
    has_bias: bool = True  # whether the projection has one
    antialias: bool = False  # whether positions for smaller images are averaged over what they replace
    norm: NormConfig | None = None

    @property
    def trained_grid(self) -> Grid:
        """Rows and columns of the patches that the positions are trained for."""
        return self.grid(*self.image)

    @property
    def first_patch(self) -> int:
        """The number of rows before the patches."""
        return self.special + self.registers

    def grid(self, height: int, width: int) -> Grid:
        """Return rows and columns of the patches of an image. A rest at the right or at the bottom is left out."""
        return height // self.patch[0], width // self.patch[1]

    def built(self, tables: Mapping[str, Any]) -> "Patches":
        """Return the front end with `tables`."""
        return Patches(self, tables)


class PatchesNames(NamedTuple):
    """The names of the tensors of `PatchesConfig`. A family can lack all but the projection and the positions."""

    projection: str = "embeddings.patch_embeddings.projection"
    positions: str = "embeddings.position_embeddings"
    special: tuple[str, ...] = ("embeddings.cls_token",)
    registers: str = ""
    norm: str = ""
    # Whether positions are a table [rows, E], and the special row is a vector [E]; otherwise axes of 1 come first.
    is_flat: bool = False

    def shapes(self, config: PatchesConfig, present: Container[str]) -> Shapes:
        """Yield names and shapes of all tensors."""
        rows, columns = config.trained_grid
        yield f"{self.projection}.weight", (config.embed_dim, config.channels, *config.patch)
        if config.has_bias:
            yield f"{self.projection}.bias", (config.embed_dim,)
        yield self.positions, (*self._ones(1), config.special + rows * columns, config.embed_dim)
        for name in self.special:
            yield name, (*self._ones(2), config.embed_dim)
        if config.registers:
            yield self.registers, (1, config.registers, config.embed_dim)
        if config.norm is not None:
            yield from config.norm.shapes(self.norm, config.embed_dim)

    def read(
        self, config: PatchesConfig, words: Matrix | None, tensors: Tensors, dtype: np.dtype[Any]
    ) -> dict[str, Any]:
        """Return the tables of `Patches` in `dtype`. There are no words."""
        width = config.embed_dim
        positions = tensors[self.positions].reshape(-1, width)
        parts = [tensors[name].reshape(1, width) for name in self.special]
        first = np.concatenate([np.empty((0, width), np.float32), *parts]) + positions[: config.special]
        if config.registers:
            first = np.concatenate([first, tensors[self.registers].reshape(-1, width)])
        tables = {
            "weight": tensors[f"{self.projection}.weight"].reshape(width, -1),
            "first": first,
            "positions": positions[config.special :],
        }
        if config.has_bias:
            tables["bias"] = tensors[f"{self.projection}.bias"]
        found = {name: in_dtype(table, dtype) for name, table in tables.items()}
        norm = {} if config.norm is None else config.norm.read(self.norm, tensors, dtype)
        return found | {f"norm_{part}": numbers for part, numbers in norm.items()}

    def _ones(self, count: int) -> tuple[int, ...]:
        return () if self.is_flat else (1,) * count


class Patches:
    """Rows of images.

    `tables` are in the dtype of the model: ``weight`` [E, C * height * width of a patch] and optionally ``bias`` [E] of
    the projection; ``first`` [S + R, E], the rows before the patches, with their positions; ``positions`` [rows *
    columns, E] of the trained grid; and optionally ``norm_weight`` and ``norm_bias`` [E].
    """

    def __init__(self, config: PatchesConfig, tables: Mapping[str, Any]) -> None:
        self.config, self.tables = config, dict(tables)
        self._projection = Linear.from_weights(tables["weight"], tables.get("bias"))
        self._norm: Any = None
        if config.norm is not None:
            weights = {part: tables[f"norm_{part}"] for part in ("weight", "bias") if f"norm_{part}" in tables}
            self._norm = make_norm(config.norm, weights, tables["weight"].dtype)
        self._interpolated: tuple[Grid, Any] = config.trained_grid, tables["positions"]  # of the last grid

    def matrices(self) -> list[Any]:
        """Return the largest tables: the matrix of the projection, and the positions."""
        return [self.tables["weight"], self.tables["positions"]]

    def astype(self, dtype: np.dtype[Any]) -> "Patches":
        """Return the same front end in another dtype."""
        return Patches(self.config, {name: in_dtype(table, dtype) for name, table in self.tables.items()})

    def __call__(self, pixels: NDArray[np.floating], num_threads: int | None) -> NDArray[Any]:
        """Return the rows [N, S + R + patches, E] of the images `pixels` [N, C, height, width]."""
        config, dtype = self.config, self.tables["weight"].dtype
        count, channels, *size = pixels.shape
        rows, columns = config.grid(*size)
        if channels != config.channels or not rows or not columns:
            raise ValueError(
                f"images must have {config.channels} channels and at least {config.patch[0]} x {config.patch[1]} "
                f"pixels; got {channels} channels and {size[0]} x {size[1]} pixels"
            )
        positions = self._positions((rows, columns))
        height, width = config.patch
        cut = pixels[:, :, : rows * height, : columns * width]
        patches = cut.reshape(count, channels, rows, height, columns, width).transpose(0, 2, 4, 1, 3, 5)
        flat = in_dtype(np.ascontiguousarray(patches).reshape(count * rows * columns, -1), dtype)
        projected = self._projection(flat, num_threads=num_threads).reshape(count, rows * columns, -1)
        result = np.empty((count, config.first_patch + rows * columns, config.embed_dim), dtype)
        result[:, : config.first_patch] = self.tables["first"]
        if widened(projected) is projected:
            np.add(projected, positions, out=result[:, config.first_patch :])
        else:  # the sum is rounded once
            result[:, config.first_patch :] = in_dtype(widened(projected) + widened(positions), dtype)
        if self._norm is None:
            return result
        normed: NDArray[Any] = self._norm(result, num_threads=num_threads)
        return normed

    def _positions(self, grid: Grid) -> NDArray[Any]:
        """Return the positions [rows * columns, E] of a grid of patches, interpolated unless it is the trained one."""
        trained, table = self.config.trained_grid, self.tables["positions"]
        if grid == trained:
            found: NDArray[Any] = table
            return found
        known, found = self._interpolated
        if known != grid:
            if trained[0] != trained[1]:
                raise ValueError(
                    f"images must have {self.config.image[0]} x {self.config.image[1]} pixels, since only positions of "
                    f"a square are interpolated; got {grid[0]} x {grid[1]} patches"
                )
            numbers = widened(table).astype(np.float64).reshape(*trained, -1)
            down, across = (_interpolation(of, to, self.config.antialias) for of, to in zip(trained, grid, strict=True))
            resized = np.tensordot(across, np.tensordot(down, numbers, 1), (1, 1)).swapaxes(0, 1)
            wide = resized.reshape(-1, self.config.embed_dim).astype(widened(table).dtype)
            found = in_dtype(wide, table.dtype)
            self._interpolated = grid, found
        return found


def _interpolation(count: int, wanted: int, antialias: bool) -> NDArray[np.float64]:
    """Return the matrix [wanted, count] of the bicubic interpolation of torch, with ``align_corners=False``.

    Source: ``torch.nn.functional.interpolate`` with ``mode="bicubic"``. Without `antialias` each number comes from the
    four around it, where the border stands for those outside. With it there are more of them if `wanted` is less than
    `count`, those outside are left out, and weights are scaled to a sum of 1.
    """
    scale = count / wanted
    places = scale * (np.arange(wanted) + 0.5)
    if not antialias:
        first = np.floor(places - 0.5)
        matrix = np.zeros((wanted, count))
        for offset in (-1, 0, 1, 2):
            weights = _cubic(first + offset - (places - 0.5), _CUBIC)
            taken = np.clip(first + offset, 0, count - 1).astype(np.int64)
            np.add.at(matrix, (np.arange(wanted), taken), weights)
        return matrix
    stretch = max(scale, 1.0)
    weights = _cubic((np.arange(count) + 0.5 - places[:, None]) / stretch, _CUBIC_ANTIALIASED)
    scaled: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return scaled


def _cubic(x: NDArray[np.float64], slope: float) -> NDArray[np.float64]:
    """Return the cubic function of Keys, which is 0 from a distance of 2 on."""
    x = np.abs(x)
    near = ((slope + 2) * x - (slope + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * slope - 4 * slope
    return np.where(x <= 1, near, np.where(x < 2, far, 0))
