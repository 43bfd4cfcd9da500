"""Pretrained models from their files: embeddings and labels of texts and images, entities, text and speech."""

from .bge_m3 import BGEM3Encoder
from .causal_lm import CausalLM, Completion, GenerationStatistics, TextScore, TokenLogprobs
from .image_classifier import ImageClassifier
from .image_encoder import ImageEncoder
from .image_text_encoder import ImageTextEncoder
from .multi_vector_encoder import MultiVectorEncoder, TokenEmbeddings
from .sentence_encoder import SentenceEncoder
from .seq2seq_lm import GeneratedText, Seq2SeqLM
from .sparse_encoder import SparseEmbeddings, SparseEncoder
from .speech_seq2seq import EncodedSpeech, SpeechDecoder, SpeechSeq2Seq
from .text.tokenizer import TokenizedText
from .text_classifier import TextClassifier
from .token_classifier import TokenClassifier

__all__ = [
    "BGEM3Encoder",
    "CausalLM",
    "Completion",
    "EncodedSpeech",
    "GeneratedText",
    "GenerationStatistics",
    "ImageClassifier",
    "ImageEncoder",
    "ImageTextEncoder",
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
