"""Tokenizers of SentencePiece in GGUF files: BPE over characters, with bytes as a fallback."""

from collections.abc import Sequence
from typing import Any

from .config import read_token
from .file import GGUFFile
from .vocabulary import Vocabulary

_SPACE = "\u2581"  # the character for a space in tokens

# Characters of a token, which is divided at every place. The longest tokens in use, rows of signs, have some 100.
_LONGEST_TOKEN = 256


def build_sentence_pieces(file: GGUFFile, vocabulary: Vocabulary) -> Any:
    """Return the ``tokenizers.Tokenizer``, without special tokens."""
    from tokenizers import (  # type: ignore[import-not-found, unused-ignore]
        Tokenizer,
        decoders,
        models,
        normalizers,
    )

    file.settings.expect({"tokenizer.ggml.remove_extra_whitespaces": False})
    is_gemma = file.metadata["general.architecture"].startswith("gemma")
    has_prefix = file.settings.flag("tokenizer.ggml.add_space_prefix", not is_gemma)
    numbers, unknown = vocabulary.numbers, read_token(file, "unknown")
    if (longest := max(map(len, vocabulary.tokens))) > _LONGEST_TOKEN:
        raise ValueError(
            f"{file.path}: tokenizer.ggml.tokens must have at most {_LONGEST_TOKEN} characters; got one of {longest}"
        )
    # In Gemma the order of tokens, not their scores, is the order of merges.
    ranks: Sequence[float] = range(len(vocabulary.tokens))
    if is_gemma and has_prefix:
        raise ValueError(f"{file.path}: tokenizer.ggml.add_space_prefix must be false for Gemma; got true")
    if not is_gemma:
        ranks = (-vocabulary.scores()).tolist()
    model = models.BPE(
        numbers,
        _merges(numbers, ranks),
        unk_token=None if unknown is None else vocabulary.tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    # Each part of a text gets the space: the text itself, and the parts after tokens that are found first.
    first = [normalizers.Prepend(_SPACE)] * has_prefix
    tokenizer.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", _SPACE)])
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * has_prefix)
    return tokenizer


def _merges(numbers: dict[str, int], ranks: Sequence[float]) -> list[tuple[str, str]]:
    """Return every pair of tokens that together are a token, in the order of the ranks of the joined tokens.

    Of equal ranks, the token with the smaller number comes first.
    """
    pairs = []
    for token, number in numbers.items():
        parts = [(token[:i], token[i:]) for i in range(1, len(token))]
        known = [(left, right) for left, right in parts if left in numbers and right in numbers]
        known.sort(key=lambda pair: (numbers[pair[0]], numbers[pair[1]]))
        pairs += [(ranks[number], number, -len(left), left, right) for left, right in known]
    pairs.sort(key=lambda entry: entry[:3])
    return [(left, right) for *_, left, right in pairs]
