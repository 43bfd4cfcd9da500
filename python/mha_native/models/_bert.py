"""Models of the BERT family: config.json, the tensors of a checkpoint, and the computation from tokens to vectors."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._arrays import widened
from .._dtypes import packed_state, unpacked_state
from .._messages import shown
from ..layers._layer_weights import Parts, Sizes
from ..layers.encoder import EncoderLayer
from ..layers.feed_forward import FeedForward
from ..layers.feed_forward import Sizes as FeedForwardSizes
from ..layers.layer_norm import LayerNorm
from ..layers.multi_head_attention import MultiHeadAttention
from ..layers.transformer import stack_of
from ._model_files import FUNCTION, read_choice, read_json, read_size

# Activations: the name in config.json, and the name in the core.
_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}

# Entries of config.json that change what a model computes, and are empty or absent in one that is computed here.
_NOT_COMPUTED = {
    "auto_map": "the model has code of its own",
    "quantization_config": "weights must be in float32, float16 or bfloat16",
    "pruned_heads": "every layer must have all its heads",
}


class BertConfig(NamedTuple):
    """What config.json says of the computation."""

    vocab_size: int  # V
    embed_dim: int  # E
    num_layers: int
    num_heads: int  # H
    feedforward_dim: int  # F
    max_positions: int  # P
    token_types: int
    activation: str  # its name in the core
    eps: float

    def tensor_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of all tensors that the model is made of."""
        width = self.embed_dim
        yield "embeddings.word_embeddings.weight", (self.vocab_size, width)
        yield "embeddings.position_embeddings.weight", (self.max_positions, width)
        yield "embeddings.token_type_embeddings.weight", (self.token_types, width)
        yield "embeddings.LayerNorm.weight", (width,)
        yield "embeddings.LayerNorm.bias", (width,)
        for i in range(self.num_layers):
            for name, out_features, in_features in (
                ("attention.self.query", width, width),
                ("attention.self.key", width, width),
                ("attention.self.value", width, width),
                ("attention.output.dense", width, width),
                ("intermediate.dense", self.feedforward_dim, width),
                ("output.dense", width, self.feedforward_dim),
            ):
                yield f"encoder.layer.{i}.{name}.weight", (out_features, in_features)
                yield f"encoder.layer.{i}.{name}.bias", (out_features,)
            for name in ("attention.output.LayerNorm", "output.LayerNorm"):
                yield f"encoder.layer.{i}.{name}.weight", (width,)
                yield f"encoder.layer.{i}.{name}.bias", (width,)


def read_config(path: Path) -> BertConfig:
    """The sizes in config.json, which has no adapter beside it.

    Raises
    ------
    ValueError
        If the model is of another kind, or computes what is not computed here.
    """
    values = read_json(path, dict)
    if (adapter := path.with_name("adapter_config.json")).exists():
        raise ValueError(f"{FUNCTION}: {adapter} changes the weights; merge the adapter into the model, and save that")
    read_choice(path, values, "model_type", None, "bert")
    read_choice(path, values, "position_embedding_type", "absolute", "absolute")
    read_choice(path, values, "is_decoder", False, False)
    read_choice(path, values, "add_cross_attention", False, False)
    for name, what in _NOT_COMPUTED.items():
        if values.get(name):
            raise ValueError(f"{FUNCTION}: {path}: {name} must be absent, since {what}; got {shown(values[name])}")
    activation = _ACTIVATIONS[read_choice(path, values, "hidden_act", "gelu", *_ACTIVATIONS)]
    eps = values.get("layer_norm_eps", 1e-12)  # the default of the family
    if type(eps) is not float or not 0 < eps < math.inf:
        raise ValueError(f"{FUNCTION}: {path}: layer_norm_eps must be a positive number; got {shown(eps)}")
    config = BertConfig(
        vocab_size=read_size(path, values, "vocab_size"),
        embed_dim=read_size(path, values, "hidden_size"),
        num_layers=read_size(path, values, "num_hidden_layers"),
        num_heads=read_size(path, values, "num_attention_heads"),
        feedforward_dim=read_size(path, values, "intermediate_size"),
        max_positions=read_size(path, values, "max_position_embeddings"),
        token_types=read_size(path, values, "type_vocab_size", 2),
        activation=activation,
        eps=eps,
    )
    if config.embed_dim % config.num_heads:
        raise ValueError(
            f"{FUNCTION}: {path}: hidden_size must be a multiple of num_attention_heads; "
            f"got {config.embed_dim} and {config.num_heads}"
        )
    return config


class Tensors(Protocol):
    """Tensors of a checkpoint by their names."""

    def __getitem__(self, name: str, /) -> NDArray[np.float32]: ...


class BertModel:
    """Embeddings and encoder layers.

    In float32 the table of words stays the array that `tensors` gives. The norm and the positions are small, and the
    core packs the rest.
    """

    def __init__(self, config: BertConfig, tensors: Tensors, dtype: np.dtype[Any], weight_dtype: str) -> None:
        # Every token is of type 0: its row is added to the positions once.
        token_type = tensors["embeddings.token_type_embeddings.weight"][0]
        tables = {
            "words": tensors["embeddings.word_embeddings.weight"],
            "positions": tensors["embeddings.position_embeddings.weight"] + token_type,
            "norm_weight": tensors["embeddings.LayerNorm.weight"],
            "norm_bias": tensors["embeddings.LayerNorm.bias"],
        }
        self._set_state(
            config,
            {name: _in_dtype(numbers, dtype) for name, numbers in tables.items()},
            [_layer(config, tensors, i, dtype, weight_dtype) for i in range(config.num_layers)],
        )

    def astype(self, dtype: np.dtype[Any]) -> "BertModel":
        """The same model in another dtype."""
        model = BertModel.__new__(BertModel)
        tables = {name: _in_dtype(table, dtype) for name, table in self._tables.items()}
        model._set_state(self.config, tables, [layer.astype(dtype) for layer in self._layers])
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
        self, tokens: NDArray[np.integer], cu_seqlens: NDArray[np.integer], num_threads: int | None
    ) -> NDArray[Any]:
        """The vectors [N, E] that the last layer gives, for the N tokens of all texts."""
        x = self._embed(tokens, cu_seqlens, num_threads)
        self._encoder.forward(x, {}, {"cu_seqlens": cu_seqlens}, x, num_threads)
        return x

    def attention_weights(self, tokens: NDArray[np.integer], num_threads: int | None) -> NDArray[Any]:
        """The attention weights of one text in every layer and head: [layers, H, T, T]."""
        x = self._embed(tokens, np.array([0, len(tokens)]), num_threads)
        _, weights = self._encoder.forward(x, {}, {"need_weights": True}, None, num_threads)
        return np.stack([widened(of_layer) for of_layer in weights])

    def _embed(
        self, tokens: NDArray[np.integer], cu_seqlens: NDArray[np.integer], num_threads: int | None
    ) -> NDArray[Any]:
        tables = self._tables
        return _core.embed_tokens(
            tokens,
            None,
            cu_seqlens,
            tables["words"],
            tables["positions"],
            tables["norm_weight"],
            tables["norm_bias"],
            self.config.eps,
            None,
            num_threads,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config, "tables": packed_state(self._tables), "layers": self._layers}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self._set_state(saved["config"], unpacked_state(saved["tables"]), saved["layers"])

    def _set_state(self, config: BertConfig, tables: dict[str, NDArray[Any]], layers: list[EncoderLayer]) -> None:
        self.config = config
        self._tables = tables
        self._layers = layers
        self._encoder = stack_of("Encoder", layers, None)


def _in_dtype(numbers: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """`numbers` themselves if they are in `dtype`, else rounded to it."""
    return numbers if _core.dtype_name(numbers.dtype) == _core.dtype_name(dtype) else _core.convert(numbers, dtype)


def _layer(config: BertConfig, tensors: Tensors, i: int, dtype: np.dtype[Any], weight_dtype: str) -> EncoderLayer:
    """Encoder layer `i`, with its norms behind the residual additions (post-LN)."""

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
