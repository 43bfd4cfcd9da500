"""The front end of texts: a row for each token, from a word table, positions, token types and a norm."""

import math
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...functions.arrays import widened
from ...layers.linear import Linear
from ..architecture.norms import NormConfig, in_dtype
from ..files.source import Matrix, Shapes, Tensors

# Tokenizers give the types 0, and 1 for the second text of a pair.
_MOST_TYPES = 2

# A damaged tokenizer.json can have any number for a token.
_OF_TEXTS = "tokenizer.json gives the tokens of texts, which must be less than vocab_size of config.json"

Tables = dict[str, Any]


class TokensConfig(NamedTuple):
    """The rows of tokens: ``norm(scale * words[token] + positions[place] + types[type])``."""

    vocab_size: int  # V
    embed_dim: int  # E
    max_positions: int | None  # P, the largest number of tokens of a text; None: any number
    trained_positions: int = 0  # rows of the table of positions from the first position on; the first P are read
    has_positions: bool = False
    # Without a table in the checkpoint positions are sines, then cosines, of wavelengths up to 20000 pi: "below" it, or
    # up to it, "inclusive", in the float32 of transformers and with zeros for padding. "": positions have a table.
    sines: str = ""
    first_position: int = 0  # the row of the table of positions of the first token
    padding: int | None = None  # the token that takes no place, and has the row before the first position
    token_types: int = 0  # rows of the table of types; 0: tokens have no types
    # The factor of words. The product is rounded to the dtype of the model. With `scales_first` words are scaled in
    # float32, before they are rounded to that dtype; with `rounds_scale` the scale is rounded, too.
    scale: float = 1.0
    scales_first: bool = False
    rounds_scale: bool = False
    norm: NormConfig | None = None
    table_dim: int | None = None  # the features of tables, if a linear map takes their rows to E features; None: E

    @property
    def width(self) -> int:
        """The features of the tables."""
        return self.embed_dim if self.table_dim is None else self.table_dim

    def built(self, tables: Mapping[str, Any]) -> "Tokens":
        """Return the front end with `tables`."""
        return Tokens(self, tables)


class TokensNames(NamedTuple):
    """The names of the tensors of `TokensConfig`. A family can lack all but the word table."""

    # The word table. In a model of several stacks each stack can have a copy; the first one counts, and the others must
    # be equal. A model of one stack reads the first name.
    words: tuple[str, ...] = ("embed_tokens.weight",)
    positions: str = ""
    token_types: str = ""
    norm: str = ""
    projection: str = ""

    def shapes(self, config: TokensConfig, present: Container[str]) -> Shapes:
        """Yield names and shapes of all tensors but the word table. `present` are names in the checkpoint."""
        if config.has_positions and (not config.sines or self.positions in present):
            yield self.positions, (config.first_position + config.trained_positions, config.width)
        if config.token_types:
            yield self.token_types, (config.token_types, config.width)
        if config.norm is not None:
            yield from config.norm.shapes(self.norm, config.width)
        if config.table_dim is not None:
            yield f"{self.projection}.weight", (config.embed_dim, config.table_dim)
            yield f"{self.projection}.bias", (config.embed_dim,)

    def read(self, config: TokensConfig, words: Matrix, tensors: Tensors, dtype: np.dtype[Any]) -> Tables:
        """Return the tables of `Tokens` in `dtype`, with `words` from `scaled_words`."""
        added = self._added(config, tensors)
        norm = {} if config.norm is None else config.norm.read(self.norm, tensors, dtype)
        tables = {"words": words} | {f"norm_{part}": numbers for part, numbers in norm.items()}
        if config.table_dim is not None:
            for part in ("weight", "bias"):
                tables[f"projection_{part}"] = in_dtype(tensors[f"{self.projection}.{part}"], dtype)
        return tables if added is None else tables | {"added": in_dtype(added, dtype)}

    def _added(self, config: TokensConfig, tensors: Tensors) -> NDArray[np.float32] | None:
        """Return the table [rows, E] that is added to words: positions for each type, or types, or zeros for a norm."""
        types = tensors[self.token_types][:_MOST_TYPES] if config.token_types else None
        if config.max_positions is None or not config.has_positions:
            nothing = None if config.norm is None else np.zeros((1, config.width), np.float32)
            return nothing if types is None else types
        if config.sines and self.positions not in tensors:
            return _sines(config, config.first_position + config.max_positions)
        positions = tensors[self.positions][: config.first_position + config.max_positions]
        return positions if types is None else (positions + types[:, None]).reshape(-1, config.width)


def _sines(config: TokensConfig, count: int) -> NDArray[np.float32]:
    """Return the positions 0 to `count` - 1, [count, W]."""
    if config.sines == "below":
        pairs = _core.sinusoidal_positions(count, config.width, 0, "float32")
        return np.concatenate([pairs[:, 0::2], pairs[:, 1::2]], axis=1)
    half = config.width // 2
    exponents = np.arange(half, dtype=np.float32) * np.float32(-math.log(10000) / max(half - 1, 1))
    frequencies = np.exp(exponents.astype(np.float64)).astype(np.float32)
    angles = (np.arange(count, dtype=np.float32)[:, None] * frequencies).astype(np.float64)
    result = np.zeros((count, config.width), np.float32)
    result[:, :half], result[:, half : 2 * half] = np.sin(angles), np.cos(angles)
    result[: config.first_position] = 0
    return result


def scaled_words(words: Any, config: TokensConfig, dtype: np.dtype[Any]) -> Any:
    """Return the word table [V, E] in `dtype`, scaled. With `scales_first` the argument is scaled in place.

    A table in blocks is returned as it is: `Tokens` scales the rows that it reads.
    """
    if not isinstance(words, np.ndarray):
        return words
    if config.scale == 1:
        return in_dtype(words, dtype)
    if config.scales_first:
        words *= np.float32(config.scale)
        return in_dtype(words, dtype)
    factor: Any = config.scale
    if config.rounds_scale:
        factor = widened(in_dtype(np.array([config.scale], np.float32), dtype))
    return in_dtype(widened(in_dtype(words, dtype)) * factor, dtype)


class Tokens:
    """Rows of tokens.

    `tables` are in the dtype of the model: ``words`` [V, W], where W is `TokensConfig.width`; and optionally ``added``
    (positions for each type one after another, or types), ``norm_weight`` [W], ``norm_bias`` [W], ``projection_weight``
    [E, W] and ``projection_bias`` [E]. In float32 and without a norm words may be in blocks: a `BlockMatrix`, or the
    `Linear` of a head that has the same matrix.
    """

    def __init__(self, config: TokensConfig, tables: Mapping[str, Any]) -> None:
        self.config, self.tables = config, dict(tables)
        self._projection: Linear | None = None
        if config.table_dim is not None:
            self._projection = Linear.from_weights(tables["projection_weight"], tables["projection_bias"])

    def matrices(self) -> list[Any]:
        """Return the largest tables: the word table."""
        return [self.tables["words"]]

    def astype(self, dtype: np.dtype[Any]) -> "Tokens":
        """Return the same front end in another dtype."""
        words = self.tables["words"]
        if isinstance(words, np.ndarray):
            words = in_dtype(words, dtype)
        elif dtype != np.float32:
            matrix: Any = words.state_dict()["weight"] if isinstance(words, Linear) else words
            words = scaled_words(matrix.dequantize(), self.config, dtype)
        others = {name: in_dtype(table, dtype) for name, table in self.tables.items() if name != "words"}
        return Tokens(self.config, {"words": words, **others})

    def __call__(
        self,
        tokens: NDArray[np.integer],
        cu_seqlens: NDArray[np.integer],
        num_threads: int | None,
        *,
        places: NDArray[np.integer] | None = None,
        token_types: NDArray[np.integer] | None = None,
    ) -> NDArray[Any]:
        """Return the rows [N, E] of the tokens [N] of all texts, one text after another, with offsets `cu_seqlens` [B +
        1].

        `places` [N] in the texts are taken without further checks; default: 0, 1, ... in each text. `token_types` [N]
        are 0, or 1 in the second text of a pair, and are ignored in a model without types; default: all 0.
        """
        rows = self._rows(tokens, cu_seqlens, num_threads, places, token_types)
        return rows if self._projection is None else self._projection(rows, num_threads=num_threads)

    def _rows(
        self,
        tokens: NDArray[np.integer],
        cu_seqlens: NDArray[np.integer],
        num_threads: int | None,
        places: NDArray[np.integer] | None,
        token_types: NDArray[np.integer] | None,
    ) -> NDArray[Any]:
        config, tables = self.config, self.tables
        types = self._checked_types(tokens, token_types) if config.token_types else None
        added: Any = tables.get("added")
        first = config.first_position
        if config.norm is None:
            if places is None:
                self._check_lengths(cu_seqlens)
                self._check_tokens(tokens)
            rows = self._words(tokens)
            if added is None:
                return rows
            if places is None and config.padding is not None:
                places = self._rows_of_places(tokens, cu_seqlens, None) - first
            elif places is None:
                places = np.arange(len(tokens)) - np.repeat(cu_seqlens[:-1], np.diff(cu_seqlens))
            elif config.padding is not None:
                places = np.where(tokens == config.padding, -1, places)
            summed: NDArray[Any] = in_dtype(widened(rows) + widened(added[first + places]), rows.dtype)
            return summed
        if not config.has_positions:
            self._check_lengths(cu_seqlens)
            places = np.zeros(len(tokens), np.int64) if types is None else types
        elif types is not None or (config.padding is not None and (tokens == config.padding).any()):
            places = self._rows_of_places(tokens, cu_seqlens, types)
        else:
            added = tables["added"][first : first + (config.max_positions or 0)]
        weight, bias = tables["norm_weight"], tables.get("norm_bias")
        try:
            return _core.embed_tokens(
                tokens, places, cu_seqlens, tables["words"], added, weight, bias, config.norm.eps, None, num_threads
            )
        except ValueError as error:
            if _first_outside(tokens, config.vocab_size) is None:
                raise
            raise ValueError(f"{error} ({_OF_TEXTS})") from error

    def _words(self, tokens: NDArray[np.integer]) -> NDArray[Any]:
        """Return the rows [N, E] of tokens in the word table, scaled."""
        words = self.tables["words"]
        if isinstance(words, np.ndarray):
            rows: NDArray[Any] = words[tokens]
            return rows
        taken = words._rows(tokens) if isinstance(words, Linear) else words.take(tokens)
        scaled: NDArray[Any] = scaled_words(taken, self.config, np.dtype(np.float32))
        return scaled

    def _check_tokens(self, tokens: NDArray[np.integer]) -> None:
        """Refuse tokens that the model lacks."""
        count = self.config.vocab_size
        if (wrong := _first_outside(tokens, count)) is not None:
            raise ValueError(
                f"tokens must be at least 0 and less than {count}; got {int(tokens[wrong])} at {wrong} ({_OF_TEXTS})"
            )

    def _check_lengths(self, cu_seqlens: NDArray[np.integer]) -> None:
        """Refuse texts with more tokens than the model has positions, in a model without a table of positions."""
        lengths, most = np.diff(cu_seqlens), self.config.max_positions
        if most is not None and len(lengths) and lengths.max() > most:
            raise ValueError(
                f"tokens: a text must have no more tokens than the model has positions, {most}, "
                f"and text {int(lengths.argmax())} has {int(lengths.max())}"
            )

    def _checked_types(
        self, tokens: NDArray[np.integer], token_types: NDArray[np.integer] | None
    ) -> NDArray[np.int64] | None:
        if token_types is None:
            return None
        if token_types.shape != tokens.shape:
            raise ValueError(f"token_types must be {list(tokens.shape)}, as tokens; got {list(token_types.shape)}")
        count = min(self.config.token_types, _MOST_TYPES)
        if (wrong := _first_outside(token_types, count)) is not None:
            number = int(token_types[wrong])
            raise ValueError(f"token_types must be at least 0 and less than {count}; got {number} at {wrong}")
        return token_types.astype(np.int64)

    def _rows_of_places(
        self, tokens: NDArray[np.integer], cu_seqlens: NDArray[np.integer], types: NDArray[np.int64] | None
    ) -> NDArray[np.int64]:
        """Return the row of each token in the table of positions, which holds one type after another."""
        config, most = self.config, self.config.max_positions or 0
        lengths = np.diff(cu_seqlens)
        takes_place = np.ones(len(tokens), np.int64)
        if config.padding is not None:
            takes_place[tokens == config.padding] = 0
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(takes_place)])
        in_text = before[1:] - np.repeat(before[cu_seqlens[:-1]], lengths)  # counted from 1
        places: NDArray[np.int64] = config.first_position - 1 + in_text * takes_place
        rows = config.first_position + most
        if len(places) and places.max() >= rows:
            raise ValueError(
                f"tokens: a text must have no more tokens than the model has positions, {most}; got {in_text.max()}"
            )
        return places if types is None else places + rows * types


def _first_outside(numbers: NDArray[np.integer], count: int) -> int | None:
    """Return the place of the first number that is not from 0 to ``count - 1``, or None."""
    if not len(numbers) or 0 <= numbers.min() <= numbers.max() < count:
        return None
    return int(np.argmax((numbers < 0) | (numbers >= count)))
