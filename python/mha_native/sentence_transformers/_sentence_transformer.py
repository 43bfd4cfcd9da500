"""Embeddings of texts, with the arguments of sentence-transformers."""


class SentenceTransformer:
    """Embeddings of texts, as by the class of that name in sentence-transformers."""
