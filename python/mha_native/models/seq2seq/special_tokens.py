"""The tokens that begin and end what an encoder-decoder generates, by generation_config.json or config.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..._messages import shown
from .._beam_search import SpecialTokens
from .._model_config import refuse_present
from ..decoders.source import ModelSource
from .family import Family

# What changes which tokens are chosen, and is no argument of a call.
_ABSENT = dict.fromkeys(
    (
        "bad_words_ids",
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
    start = _tokens(path, values, "decoder_start_token_id", vocab_size)
    start = start or _tokens(path, values, "bos_token_id", vocab_size)
    if len(start) != 1:
        raise ValueError(
            f"{path}: decoder_start_token_id must be a token; got {shown(values.get('decoder_start_token_id'))}"
        )
    first = _tokens(path, values, "forced_bos_token_id", vocab_size)
    if len(first) > 1:
        raise ValueError(f"{path}: forced_bos_token_id must be one token; got {shown(list(first))}")
    return SpecialTokens(
        start=start[0],
        ends=_tokens(path, values, "eos_token_id", vocab_size),
        forced_first=first[0] if first else None,
        forced_last=_tokens(path, values, "forced_eos_token_id", vocab_size),
    )


def _tokens(path: Path, values: Mapping[str, Any], name: str, vocab_size: int) -> tuple[int, ...]:
    """The tokens that an entry says: one, several or none."""
    given = values.get(name)
    tokens = given if isinstance(given, list) else [] if given is None else [given]
    if not all(type(token) is int and 0 <= token < vocab_size for token in tokens):
        raise ValueError(f"{path}: {name} must be of tokens from 0 to {vocab_size - 1}; got {shown(given)}")
    return tuple(dict.fromkeys(tokens))
