"""The computation of a text encoder of any family: tokens to vectors, by embeddings and encoder layers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._arrays import widened
from .._dtypes import packed_state, unpacked_state
from .._options import ScoreOptions
from ..layers._layer_options import in_dtype_of_scores
from ..layers.encoder import EncoderLayer
from ..layers.transformer import stack_of
from ._block_names import Tensors
from ._blocks import in_dtype, make_layer
from .families import TextConfig

# The types of tokens that tokenizers give: 0, and 1 for the second text of a pair.
_MOST_TYPES = 2


class TextEncoder:
    """Embeddings and encoder layers.

    In float32 the table of words stays the array that `tensors` gives. The norm and the positions are small, and the
    core packs the rest.

    Parameters
    ----------
    config : TextConfig
    tensors
        Those of `config.tensor_shapes`, by their names.
    dtype : dtype
        What is computed in.
    weight_dtype : str
        What the matrices of the layers are stored as.
    """

    def __init__(self, config: TextConfig, tensors: Tensors, dtype: np.dtype[Any], weight_dtype: str) -> None:
        names = config.family.names
        positions = tensors[names.positions]
        if config.token_types:  # the sums with each type, one table below the other
            types = tensors[names.token_types][:_MOST_TYPES]
            positions = (positions + types[:, None]).reshape(-1, config.embed_dim)
        tables = {
            "words": tensors[names.words],
            "positions": positions,
            "norm_weight": tensors[f"{names.norm}.weight"],
            "norm_bias": tensors[f"{names.norm}.bias"],
        }
        self._set_state(
            config,
            {name: in_dtype(numbers, dtype) for name, numbers in tables.items()},
            [
                make_layer(config.block, names.blocks.read(config.block, i, tensors, dtype), dtype, weight_dtype)
                for i in range(config.num_layers)
            ],
            config.family.options(tensors),
        )

    def astype(self, dtype: np.dtype[Any]) -> "TextEncoder":
        """The same model in another dtype."""
        model = TextEncoder.__new__(TextEncoder)
        tables = {name: in_dtype(table, dtype) for name, table in self._tables.items()}
        model._set_state(self.config, tables, [layer.astype(dtype) for layer in self._layers], self._options)
        return model

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the tables, the layers, and the vectors of tokens."""
        return self._layers[0].dtype

    @property
    def weight_dtype(self) -> str:
        """What the matrices of the layers are stored as, by name."""
        return self._layers[0].weight_dtype

    def hidden_states(
        self,
        tokens: NDArray[np.integer],
        cu_seqlens: NDArray[np.integer],
        num_threads: int | None,
        token_types: NDArray[np.integer] | None = None,
    ) -> NDArray[Any]:
        """The vectors that the last layer gives.

        Parameters
        ----------
        tokens : [N]
            Of all texts.
        cu_seqlens : [B + 1]
            Where the tokens of each text begin and end.
        token_types : [N], optional
            Of each token 0, or 1 in the second text of a pair; of no effect in a family without types. Default: all 0.

        Returns
        -------
        x : [N, E]
        """
        x = self._embed(tokens, cu_seqlens, num_threads, token_types)
        self._encoder.forward(x, self._options, {"cu_seqlens": cu_seqlens}, x, num_threads)
        return x

    def attention_weights(self, tokens: NDArray[np.integer], num_threads: int | None) -> NDArray[Any]:
        """The attention weights of one text in every layer and head: [layers, H, T, T]."""
        x = self._embed(tokens, np.array([0, len(tokens)]), num_threads, None)
        _, weights = self._encoder.forward(x, self._options, {"need_weights": True}, None, num_threads)
        return np.stack([widened(of_layer) for of_layer in weights])

    def _embed(
        self,
        tokens: NDArray[np.integer],
        cu_seqlens: NDArray[np.integer],
        num_threads: int | None,
        token_types: NDArray[np.integer] | None,
    ) -> NDArray[Any]:
        tables, config = self._tables, self.config
        first, places = config.first_position, None
        positions = tables["positions"][first : first + config.max_positions]
        has_padding = config.padding is not None and (tokens == config.padding).any()
        if has_padding or (token_types is not None and config.token_types):
            positions, places = tables["positions"], self._places(tokens, cu_seqlens, token_types)
        return _core.embed_tokens(
            tokens,
            places,
            cu_seqlens,
            tables["words"],
            positions,
            tables["norm_weight"],
            tables["norm_bias"],
            config.eps,
            None,
            num_threads,
        )

    def _places(
        self, tokens: NDArray[np.integer], cu_seqlens: NDArray[np.integer], token_types: NDArray[np.integer] | None
    ) -> NDArray[np.int64]:
        """The row of each token in the table of positions: those of a type lie behind those of the type before it."""
        config = self.config
        lengths = np.diff(cu_seqlens)
        takes_place = np.ones(len(tokens), np.int64)
        if config.padding is not None:
            takes_place[tokens == config.padding] = 0
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(takes_place)])
        in_text = before[1:] - np.repeat(before[cu_seqlens[:-1]], lengths)  # counted from 1
        places: NDArray[np.int64] = config.first_position - 1 + in_text * takes_place
        rows = config.first_position + config.max_positions
        if len(places) and places.max() >= rows:
            raise ValueError(
                f"tokens: a text must have no more tokens than the model has positions, {config.max_positions}; "
                f"got {in_text.max()}"
            )
        if token_types is None or not config.token_types:
            return places
        types = min(config.token_types, _MOST_TYPES)
        if token_types.shape != tokens.shape:
            raise ValueError(f"token_types must be {list(tokens.shape)}, as tokens; got {list(token_types.shape)}")
        if len(token_types) and not 0 <= token_types.min() <= token_types.max() < types:
            wrong = int(np.argmax((token_types < 0) | (token_types >= types)))
            raise ValueError(
                f"token_types must be at least 0 and less than {types}; got {int(token_types[wrong])} at {wrong}"
            )
        places += rows * token_types.astype(np.int64)
        return places

    def __getstate__(self) -> dict[str, Any]:
        return {
            "config": self.config,
            "tables": packed_state(self._tables),
            "layers": self._layers,
            "options": self._options,
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self._set_state(saved["config"], unpacked_state(saved["tables"]), saved["layers"], saved["options"])

    def _set_state(
        self,
        config: TextConfig,
        tables: dict[str, NDArray[Any]],
        layers: list[EncoderLayer],
        options: ScoreOptions,
    ) -> None:
        self.config = config
        self._tables = tables
        self._layers = layers
        self._options = in_dtype_of_scores(options, self.dtype)  # in every layer
        self._encoder = stack_of("Encoder", layers, None)
