"""Transcripts of speech by Whisper, with the names and arguments of faster-whisper."""

from ._audio import audio_blocks, decode_audio
from ._batched import BatchedInferencePipeline
from ._options import Segment, TranscriptionInfo, TranscriptionOptions, Word
from ._voice_activity import VadOptions
from .whisper_model import WhisperModel

__all__ = [
    "BatchedInferencePipeline",
    "Segment",
    "TranscriptionInfo",
    "TranscriptionOptions",
    "VadOptions",
    "WhisperModel",
    "Word",
    "audio_blocks",
    "decode_audio",
]
