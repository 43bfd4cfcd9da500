"""A model of the BERT family: from the tokens of texts, one after another, to a vector for each token."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._bert_checkpoint import BertConfig

# attn_mask, key_mask, is_causal, query_offset, key_lengths, window, scale, softcap, alibi_slopes, sinks
_EVERY_TOKEN_SEES_ALL = (None, None, False, 0, None, None, None, None, None, None)


class Tensors(Protocol):
    """Weights by their names."""

    def __getitem__(self, name: str, /) -> NDArray[np.float32]: ...


class BertModel:
    """Embeddings and encoder layers.

    The table of words stays the array that `tensors` gives, the norm and the positions are small, and the core packs
    the rest.
    """

    def __init__(self, config: BertConfig, tensors: Tensors, weight_dtype: str = "float32") -> None:
        self.config = config
        self._words = tensors["embeddings.word_embeddings.weight"]
        # Every token is of type 0, so that its row is the same everywhere.
        token_type = tensors["embeddings.token_type_embeddings.weight"][0]
        self._positions = tensors["embeddings.position_embeddings.weight"] + token_type
        self._norm = tensors["embeddings.LayerNorm.weight"], tensors["embeddings.LayerNorm.bias"]
        self.weight_dtype = weight_dtype
        layers = [_layer(config, tensors, i, weight_dtype) for i in range(config.num_layers)]
        self._encoder = _core.Encoder(layers, None)

    def hidden_states(
        self, tokens: NDArray[np.integer], cu_seqlens: NDArray[np.integer], num_threads: int | None
    ) -> NDArray[np.float32]:
        """What the last layer gives: [N, E] for the N tokens of all texts."""
        x = self._embed(tokens, cu_seqlens, num_threads)
        self._encoder.forward(x, _EVERY_TOKEN_SEES_ALL, cu_seqlens, None, None, False, x, num_threads)
        return x

    def attention_weights(self, tokens: NDArray[np.integer], num_threads: int | None) -> NDArray[np.float32]:
        """Of one text, for each layer and head what every token attends to: [layers, H, T, T]."""
        x = self._embed(tokens, np.array([0, len(tokens)]), num_threads)
        _, weights = self._encoder.forward(x, _EVERY_TOKEN_SEES_ALL, None, None, None, True, None, num_threads)
        return np.stack(weights)

    def _embed(
        self, tokens: NDArray[np.integer], cu_seqlens: NDArray[np.integer], num_threads: int | None
    ) -> NDArray[np.float32]:
        x: NDArray[np.float32] = _core.embed_tokens(
            tokens, cu_seqlens, self._words, self._positions, *self._norm, self.config.eps, None, num_threads
        )
        return x


def _layer(config: BertConfig, tensors: Tensors, i: int, weight_dtype: str) -> _core.EncoderLayer:
    """Post-LN, as in the paper of the transformer."""

    def weight_and_bias(name: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return tensors[f"encoder.layer.{i}.{name}.weight"], tensors[f"encoder.layer.{i}.{name}.bias"]

    width, heads = config.embed_dim, config.num_heads
    q, q_bias = weight_and_bias("attention.self.query")
    k, k_bias = weight_and_bias("attention.self.key")
    v, v_bias = weight_and_bias("attention.self.value")
    out, out_bias = weight_and_bias("attention.output.dense")
    sizes = width, heads, heads, width // heads, width // heads, width, width, width
    weights = q, k, v, out, q_bias, k_bias, v_bias, out_bias
    no_added, no_scales = (None, None), (None, None, None, None)
    attention = _core.MultiHeadAttention(*sizes, *weights, *no_added, *no_scales, False, weight_dtype)
    up, down = weight_and_bias("intermediate.dense"), weight_and_bias("output.dense")
    feed_forward = _core.FeedForward(*up, *down, None, None, config.activation, weight_dtype)
    norm1 = _core.LayerNorm(*weight_and_bias("attention.output.LayerNorm"), config.eps)
    norm2 = _core.LayerNorm(*weight_and_bias("output.LayerNorm"), config.eps)
    return _core.EncoderLayer(attention, feed_forward, norm1, norm2, False)
