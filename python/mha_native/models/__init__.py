"""Pretrained models, read from their files: sentence embeddings, labels of texts, entities, language models."""

from .causal_lm import CausalLM, GenerationStatistics, TextScore
from .sentence_encoder import SentenceEncoder
from .text_classifier import TextClassifier
from .token_classifier import TokenClassifier

__all__ = ["CausalLM", "GenerationStatistics", "SentenceEncoder", "TextClassifier", "TextScore", "TokenClassifier"]
