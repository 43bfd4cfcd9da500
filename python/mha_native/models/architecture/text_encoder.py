"""The computation of a text encoder of any family: tokens to vectors, by embeddings and encoder layers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...functions.arrays import widened
from ...functions.dtypes import packed_state, unpacked_state
from ...functions.instances import bare
from ...functions.options import ScoreOptions
from ...layers._layer_options import in_dtype_of_scores
from ...layers.encoder import EncoderLayer
from ...layers.multi_head_attention import MultiHeadAttention
from ...layers.rotary_embedding import RotaryEmbedding
from ...layers.transformer import stack_of
from ..families import TextConfig
from .build import BlockConfig, in_dtype, make_layer, make_norm, rotary_tables
from .rotary import RotaryConfig
from .tensor_names import Tensors

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
        names, turns, layers = config.family.names.blocks, rotary_tables(config.blocks, dtype), []
        for i in range(config.num_layers):
            block = config.block(i)
            layers.append(make_layer(block, names.read(block, i, tensors, dtype), turns, dtype, weight_dtype))
        tables = {name: in_dtype(numbers, dtype) for name, numbers in _tables(config, tensors).items()}
        self._set_state(
            config,
            tables,
            layers,
            _final_norm(config, tensors, dtype),
            config.family.options(tensors, config.further_sizes),
        )

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return self.config.num_layers

    @property
    def num_heads(self) -> int:
        """H, the heads of each layer."""
        return self.config.num_heads

    def quantize(self, weight_dtype: str) -> "TextEncoder":
        """The same model with the matrices of its layers in another format."""
        model = TextEncoder.__new__(TextEncoder)
        layers = [layer.quantize(weight_dtype) for layer in self._layers]
        model._set_state(self.config, self._tables, layers, self._final_norm, self._options)
        return model

    def astype(self, dtype: np.dtype[Any]) -> "TextEncoder":
        """The same model in another dtype."""
        model = bare(TextEncoder)
        tables = {name: in_dtype(table, dtype) for name, table in self._tables.items()}
        layers = [layer.astype(dtype) for layer in self._layers]
        if dtype == np.float64:  # a table of float32 is less than one that is made in float64
            turns = rotary_tables(self.config.blocks, dtype)
            for i, layer in enumerate(layers):
                layer.self_attn = _turned_by(layer.self_attn, turns, self.config.block(i))
        final_norm = None if self._final_norm is None else self._final_norm.astype(dtype)
        model._set_state(self.config, tables, layers, final_norm, self._options)
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
        self._forward(x, {"cu_seqlens": cu_seqlens}, x, num_threads)
        return x

    def attention_weights(self, tokens: NDArray[np.integer], num_threads: int | None) -> NDArray[Any]:
        """The attention weights of one text in every layer and head: [layers, H, T, T]."""
        x = self._embed(tokens, np.array([0, len(tokens)]), num_threads, None)
        _, weights = self._forward(x, {"need_weights": True}, None, num_threads)
        return np.stack([widened(of_layer) for of_layer in weights])

    def _forward(
        self, x: NDArray[Any], extras: dict[str, Any], out: NDArray[Any] | None, num_threads: int | None
    ) -> Any:
        """What the core makes of the embeddings `x`."""
        options = self._options
        if self._layer_options is not None:
            options, extras = {}, extras | {"layer_options": self._layer_options}
        return self._encoder.forward(x, options, extras, out, num_threads)

    def _embed(
        self,
        tokens: NDArray[np.integer],
        cu_seqlens: NDArray[np.integer],
        num_threads: int | None,
        token_types: NDArray[np.integer] | None,
    ) -> NDArray[Any]:
        tables, config = self._tables, self.config
        token_types = self._checked_types(tokens, token_types) if config.token_types else None
        if config.norm is None:
            self._check_lengths(cu_seqlens)
            return self._words_of(tokens)
        if config.family.names.positions is None:
            self._check_lengths(cu_seqlens)
            added = tables["added"]
            places = np.zeros(len(tokens), np.int64) if token_types is None else token_types
        else:
            first, places = config.first_position, None
            added = tables["added"][first : first + config.max_positions]
            has_padding = config.padding is not None and (tokens == config.padding).any()
            if has_padding or token_types is not None:
                added, places = tables["added"], self._places(tokens, cu_seqlens, token_types)
        return _core.embed_tokens(
            tokens,
            places,
            cu_seqlens,
            tables["words"],
            added,
            tables["norm_weight"],
            tables.get("norm_bias"),
            config.norm.eps,
            None,
            num_threads,
        )

    def _words_of(self, tokens: NDArray[np.integer]) -> NDArray[Any]:
        """The rows of the table of words, of a family that norms no embeddings."""
        words = self._tables["words"]
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < len(words):
            wrong = int(np.argmax((tokens < 0) | (tokens >= len(words))))
            raise ValueError(
                f"tokens must be at least 0 and less than {len(words)}; got {int(tokens[wrong])} at {wrong}"
            )
        rows: NDArray[Any] = words[tokens]
        return rows

    def _check_lengths(self, cu_seqlens: NDArray[np.integer]) -> None:
        """ValueError for a text with more tokens than there are positions, of a family without a table of them."""
        lengths = np.diff(cu_seqlens)
        if len(lengths) and lengths.max() > self.config.max_positions:
            raise ValueError(
                f"tokens: a text must have no more tokens than the model has positions, {self.config.max_positions}, "
                f"and text {int(lengths.argmax())} has {int(lengths.max())}"
            )

    def _checked_types(
        self, tokens: NDArray[np.integer], token_types: NDArray[np.integer] | None
    ) -> NDArray[np.int64] | None:
        if token_types is None:
            return None
        types = min(self.config.token_types, _MOST_TYPES)
        if token_types.shape != tokens.shape:
            raise ValueError(f"token_types must be {list(tokens.shape)}, as tokens; got {list(token_types.shape)}")
        if len(token_types) and not 0 <= token_types.min() <= token_types.max() < types:
            wrong = int(np.argmax((token_types < 0) | (token_types >= types)))
            raise ValueError(
                f"token_types must be at least 0 and less than {types}; got {int(token_types[wrong])} at {wrong}"
            )
        return token_types.astype(np.int64)

    def _places(
        self, tokens: NDArray[np.integer], cu_seqlens: NDArray[np.integer], token_types: NDArray[np.int64] | None
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
        return places if token_types is None else places + rows * token_types

    def __getstate__(self) -> dict[str, Any]:
        return {
            "config": self.config,
            "tables": packed_state(self._tables),
            "layers": self._layers,
            "final_norm": self._final_norm,
            "options": self._options,
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        tables = unpacked_state(saved["tables"])
        self._set_state(saved["config"], tables, saved["layers"], saved["final_norm"], saved["options"])

    def _set_state(
        self,
        config: TextConfig,
        tables: dict[str, NDArray[Any]],
        layers: list[EncoderLayer],
        final_norm: Any,
        options: ScoreOptions,
    ) -> None:
        self.config = config
        self._tables = tables
        self._layers = layers
        self._final_norm = final_norm
        self._options = in_dtype_of_scores(options, self.dtype)  # in every layer
        if config.is_causal:
            self._options["is_causal"] = True
        own = [config.block(i).options for i in range(config.num_layers)]
        self._layer_options = [self._options | options for options in own] if any(own) else None
        self._encoder = stack_of("Encoder", layers, final_norm)


def _tables(config: TextConfig, tensors: Tensors) -> dict[str, NDArray[np.float32]]:
    """The table of words, and what is added to its rows with the norm behind that, if there is one."""
    names = config.family.names
    words = tensors[names.words]
    if config.embedding_scale != 1:
        words *= np.float32(config.embedding_scale)
    if config.norm is None:
        return {"words": words}
    types = tensors[names.token_types][:_MOST_TYPES] if names.token_types and config.token_types else None
    if names.positions is None:  # a row for each type, or nothing
        added = np.zeros((1, config.embed_dim), np.float32) if types is None else types
    else:
        added = tensors[names.positions]
        if types is not None:  # the sums with each type, one table below the other
            added = (added + types[:, None]).reshape(-1, config.embed_dim)
    tables = {"words": words, "added": added, "norm_weight": tensors[f"{names.norm}.weight"]}
    return tables | ({"norm_bias": tensors[f"{names.norm}.bias"]} if config.norm.bias else {})


def _turned_by(
    layer: MultiHeadAttention, turns: Mapping[RotaryConfig, RotaryEmbedding], block: BlockConfig
) -> MultiHeadAttention:
    """The same layer with the table of `block`, if it has one."""
    if block.rotary is None:
        return layer
    return MultiHeadAttention.from_weights(
        layer.state_dict(),
        layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        qk_norm=layer.qk_norm,
        qk_norm_eps=layer.qk_norm_eps,
        rotary=turns[block.rotary],
        dtype=layer.dtype,
        weight_dtype=layer.weight_dtype,
    )


def _final_norm(config: TextConfig, tensors: Tensors, dtype: np.dtype[Any]) -> Any:
    """The norm behind the last layer, if there is one."""
    if config.final_norm is None:
        return None
    name, ends = config.family.names.final_norm, ["weight"] + ["bias"] * config.final_norm.bias
    return make_norm(config.final_norm, {end: in_dtype(tensors[f"{name}.{end}"], dtype) for end in ends}, dtype)
