"""Byte-level BPE of GGUF files. ``tokenizer.ggml.pre`` names the pre-tokenizer."""

from typing import Any, NamedTuple

from .file import GGUFFile
from .vocabulary import Vocabulary

# The end of all patterns: line breaks, and spaces except the one before a word.
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|"


class _Kind(NamedTuple):
    """A pre-tokenizer, with the normalization before it."""

    pattern: str | None = None  # of the pieces; None: the pattern of GPT-2
    splits_digits: bool = False  # each digit becomes a piece first
    is_composed: bool = False  # texts are converted to NFC first
    takes_whole_pieces: bool = False  # a piece that is a token stays this token, without merges
    adds_bos: bool = False  # by default texts begin with a special token


_LLAMA3 = _Kind(_WORDS + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _REST, takes_whole_pieces=True, adds_bos=True)
_QWEN2 = _Kind(_WORDS + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _REST, is_composed=True)
_TEKKEN = _Kind(_CASED_WORDS + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _REST, takes_whole_pieces=True, adds_bos=True)
_KINDS = {
    "default": _Kind(),
    "gpt-2": _Kind(),
    "smollm": _Kind(splits_digits=True),
    "starcoder": _Kind(splits_digits=True),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2._replace(is_composed=False),
    "tekken": _TEKKEN,
}


def adds_bos(file: GGUFFile) -> bool:
    """Return whether texts begin with a special token by default."""
    return _kind(file).adds_bos


def build_byte_level(file: GGUFFile, vocabulary: Vocabulary) -> Any:
    """Return the ``tokenizers.Tokenizer``, without special tokens."""
    from tokenizers import (  # type: ignore[import-not-found, unused-ignore]
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
    )

    kind = _kind(file)
    file.settings.expect({"tokenizer.ggml.add_space_prefix": False})
    tokenizer = Tokenizer(models.BPE(vocabulary.numbers, vocabulary.merges(), ignore_merges=kind.takes_whole_pieces))
    if kind.is_composed:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if kind.splits_digits else []
    if kind.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(kind.pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _kind(file: GGUFFile) -> _Kind:
    return _KINDS[file.settings.choice("tokenizer.ggml.pre", *_KINDS)]
