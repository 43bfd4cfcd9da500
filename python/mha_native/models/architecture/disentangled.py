"""Disentangled attention, as in DeBERTa: scores of rows with rows, and of rows with relative positions.

The score of query i and key j is ``scale * (q_i k_j + q_i K_p + k_j Q_p)``, where p is the row of the distance i - j in
a table of positions, and K and Q are the keys and queries of that table. The two products with the table are computed
for each row, laid out by distance in views, and added in a mask [H, T, T] for each text.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ...functions.arrays import widened
from ...functions.attention import attention_weights, scaled_dot_product_attention
from ...layers.feed_forward import FeedForward
from ...layers.linear import Linear
from ..files.source import Tensors
from .config import BlockConfig, RelativeConfig
from .norms import in_dtype, make_norm
from .tensor_names import StackNames

# Texts are read together up to so many rows: the two products take 25 MiB with 12 heads and 512 positions.
_MOST_ROWS = 512


def relative_rows(config: RelativeConfig, names: StackNames, tensors: Tensors) -> NDArray[np.float64]:
    """Return the table [2 span, E] of positions, after its norm, from which layers in every dtype make theirs."""
    rows: NDArray[np.float64] = tensors[names.relative].astype(np.float64)
    if config.norm is None:
        return rows
    norm = make_norm(config.norm, config.norm.read(names.relative_norm, tensors, rows.dtype), rows.dtype)
    return norm(rows)  # type: ignore[no-any-return]


def rows_of_distances(config: RelativeConfig, length: int) -> NDArray[np.int64]:
    """Return the row of each distance i - j of a text of `length` rows, from 1 - length to length - 1."""
    distances = np.arange(1 - length, length)
    if config.max_distance is not None:
        middle, far = config.span // 2, np.abs(distances)
        # Logarithms in float32, as in the definition.
        steps = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(middle))
        steps = steps / np.log(np.float32((config.max_distance - 1) / middle)) * np.float32(middle - 1)
        distances = np.where(far <= middle, distances, np.sign(distances) * (np.ceil(steps).astype(np.int64) + middle))
    return np.clip(distances + config.span, 0, 2 * config.span - 1)


class DisentangledLayer:
    """A post-LN layer of an encoder with disentangled attention. `positions` are from `relative_rows`."""

    def __init__(
        self, block: BlockConfig, config: RelativeConfig, parts: Mapping[str, Any], positions: NDArray[np.float64]
    ) -> None:
        self._block, self._config, self.parts, self._positions = block, config, dict(parts), positions
        width, heads, scale = block.embed_dim, block.num_heads, block.options["scale"]
        rows = in_dtype(positions, self.parts["out"].dtype)
        query, key, _ = np.split(widened(self.parts["qkv"](rows)), 3, axis=1)
        if "position_query" in self.parts:
            query = widened(self.parts["position_query"](rows))
        if "position_key" in self.parts:
            key = widened(self.parts["position_key"](rows))

        def maps(table: NDArray[Any]) -> list[Linear]:
            """Return a map for each head, from a row to its scaled products with the table [2 span, E]."""
            scaled = table.reshape(-1, heads, width // heads) * scale
            return [Linear.from_weights(np.ascontiguousarray(scaled[:, h])) for h in range(heads)]

        # Keys of later positions come first, so that the keys of a query are neighbours in memory.
        self._keys = maps(key[::-1]) if config.to_positions else None
        self._queries = maps(query) if config.from_positions else None

    def __reduce__(self) -> Any:
        return DisentangledLayer, (self._block, self._config, self.parts, self._positions)

    def astype(self, dtype: np.dtype[Any]) -> "DisentangledLayer":
        """Return the same layer in another dtype."""
        return self._with({name: part.astype(dtype) for name, part in self.parts.items()})

    def quantize(self, weight_dtype: Any) -> "DisentangledLayer":
        """Return the same layer with its matrices in another format."""
        return self._with({name: part.quantize(weight_dtype) for name, part in self.parts.items()})

    def _with(self, parts: Mapping[str, Any]) -> "DisentangledLayer":
        return DisentangledLayer(self._block, self._config, parts, self._positions)

    def heads(self, x: NDArray[Any], num_threads: int | None) -> NDArray[Any]:
        """Return queries, keys and values [3, H, N, D] of rows [N, E], in the dtype of scores."""
        projected = widened(self.parts["qkv"](x, num_threads=num_threads))
        return projected.reshape(len(x), 3, self._block.num_heads, -1).transpose(1, 2, 0, 3)

    def masks(
        self, query: NDArray[Any], key: NDArray[Any], ends: Iterable[int], num_threads: int | None
    ) -> Iterable[NDArray[Any]]:
        """Yield what is added to the scores [H, T, T] of each text, which `ends` in rows of `query` [H, N, D]."""
        to_rows = _products(self._keys, query, num_threads)
        from_rows = _products(self._queries, key, num_threads)
        begin = 0
        for end in ends:
            rows = rows_of_distances(self._config, end - begin)
            terms = []
            if to_rows is not None:  # the last row comes first
                terms.append(_by_distance(to_rows[:, begin:end], 2 * self._config.span - 1 - rows[::-1]))
            if from_rows is not None:
                terms.append(_by_distance(from_rows[:, begin:end], rows).swapaxes(1, 2))
            yield np.add(*terms, order="C") if len(terms) == 2 else np.ascontiguousarray(terms[0])
            begin = end

    def finish(self, x: NDArray[Any], heads: NDArray[Any], num_threads: int | None) -> NDArray[Any]:
        """Return the rows of the layer for its input `x` [N, E] and the results of its heads [N, E]."""
        read = self.parts["out"](in_dtype(heads, x.dtype), num_threads=num_threads)
        y = self.parts["norm1"](in_dtype(widened(x) + widened(read), x.dtype), num_threads=num_threads)
        fed = self.parts["feed_forward"](y, num_threads=num_threads)
        result: NDArray[Any] = self.parts["norm2"](
            in_dtype(widened(y) + widened(fed), x.dtype), num_threads=num_threads
        )
        return result


def make_disentangled(
    block: BlockConfig,
    config: RelativeConfig,
    weights: Mapping[str, Any],
    positions: NDArray[np.float64],
    dtype: np.dtype[Any],
    weight_dtype: str | None,
) -> DisentangledLayer:
    """Return the layer with these weights, as for `make_layer`; `positions` are from `relative_rows`."""
    formats: Any = {"dtype": dtype, "weight_dtype": weight_dtype}

    def linear(*names: str) -> Linear:
        matrix, bias = (np.concatenate([weights[f"{name}.{which}"] for name in names]) for which in ("weight", "bias"))
        return Linear.from_weights(matrix, bias, **formats)

    parts: dict[str, Any] = {"qkv": linear("query", "key", "value"), "out": linear("out")}
    parts |= {name: linear(name) for name in sorted(block.own_positions)}
    state = {
        f"{theirs}.{which}": weights[f"{name}.{which}"]
        for name, theirs in (("up", "linear1"), ("down", "linear2"))
        for which in ("weight", "bias")
    }
    parts["feed_forward"] = FeedForward.from_weights(state, activation=block.activation, **formats)
    for name in ("norm1", "norm2"):
        norm = {which: weights[f"{name}.{which}"] for which in ("weight", "bias")}
        parts[name] = make_norm(block.norm, norm, dtype)
    return DisentangledLayer(block, config, parts, positions)


class DisentangledEncoder:
    """Layers with disentangled attention, in the form of a `TransformerStack`."""

    layer_options, norm = None, None

    def __init__(self, layers: Iterable[DisentangledLayer]) -> None:
        self.layers = tuple(layers)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of rows."""
        dtype: np.dtype[Any] = self.layers[0].parts["out"].dtype
        return dtype

    @property
    def weight_dtype(self) -> str:
        """The format of the matrices."""
        return str(self.layers[0].parts["out"].weight_dtype)

    def forward(
        self, x: NDArray[Any], options: Any, extras: Mapping[str, Any], out: NDArray[Any], num_threads: int | None
    ) -> None:
        """Write the rows of whole texts [N, E] to `out`, as a stack of the core does."""
        for begin, ends in _groups(extras["cu_seqlens"]):
            rows = x[begin : begin + ends[-1]]
            for layer in self.layers:
                query, key, value = layer.heads(rows, num_threads)
                read, first = np.empty((len(rows), *query.shape[::2]), query.dtype), 0
                for end, mask in zip(ends, layer.masks(query, key, ends, num_threads), strict=True):
                    q, k, v = (part[:, first:end] for part in (query, key, value))
                    found = scaled_dot_product_attention(q, k, v, mask, num_threads=num_threads, **options)
                    read[first:end] = found.transpose(1, 0, 2)
                    first = end
                rows = layer.finish(rows, read.reshape(len(rows), -1), num_threads)
            out[begin : begin + ends[-1]] = rows

    def __call__(
        self, x: NDArray[Any], *, need_weights: bool, num_threads: int | None, **options: Any
    ) -> tuple[NDArray[Any], list[NDArray[Any]]]:
        """Return the rows [T, E] of one text, and the attention weights [H, T, T] of each layer."""
        weights = []
        for layer in self.layers:
            query, key, value = layer.heads(x, num_threads)
            (mask,) = layer.masks(query, key, [len(x)], num_threads)
            weights.append(attention_weights(query, key, mask, num_threads=num_threads, **options))
            found = scaled_dot_product_attention(query, key, value, mask, num_threads=num_threads, **options)
            x = layer.finish(x, found.transpose(1, 0, 2).reshape(len(x), -1), num_threads)
        return x, weights


def _groups(cu_seqlens: NDArray[np.integer]) -> Iterable[tuple[int, list[int]]]:
    """Yield groups of texts: the first row, and the end of each text after it."""
    begin, ends = 0, list[int]()
    for end in cu_seqlens[1:].tolist():
        if ends and end - begin > _MOST_ROWS:
            yield begin, ends
            begin, ends = begin + ends[-1], []
        if end > begin + (ends[-1] if ends else 0):
            ends.append(end - begin)
    if ends:
        yield begin, ends


def _products(maps: list[Linear] | None, rows: NDArray[Any], num_threads: int | None) -> NDArray[Any] | None:
    """Return the products [H, N, 2 span] of rows [H, N, D] with the table of each head."""
    if maps is None:
        return None
    result = np.empty((*rows.shape[:2], maps[0].out_features), rows.dtype)
    for head, of_head, out in zip(maps, rows, result, strict=True):
        head(np.ascontiguousarray(of_head), out=out, num_threads=num_threads)
    return result


def _by_distance(products: NDArray[Any], columns: NDArray[np.int64]) -> NDArray[Any]:
    """Return the view [H, T, T] of products [H, T, P] whose row i has the columns number T - 1 - i to 2 T - 2 - i."""
    length = products.shape[1]
    first = int(columns[0])
    if (np.diff(columns) != 1).any():
        products, first = np.take(products, columns, axis=2), 0
    heads, rows, step = products.strides
    return as_strided(
        products[:, :, first + length - 1 :],
        (len(products), length, length),
        (heads, rows - step, step),
        writeable=False,
    )
