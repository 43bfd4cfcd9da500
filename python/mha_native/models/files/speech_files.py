"""Find the files of a speech model, and read its settings of decoding."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ...functions.messages import shown
from ..architecture.config import ModelConfig
from .ctranslate2 import CTranslate2Source, is_ctranslate2
from .entries import Entries
from .folder import FolderSource
from .hub_cache import find_directory
from .source import Source

# Models with so many tokens know several languages, where no file says so.
_MULTILINGUAL_TOKENS = 51865

# The settings of the spectrogram, in preprocessor_config.json, that all models share.
_SPECTROGRAM = {"sampling_rate": 16000, "hop_length": 160, "n_fft": 400, "padding_value": 0.0, "do_normalize": False}

_CONVERSION = "transformers.models.whisper.convert_openai_to_hf"


def find_speech(name: str | PathLike[str]) -> Source:
    """Find the files of a model: a directory of transformers or of CTranslate2, or a name in the local cache."""
    return speech_in(find_directory(name, organization=None, files=("model.bin",)))


def speech_in(path: Path) -> Source:
    """Return the files of a model in a directory. ValueError for a checkpoint of openai-whisper."""
    if path.suffix == ".pt" or (path.is_dir() and _pt_in(path)):
        raise ValueError(
            f"{path} is a checkpoint of openai-whisper, which is not read; convert it by `python -m {_CONVERSION} "
            "--checkpoint_path NAME --pytorch_dump_folder_path FOLDER`"
        )
    return CTranslate2Source(path) if is_ctranslate2(path) else FolderSource(path)


def _pt_in(folder: Path) -> list[Path]:
    """Return the checkpoints of openai-whisper in a folder that has no other weights."""
    others = [*folder.glob("*.safetensors"), *folder.glob("*.bin"), *folder.glob("config.json")]
    return [] if others else sorted(folder.glob("*.pt"))


def check_spectrogram(source: Source, config: ModelConfig) -> None:
    """Refuse a preprocessor_config.json that asks for another spectrogram."""
    path = source.path.with_name("preprocessor_config.json")
    if path.exists():
        entries, front_end = Entries.read(path), config.stacks[0].front_end
        for name, value in (_SPECTROGRAM | {"feature_size": front_end.mel_bins}).items():
            given = entries.values.get(name, value)
            if given != value or isinstance(given, bool) != isinstance(value, bool):
                raise ValueError(f"{path}: {name} must be {value}; got {shown(given)}")


class SpeechSettings:
    """The settings of decoding in the files of a model, checked."""

    def __init__(self, source: Source, config: ModelConfig) -> None:
        self.generation: Mapping[str, Any] = source.generation
        path = source.path.with_name("generation_config.json")
        generation, given = Entries(path, source.generation), Entries(source.path, source.config)
        vocab_size, decoder = config.vocab_size, config.stacks[1]
        num_layers, num_heads = len(decoder.blocks), decoder.blocks[0].num_heads

        def tokens(name: str) -> tuple[int, ...]:
            entries = generation if generation.has(name) else given
            values = entries.values.get(name)
            if isinstance(values, list):  # transformers and CTranslate2 take -1 for tokens that they choose themselves
                entries = Entries(entries.path, {name: [token for token in values if token != -1]})
            return entries.tokens(name, vocab_size)

        self.suppress_ids, self.suppress_ids_begin = tokens("suppress_tokens"), tokens("begin_suppress_tokens")
        self.alignment_heads = tuple((i, j) for i in range(num_layers // 2, num_layers) for j in range(num_heads))
        if generation.has("alignment_heads"):
            heads = generation.values["alignment_heads"]
            self.alignment_heads = tuple(checked_heads(f"{path}: alignment_heads", heads, num_layers, num_heads))
        is_large = vocab_size >= _MULTILINGUAL_TOKENS
        self.multilingual = generation.flag("is_multilingual", is_large)


def checked_heads(what: str, given: Any, num_layers: int, num_heads: int) -> list[tuple[int, int]]:
    """Return pairs of a layer and a head; ValueError unless there is one, and all are in the model."""
    heads = [tuple(pair) for pair in given] if _are_pairs(given) else []
    if not heads or not all(0 <= i < num_layers and 0 <= j < num_heads for i, j in heads):
        raise ValueError(
            f"{what} must be pairs of a layer below {num_layers} and a head below {num_heads}; got {shown(given)}"
        )
    return [(int(i), int(j)) for i, j in heads]


def _are_pairs(given: Any) -> bool:
    return isinstance(given, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and all(type(number) is int for number in pair)
        for pair in given
    )
