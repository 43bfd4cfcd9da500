"""Transcripts of speech by Whisper, with the names and arguments of faster-whisper."""

from ._audio import audio_blocks, decode_audio
from ._batched import BatchedInferencePipeline
from ._options import Segment, TranscriptionInfo, TranscriptionOptions, Word
from ._stream import StreamedText, transcribe_stream
from ._voice_activity import VadOptions, speech_spans
from .whisper_model import WhisperModel

__all__ = [
    "BatchedInferencePipeline",
    "Segment",
    "StreamedText",
    "TranscriptionInfo",
    "TranscriptionOptions",
    "VadOptions",
    "WhisperModel",
    "Word",
    "audio_blocks",
    "decode_audio",
    "speech_spans",
    "transcribe_stream",
]
