"""Pretrained models from their files: dense and sparse embeddings, labels of texts, entities, text and speech."""

from .causal_lm import CausalLM, Completion, GenerationStatistics, TextScore, TokenLogprobs
from .multi_vector_encoder import MultiVectorEncoder, TokenEmbeddings
from .sentence_encoder import SentenceEncoder
from .seq2seq_lm import GeneratedText, Seq2SeqLM
from .sparse_encoder import SparseEmbeddings, SparseEncoder
from .speech_seq2seq import EncodedSpeech, SpeechDecoder, SpeechSeq2Seq
from .text.tokenizer import TokenizedText
from .text_classifier import TextClassifier
from .token_classifier import TokenClassifier

__all__ = [
    "CausalLM",
    "Completion",
    "EncodedSpeech",
    "GeneratedText",
    "GenerationStatistics",
    "MultiVectorEncoder",
    "SentenceEncoder",
    "Seq2SeqLM",
    "SparseEmbeddings",
    "SparseEncoder",
    "SpeechDecoder",
    "SpeechSeq2Seq",
    "TextClassifier",
    "TextScore",
    "TokenClassifier",
    "TokenEmbeddings",
    "TokenLogprobs",
    "TokenizedText",
]
