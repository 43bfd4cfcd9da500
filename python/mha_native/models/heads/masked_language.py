"""The heads of masked language models, and one sparse vector for a text from their logits.

A logit for each token of a text and each token of the vocabulary would take 4 V bytes a token, 250 MB for 2,048 tokens
and BERT's 30,522 words. The columns are computed some at a time, and pooled over the tokens of each text before the
next ones.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...functions.arrays import widened
from ...layers.linear import Linear
from ..architecture.family import UNGATED_WITH_SILU
from ..architecture.norms import NormConfig, make_norm
from ..architecture.open import OpenModel
from ..files.entries import Entries
from ..files.source import Shapes, Tensors

# Columns of logits that are computed at once: 8 MiB for the tokens of a batch, which stay in the third-level cache
# until they are pooled.
_COLUMNS = 1024

_FLOAT32 = np.dtype(np.float32)


class _Names(NamedTuple):
    dense: str  # prefixes of tensors
    norm: str
    decoder: str  # the linear map to logits: its matrix is the word table, or has the name of its own
    bias: str  # the bias of logits, if the matrix is the word table; else the decoder has its own


_OF_ROBERTA = _Names("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias")

# By the prefix of the family, and for ModernBERT, whose prefix others have, by its model_type.
_HEADS = {
    "bert.": _Names(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.decoder",
        "cls.predictions.bias",
    ),
    "distilbert.": _Names("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"),
    "roberta.": _OF_ROBERTA,
    "mpnet.": _OF_ROBERTA,
    "modernbert": _Names("head.dense", "head.norm", "decoder", "decoder.bias"),
}


class MaskedHeadConfig(NamedTuple):
    """The parts of a head: ``decoder(norm(activation(dense(row)))) + bias``."""

    dense: str  # as in `_Names`
    norm_name: str
    matrix: str  # the matrix of the decoder, the word table or its own
    bias: str  # its bias; "": none
    embed_dim: int  # E
    vocab_size: int  # V
    activation: str  # as for `mha_native.activation`
    dense_bias: bool
    norm: NormConfig

    def tensor_shapes(self) -> Shapes:
        """Yield names and shapes of its tensors."""
        width = self.embed_dim
        yield f"{self.dense}.weight", (width, width)
        if self.dense_bias:
            yield f"{self.dense}.bias", (width,)
        yield from self.norm.shapes(self.norm_name, width)
        yield self.matrix, (self.vocab_size, width)
        if self.bias:
            yield self.bias, (self.vocab_size,)


def masked_head_of(opened: OpenModel) -> MaskedHeadConfig:
    """Return the head of a model.

    Raises ValueError if the family has no supported head, or if config.json asks for an unsupported feature.
    """
    family, source = opened.family, opened.source
    entries = Entries(source.path, source.config)
    kind = family.model_types[0]
    names = _HEADS.get(kind) or _HEADS.get(family.prefix)
    front_end, block = opened.config.stacks[0].front_end, opened.config.stacks[0].blocks[0]
    if names is None or front_end.table_dim is not None:
        raise ValueError(f"{source.path}: model_type must be of a family with masked language models; got {kind!r}")
    activation, dense_bias, has_bias = block.activation, True, True
    if kind == "modernbert":
        name = entries.choice("classifier_activation", *UNGATED_WITH_SILU, default="gelu")
        activation, _ = UNGATED_WITH_SILU[name]
        dense_bias, has_bias = entries.flag("classifier_bias"), entries.flag("decoder_bias", True)
    elif names is _OF_ROBERTA:
        activation = "gelu"
    matrix, bias = family.stacks[0].front_end.words[0], names.bias
    if not entries.flag("tie_word_embeddings", True):
        matrix, bias = f"{names.decoder}.weight", f"{names.decoder}.bias"
    sizes = opened.config.embed_dim, opened.config.vocab_size
    bias = bias if has_bias else ""
    return MaskedHeadConfig(names.dense, names.norm, matrix, bias, *sizes, activation, dense_bias, block.norm)


class SparsePooling(NamedTuple):
    """How the logits of the tokens of a text become one vector."""

    mode: str = "max"  # or "sum", over tokens
    is_twice: bool = False  # whether numbers are ``log(1 + log(1 + relu(x)))``, not ``log(1 + relu(x))``

    def saturated(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Replace logits by their positive numbers, in place."""
        np.maximum(logits, 0, out=logits)
        for _ in range(1 + self.is_twice):
            np.log1p(logits, out=logits)
        return logits


class MaskedHead:
    """A head and its pooling, with weights that are always in float32."""

    def __init__(self, config: MaskedHeadConfig, tensors: Tensors, pooling: SparsePooling) -> None:
        self._pooling = pooling
        dense_bias = tensors[f"{config.dense}.bias"] if config.dense_bias else None
        self._dense = Linear.from_weights(tensors[f"{config.dense}.weight"], dense_bias)
        self._activation = config.activation
        self._norm = make_norm(config.norm, config.norm.read(config.norm_name, tensors, _FLOAT32), _FLOAT32)
        matrix = tensors[config.matrix]
        self._bias = tensors[config.bias] if config.bias else np.zeros(len(matrix), np.float32)
        self._panels = [
            Linear.from_weights(matrix[first : first + _COLUMNS]) for first in range(0, len(matrix), _COLUMNS)
        ]

    @property
    def features(self) -> int:
        """V, the features of a vector."""
        return len(self._bias)

    def vectors(
        self, rows: NDArray[Any], cu_seqlens: NDArray[np.int64], num_threads: int | None
    ) -> NDArray[np.float32]:
        """Return the vectors [n, V] of n texts, from the rows [N, E] of their tokens; zeros for a text without tokens.

        Each number of a text depends on its own tokens alone. Logits grow with the numbers that are pooled, so the
        largest logit gives the largest number.
        """
        pooling, given = self._pooling, widened(rows).astype(np.float32, copy=False)
        states = self._dense(given, num_threads=num_threads)
        states = self._norm(_core.activation(states, self._activation, None, num_threads), num_threads=num_threads)
        texts = [(i, first, end) for i, (first, end) in enumerate(pairwise(cu_seqlens)) if first < end]
        found = np.zeros((len(cu_seqlens) - 1, self.features), np.float32)
        for panel, begin in zip(self._panels, range(0, self.features, _COLUMNS), strict=True):
            columns = slice(begin, begin + _COLUMNS)
            logits = panel(states, num_threads=num_threads)
            if pooling.mode == "sum":
                pooling.saturated(np.add(logits, self._bias[columns], out=logits))
            for i, first, end in texts:
                pool = np.add.reduce if pooling.mode == "sum" else np.maximum.reduce
                pool(logits[first:end], axis=0, out=found[i, columns])
        if pooling.mode == "max":
            read = [i for i, _, _ in texts]
            found[read] = pooling.saturated(found[read] + self._bias)
        return found
