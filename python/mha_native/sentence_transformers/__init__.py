"""The models of the library sentence-transformers, by its names and with its arguments, computed here."""

from ._sentence_transformer import SentenceTransformer

__all__ = ["SentenceTransformer"]
