"""Pretrained models, read from their files: sentence embeddings, labels of texts, and entities in them."""

from .sentence_encoder import SentenceEncoder
from .text_classifier import TextClassifier
from .token_classifier import TokenClassifier

__all__ = ["SentenceEncoder", "TextClassifier", "TokenClassifier"]
