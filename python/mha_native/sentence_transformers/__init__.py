"""The models of the library sentence-transformers, by its names and with its arguments, computed here."""

from ._quantization import quantize_embeddings
from ._sentence_transformer import SentenceTransformer
from ._similarity import SimilarityFunction

__all__ = ["SentenceTransformer", "SimilarityFunction", "quantize_embeddings"]
