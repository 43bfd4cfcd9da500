"""The tokens that begin and end what an encoder-decoder generates, by generation_config.json or config.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...functions.messages import shown
from ..architecture.config_entries import read_tokens, refuse_present
from ..decoders.source import ModelSource
from ..generation.beam_search import SpecialTokens
from .family import Family

# What changes which tokens are chosen, and is no argument of a call.
_ABSENT = dict.fromkeys(
    (
        "begin_suppress_tokens",
        "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty",
        "forced_decoder_ids",
        "sequence_bias",
        "suppress_tokens",
        "watermarking_config",
    ),
    "such a rule is not computed",
)


def read_special_tokens(source: ModelSource, family: Family, vocab_size: int) -> SpecialTokens:
    """The tokens, of generation_config.json; without that file of config.json, and what the family has.

    Raises
    ------
    ValueError
        If one is none of the model, or if it is not said what the decoder begins with; if there is a rule for the
        choice of tokens that is not computed.
    """
    path, values = source.path.with_name("generation_config.json"), source.generation
    if not values:
        path, values = source.path, {**family.defaults, **source.config}
    refuse_present(path, values, _ABSENT)
    start = read_tokens(path, values, "decoder_start_token_id", vocab_size)
    start = start or read_tokens(path, values, "bos_token_id", vocab_size)
    if len(start) != 1:
        raise ValueError(
            f"{path}: decoder_start_token_id must be a token; got {shown(values.get('decoder_start_token_id'))}"
        )
    first = read_tokens(path, values, "forced_bos_token_id", vocab_size)
    if len(first) > 1:
        raise ValueError(f"{path}: forced_bos_token_id must be one token; got {shown(list(first))}")
    ends = read_tokens(path, values, "eos_token_id", vocab_size)
    return SpecialTokens(
        start=start[0],
        ends=ends,
        forced_first=first[0] if first else None,
        forced_last=read_tokens(path, values, "forced_eos_token_id", vocab_size),
        never=_never(path, values, vocab_size, ends),
    )


def _never(path: Path, values: Mapping[str, Any], vocab_size: int, ends: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens of ``bad_words_ids``, each word of which must be one. What ends a text may do so nevertheless."""
    given = values.get("bad_words_ids")
    words = [] if given is None else given
    if not isinstance(words, list) or not all(
        isinstance(word, list) and len(word) == 1 and type(word[0]) is int and 0 <= word[0] < vocab_size
        for word in words
    ):
        raise ValueError(f"{path}: bad_words_ids must be lists of one token each; got {shown(given)}")
    return tuple(word[0] for word in words if word[0] not in ends)
