"""The tokens that begin and end the texts of an encoder-decoder, from generation_config.json or config.json."""

from collections.abc import Mapping
from typing import Any

from ...functions.messages import shown
from ..generation.beam_search import SpecialTokens
from .entries import Entries
from .source import Source

# Unsupported rules for the choice of tokens.
_REFUSED = dict.fromkeys(
    (
        "begin_suppress_tokens",
        "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty",
        "forced_decoder_ids",
        "sequence_bias",
        "suppress_tokens",
        "watermarking_config",
    ),
    "this rule is unsupported",
)


def read_special_tokens(source: Source, defaults: Mapping[str, Any], vocab_size: int) -> SpecialTokens:
    """Read the tokens of generation_config.json or, without that file, of config.json with the defaults of the family.

    Raises ValueError if a token is not in the vocabulary, if no token begins the text of the decoder, or if there is an
    unsupported rule for the choice of tokens.
    """
    entries = Entries(source.path.with_name("generation_config.json"), source.generation)
    if not source.generation:
        entries = Entries(source.path, {**defaults, **source.config})
    entries.refuse(_REFUSED)
    name = "decoder_start_token_id"
    start = entries.tokens(name, vocab_size) or entries.tokens("bos_token_id", vocab_size)
    if len(start) != 1:
        raise ValueError(f"{entries.path}: {name} must be a token; got {shown(entries.values.get(name))}")
    first = entries.tokens("forced_bos_token_id", vocab_size)
    if len(first) > 1:
        raise ValueError(f"{entries.path}: forced_bos_token_id must be one token; got {shown(list(first))}")
    ends = entries.tokens("eos_token_id", vocab_size)
    return SpecialTokens(
        start=start[0],
        ends=ends,
        forced_first=first[0] if first else None,
        forced_last=entries.tokens("forced_eos_token_id", vocab_size),
        never=_never(entries, vocab_size, ends),
    )


def _never(entries: Entries, vocab_size: int, ends: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tokens of ``bad_words_ids``, words of one token each. Tokens that end a text may do so."""
    given = entries.values.get("bad_words_ids")
    words = [] if given is None else given
    if not isinstance(words, list) or not all(
        isinstance(word, list) and len(word) == 1 and type(word[0]) is int and 0 <= word[0] < vocab_size
        for word in words
    ):
        raise ValueError(f"{entries.path}: bad_words_ids must be lists of one token each; got {shown(given)}")
    return tuple(word[0] for word in words if word[0] not in ends)
