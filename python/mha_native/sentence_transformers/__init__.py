"""Drop-in classes for sentence-transformers, by its names and with its arguments.

`Transformer` is a first module for models of that package itself, and is imported on first use, since it needs it.
"""

from typing import TYPE_CHECKING

from ._cross_encoder import CrossEncoder
from ._multi_vector_encoder import MultiVectorEncoder
from ._quantization import quantize_embeddings
from ._sentence_transformer import SentenceTransformer
from ._similarity import SimilarityFunction
from ._sparse_encoder import SparseEncoder

if TYPE_CHECKING:
    from ._transformer_module import Transformer as Transformer

__all__ = [
    "CrossEncoder",
    "MultiVectorEncoder",
    "SentenceTransformer",
    "SimilarityFunction",
    "SparseEncoder",
    "quantize_embeddings",
]


def __getattr__(name: str) -> object:
    if name != "Transformer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._transformer_module import Transformer

    return Transformer
