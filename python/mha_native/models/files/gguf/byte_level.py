"""Byte-level BPE of GGUF files. ``tokenizer.ggml.pre`` names the pre-tokenizer."""

from typing import Any, NamedTuple

from .file import GGUFFile
from .vocabulary import Vocabulary

# The end of most patterns: line breaks, and spaces except the one before a word.
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = tuple(rf"[^\r\n\p{{L}}\p{{N}}]?{letters}" for letters in (f"{_UPPER}*{_LOWER}+", f"{_UPPER}+{_LOWER}*"))
_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT, _THREE_DIGITS = r"\p{N}", r"\p{N}{1,3}"


class _Kind(NamedTuple):
    """A pre-tokenizer, with the normalization before it."""

    patterns: tuple[str, ...]  # each of them splits the pieces of the one before it
    splits_digits: bool = False  # each digit becomes a piece first
    is_composed: bool = False  # texts are converted to NFC first
    takes_whole_pieces: bool = False  # a piece that is a token stays this token, without merges
    adds_bos: bool = False  # by default texts begin with a special token


def _split_once(*alternatives: str, **flags: bool) -> _Kind:
    return _Kind(("|".join(alternatives),), **flags)


_GPT2 = _Kind((_GPT2_PATTERN,))
_DIGITS_FIRST = _GPT2._replace(splits_digits=True)
_CL100K = _split_once(_ENDINGS, _WORDS, _THREE_DIGITS, _SIGNS, _REST)
_QWEN2 = _split_once(_ENDINGS, _WORDS, _DIGIT, _SIGNS, _REST)
_CASED_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"

# The kinds by all of their names.
_KINDS = {
    name: kind
    for names, kind in (
        ("default", _Kind((r"[\p{P}$+<=>^~|]+", _GPT2_PATTERN, r"\p{N}+", "[0-9]{3}"))),
        ("gpt-2 phi-2 exaone4", _GPT2),
        ("mpt olmo", _GPT2._replace(is_composed=True)),
        ("smollm starcoder refact codeshell exaone minerva-7b", _DIGITS_FIRST),
        ("command-r", _DIGITS_FIRST._replace(is_composed=True)),
        ("llama-bpe llama-v3 llama3 falcon3 midm-2.0 lfm2", _CL100K._replace(takes_whole_pieces=True, adds_bos=True)),
        ("dbrx smaug-bpe glm4 chatglm-bpe", _CL100K),
        ("qwen2", _QWEN2._replace(is_composed=True)),
        ("deepseek-r1-qwen stablelm2 megrez", _QWEN2),
        (
            "tekken",
            _split_once(*_CASED_WORDS, _DIGIT, _CASED_SIGNS, _REST, takes_whole_pieces=True, adds_bos=True),
        ),
        (
            "gpt-4o llama4 kanana2",
            _split_once(*(f"{words}{_ENDINGS}?" for words in _CASED_WORDS), _THREE_DIGITS, _CASED_SIGNS, _REST),
        ),
        (
            "deepseek-coder",
            _Kind((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u0800-\u9fa5\uac00-\ud7ff]+", _DIGIT)),
        ),
        (
            "deepseek-v3",
            _Kind(
                (
                    _THREE_DIGITS,
                    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
                    rf" ?[\p{{P}}\p{{S}}]+[\r\n]*|{_REST}",
                )
            ),
        ),
    )
    for name in names.split()
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
    steps += [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in kind.patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _kind(file: GGUFFile) -> _Kind:
    return _KINDS[file.settings.choice("tokenizer.ggml.pre", *_KINDS)]
