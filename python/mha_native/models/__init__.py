"""Pretrained models, read from their files: sentence embeddings by a model of the BERT family."""

from .sentence_encoder import SentenceEncoder

__all__ = ["SentenceEncoder"]
