"""A model of the BERT family: from the tokens of texts, one after another, to a vector for each token."""

import copy
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._arrays import widened
from ._bert_checkpoint import BertConfig
from ._layer_weights import Parts, Sizes
from .encoder_layer import EncoderLayer, stack_of
from .feed_forward import FeedForward
from .feed_forward import Sizes as FeedForwardSizes
from .layer_norm import LayerNorm
from .multi_head_attention import MultiHeadAttention

# attn_mask, key_mask, is_causal, query_offset, key_lengths, window, scale, softcap, alibi_slopes, sinks
_EVERY_TOKEN_SEES_ALL = (None, None, False, 0, None, None, None, None, None, None)


class Tensors(Protocol):
    """Weights by their names."""

    def __getitem__(self, name: str, /) -> NDArray[np.float32]: ...


class BertModel:
    """Embeddings and encoder layers.

    In float32 the table of words stays the array that `tensors` gives. The norm and the positions are small, and the
    core packs the rest.
    """

    def __init__(self, config: BertConfig, tensors: Tensors, dtype: np.dtype[Any], weight_dtype: str) -> None:
        self.config = config
        # Every token is of type 0, so that its row is the same everywhere.
        token_type = tensors["embeddings.token_type_embeddings.weight"][0]
        self._tables = [
            _in_dtype(numbers, dtype)
            for numbers in (
                tensors["embeddings.word_embeddings.weight"],
                tensors["embeddings.position_embeddings.weight"] + token_type,
                tensors["embeddings.LayerNorm.weight"],
                tensors["embeddings.LayerNorm.bias"],
            )
        ]
        self._layers = [_layer(config, tensors, i, dtype, weight_dtype) for i in range(config.num_layers)]
        self._encoder = stack_of(self._layers, None)

    def astype(self, dtype: np.dtype[Any]) -> "BertModel":
        """The same in another dtype."""
        model = copy.copy(self)
        model._tables = [_in_dtype(table, dtype) for table in self._tables]
        model._layers = [layer.astype(dtype) for layer in self._layers]
        model._encoder = stack_of(model._layers, None)
        return model

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the tables, the layers, and the vectors of tokens."""
        return self._layers[0].dtype

    @property
    def weight_dtype(self) -> str:
        """What the matrices of the layers are stored as."""
        return self._layers[0].weight_dtype

    def hidden_states(
        self, tokens: NDArray[np.integer], cu_seqlens: NDArray[np.integer], num_threads: int | None
    ) -> NDArray[Any]:
        """What the last layer gives: [N, E] for the N tokens of all texts."""
        x = self._embed(tokens, cu_seqlens, num_threads)
        self._encoder.forward(x, _EVERY_TOKEN_SEES_ALL, cu_seqlens, None, None, False, x, num_threads)
        return x

    def attention_weights(self, tokens: NDArray[np.integer], num_threads: int | None) -> NDArray[Any]:
        """Of one text, for each layer and head what every token attends to: [layers, H, T, T]."""
        x = self._embed(tokens, np.array([0, len(tokens)]), num_threads)
        _, weights = self._encoder.forward(x, _EVERY_TOKEN_SEES_ALL, None, None, None, True, None, num_threads)
        return np.stack([widened(of_layer) for of_layer in weights])

    def _embed(
        self, tokens: NDArray[np.integer], cu_seqlens: NDArray[np.integer], num_threads: int | None
    ) -> NDArray[Any]:
        words, positions, weight, bias = self._tables
        return _core.embed_tokens(
            tokens, cu_seqlens, words, positions, weight, bias, self.config.eps, None, num_threads
        )


def _in_dtype(numbers: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """`numbers` themselves if they are in `dtype`, else rounded to it."""
    return numbers if _core.dtype_name(numbers.dtype) == _core.dtype_name(dtype) else _core.convert(numbers, dtype)


def _layer(config: BertConfig, tensors: Tensors, i: int, dtype: np.dtype[Any], weight_dtype: str) -> EncoderLayer:
    """Post-LN, as in the paper of the transformer."""

    def weights(**names: str) -> dict[str, NDArray[Any]]:
        return {
            ours + end: _in_dtype(tensors[f"encoder.layer.{i}.{theirs}{end}"], dtype)
            for ours, theirs in names.items()
            for end in (".weight", ".bias")
        }

    def norm(name: str) -> LayerNorm:
        result = LayerNorm.__new__(LayerNorm)
        result._set_state(
            config.eps, dtype, {which.removeprefix("norm."): x for which, x in weights(norm=name).items()}
        )
        return result

    width, heads = config.embed_dim, config.num_heads
    projections = weights(q="attention.self.query", k="attention.self.key", v="attention.self.value")
    state = {f"{letter}_proj_weight": projections[f"{letter}.weight"] for letter in "qkv"}
    state["in_proj_bias"] = np.concatenate([projections[f"{letter}.bias"] for letter in "qkv"])
    state |= weights(out_proj="attention.output.dense")
    layer = EncoderLayer.__new__(EncoderLayer)
    layer.self_attn = MultiHeadAttention.__new__(MultiHeadAttention)
    sizes = Sizes(width, heads, heads, width // heads, width // heads, width, width, width)
    layer.self_attn._set_state(sizes, Parts(True, False, False), dtype, weight_dtype, state)
    layer.feed_forward = FeedForward.__new__(FeedForward)
    layer.feed_forward._set_state(
        FeedForwardSizes(width, config.feedforward_dim, config.activation, True),
        dtype,
        weight_dtype,
        weights(linear1="intermediate.dense", linear2="output.dense"),
    )
    layer.norm1, layer.norm2 = norm("attention.output.LayerNorm"), norm("output.LayerNorm")
    layer.norm_first = False
    return layer
