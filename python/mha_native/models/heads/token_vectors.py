"""Vectors of the tokens of texts, and the steps from the rows of a transformer to them."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...functions.arrays import widened
from ...functions.maxsim import maxsim, quantize_tokens
from ...layers.linear import Linear
from ..files.checkpoint import Checkpoint
from ..files.modules_json import Module, check_normalize
from .activations import activation_of
from .dense import DenseConfig, read_dense
from .pooling import scaled_to_length_1

_VECTORS, _IDENTITY = "token_embeddings", "torch.nn.Identity"


class TokenEmbeddings(NamedTuple):
    """Vectors of the tokens of N texts, one text after another.

    Parameters
    ----------
    rows : float32 or int8 [T, D]
        The vectors of all texts.
    cu_seqlens : int64 [N + 1]
        The vectors of text i are ``rows[cu_seqlens[i]:cu_seqlens[i + 1]]``.
    scale : float32 [T], optional
        The factor of each row of int8; None for float32.

    Examples
    --------
    >>> import numpy as np
    >>> from mha_native.models import TokenEmbeddings
    >>> rows = np.array([[1, 0], [0, 1], [0.5, 0.75]], np.float32)
    >>> found = TokenEmbeddings(rows, np.array([0, 2, 3]))
    >>> found.scores(found)
    array([[2.    , 1.25  ],
           [0.75  , 0.8125]], dtype=float32)
    """

    rows: NDArray[Any]
    cu_seqlens: NDArray[np.int64]
    scale: NDArray[np.float32] | None = None

    @classmethod
    def of_matrices(cls, matrices: Iterable[NDArray[Any]], features: int = 0) -> "TokenEmbeddings":
        """Return float32 vectors of texts, from a matrix [T, D] for each; without a text D is `features`."""
        given = [np.asarray(matrix, np.float32) for matrix in matrices]
        rows = np.concatenate(given) if given else np.empty((0, features), np.float32)
        return cls(rows, np.cumsum([0, *map(len, given)], dtype=np.int64))

    @property
    def num_texts(self) -> int:
        """N, the number of texts."""
        return len(self.cu_seqlens) - 1

    def row(self, i: int) -> NDArray[np.float32]:
        """Return the vectors [T, D] of text `i` in float32."""
        if not 0 <= i < self.num_texts:
            raise IndexError(f"TokenEmbeddings.row: i must be from 0 to {self.num_texts - 1}; got {i}")
        some = slice(self.cu_seqlens[i], self.cu_seqlens[i + 1])
        found: NDArray[np.float32] = self.rows[some]
        return found if self.scale is None else found.astype(np.float32) * self.scale[some, None]

    def quantized(self, *, num_threads: int | None = None) -> "TokenEmbeddings":
        """Return the vectors in int8, in a quarter of the memory: `mha_native.quantize_tokens`."""
        if self.scale is not None:
            return self
        return TokenEmbeddings(*_swapped(quantize_tokens(self.rows, num_threads=num_threads), self.cu_seqlens))

    def scores(
        self, documents: "TokenEmbeddings", *, pairs: Any = None, num_threads: int | None = None
    ) -> NDArray[np.float32]:
        """Return the scores [N, M] of these queries with M documents, or of some `pairs`: `mha_native.maxsim`.

        With documents in int8 queries are rounded to int8, too.
        """
        if not isinstance(documents, TokenEmbeddings):
            raise TypeError(
                f"TokenEmbeddings.scores: documents must be TokenEmbeddings; got {type(documents).__name__}"
            )
        queries = self if documents.scale is None else self.quantized(num_threads=num_threads)
        found: NDArray[np.float32] = maxsim(
            queries.rows,
            documents.rows,
            cu_seqlens_q=queries.cu_seqlens,
            cu_seqlens_k=documents.cu_seqlens,
            query_scale=queries.scale,
            document_scale=documents.scale,
            pairs=pairs,
            num_threads=num_threads,
        )
        return found


def _swapped(found: Any, cu_seqlens: NDArray[np.int64]) -> tuple[Any, Any, Any]:
    return found[0], cu_seqlens, found[1]


class _TokenDense(NamedTuple):
    """A Dense of token vectors: ``activation(W x + b)``, and perhaps x or R x in addition."""

    linear: Linear
    activation: str
    residual: Linear | None
    adds: bool

    def __call__(self, rows: NDArray[np.float32], num_threads: int | None) -> NDArray[np.float32]:
        with np.errstate(all="ignore"):
            found: NDArray[np.float32] = activation_of(self.activation)(self.linear(rows, num_threads=num_threads))
        if self.adds:
            found = found + (rows if self.residual is None else self.residual(rows, num_threads=num_threads))
        return found


class TokenHead:
    """The steps from the rows of a transformer to the vectors of tokens, in float32."""

    def __init__(self, steps: Iterable[Any], features: int) -> None:
        self._steps, self.features = list(steps), features

    def __call__(self, rows: NDArray[Any], num_threads: int | None) -> NDArray[np.float32]:
        vectors = widened(rows).astype(np.float32, copy=False)
        for step in self._steps:
            vectors = step(vectors, num_threads)
        return vectors


def read_token_steps(modules: Iterable[Module], embed_dim: int, normalize: bool) -> list[DenseConfig | None]:
    """Read the modules after a transformer with `embed_dim` features; None stands for a scaling to length 1.

    Raises OSError or ValueError if a file cannot be read, does not fit, or asks for an unsupported feature.
    """
    steps: list[DenseConfig | None] = []
    features = embed_dim
    for module in modules:
        if module.kind == "Dense":
            dense = read_dense(module.folder, features, _VECTORS)
            steps.append(dense)
            features = dense.out_features
        else:
            check_normalize(module.folder, _VECTORS)
            steps.append(None)
    return [*steps, None] if normalize else steps


def inline_shapes(features: int | None, embed_dim: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return the name and the shape of a projection to `features` among the weights of a transformer; None: none."""
    return [] if features is None else [("linear.weight", (features, embed_dim))]


def load_token_head(
    steps: Iterable[DenseConfig | None], embed_dim: int, first: Iterable[NDArray[np.float32]] = ()
) -> TokenHead:
    """Read the weights of the steps, after the matrices `first`."""
    loaded: list[Any] = [_TokenDense(Linear.from_weights(weight), _IDENTITY, None, False) for weight in first]
    features = loaded[-1].linear.out_features if loaded else embed_dim
    for step in steps:
        loaded.append(scaled_to_length_1 if step is None else _loaded(step))
        features = features if step is None else step.out_features
    return TokenHead(loaded, features)


def _loaded(config: DenseConfig) -> _TokenDense:
    with Checkpoint(config.folder, config.tensor_shapes().items()) as tensors:
        if not config.bias and "linear.bias" in tensors:
            raise ValueError(f"{config.folder / 'config.json'}: bias must be true, as there is a linear.bias")
        if not config.has_residual and "residual.weight" in tensors:
            raise ValueError(
                f"{config.folder / 'config.json'}: use_residual must be true, as there is a residual.weight"
            )
        linear = Linear.from_weights(tensors["linear.weight"], tensors["linear.bias"] if config.bias else None)
        maps = config.has_residual and config.in_features != config.out_features
        residual = Linear.from_weights(tensors["residual.weight"]) if maps else None
        return _TokenDense(linear, config.activation, residual, config.has_residual)
