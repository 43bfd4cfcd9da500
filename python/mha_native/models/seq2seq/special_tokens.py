"""The tokens that begin and end what an encoder-decoder generates, by generation_config.json or config.json."""

from ..._messages import shown
from .._beam_search import SpecialTokens
from .._model_config import read_tokens, refuse_present
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
    start = read_tokens(path, values, "decoder_start_token_id", vocab_size)
    start = start or read_tokens(path, values, "bos_token_id", vocab_size)
    if len(start) != 1:
        raise ValueError(
            f"{path}: decoder_start_token_id must be a token; got {shown(values.get('decoder_start_token_id'))}"
        )
    first = read_tokens(path, values, "forced_bos_token_id", vocab_size)
    if len(first) > 1:
        raise ValueError(f"{path}: forced_bos_token_id must be one token; got {shown(list(first))}")
    return SpecialTokens(
        start=start[0],
        ends=read_tokens(path, values, "eos_token_id", vocab_size),
        forced_first=first[0] if first else None,
        forced_last=read_tokens(path, values, "forced_eos_token_id", vocab_size),
    )
