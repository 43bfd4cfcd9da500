"""A Whisper of two languages with random weights, whose tokens are words and whose windows are 0.4 s."""

from __future__ import annotations

import json
from pathlib import Path

import tiny_speech
import tokenizers

WORDS = ["▁red", "▁blue", "▁green", "▁(", "▁"]
SPECIAL = ["endoftext", "startoftranscript", "en", "de", "translate", "transcribe", "startoflm", "startofprev"]
SPECIAL += ["nocaptions", "notimestamps"]
MAX_LENGTH = 24  # tokens of a prompt and its text
ROWS = 20  # of the encoder, 20 ms each
SIZE = len(WORDS) + len(SPECIAL) + ROWS + 1  # tokens, with the timestamps


def tokenizer(leave_out: str = "") -> tokenizers.Tokenizer:
    """A tokenizer with the special tokens of Whisper, except one."""
    names = [f"<|{name}|>" for name in SPECIAL if name != leave_out]
    vocabulary = {word: i for i, word in enumerate(WORDS + names)}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="▁"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never")
    library.decoder = tokenizers.decoders.Metaspace(prepend_scheme="never")
    return library


def write(folder: Path) -> Path:
    """Write the model as transformers does."""
    config = tiny_speech.config(vocab_size=SIZE, max_target_positions=MAX_LENGTH, max_source_positions=ROWS)
    generation = {"is_multilingual": True, "begin_suppress_tokens": [4, 5], "alignment_heads": [[0, 1], [1, 2]]}
    files = {"tokenizer.json": tokenizer().to_str(), "generation_config.json": generation}
    files["preprocessor_config.json"] = json.dumps(
        {"feature_size": 80, "sampling_rate": 16000, "hop_length": 160, "n_fft": 400}
    )
    return tiny_speech.write(folder, config, files)
