"""Decoders without a head, whose last layer gives the vectors of tokens: Qwen3-Embedding, EmbeddingGemma and others."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..architecture.build import BlockConfig
from ..architecture.config_entries import refuse_present
from ..decoders.config import described
from ..decoders.entries import Entries
from ..decoders.families import FAMILIES as DECODERS
from ..files.json_files import read_flag
from .entries import check_turns
from .family import Family, Names
from .text_config import TextConfig

_BIDIRECTIONAL = "use_bidirectional_attention"  # what Gemma 3 calls it that tokens see those behind them, too

_MODEL_TYPES = ("gemma3_text", "llama", "mistral", "qwen2", "qwen3")


def read_decoder(path: Path, values: Mapping[str, Any], family: Family) -> TextConfig:
    """The entries of config.json, read from `path`. ValueError if it says what is not computed."""
    decoder = DECODERS[values["model_type"]]
    sees_both_sides = False
    if decoder.model_types == ("gemma3_text",):
        sees_both_sides = values.get(_BIDIRECTIONAL) is not None and read_flag(path, values, _BIDIRECTIONAL, False)
        others = {name: why for name, why in decoder.absent.items() if name != _BIDIRECTIONAL}
        decoder = decoder._replace(absent=others)
    else:
        refuse_present(path, values, {_BIDIRECTIONAL: "tokens of this family see none behind them"})
    check_turns(path, values)
    config = described(decoder, Entries(path, values))
    blocks = config.blocks
    return TextConfig(
        family=family,
        vocab_size=config.vocab_size,
        embed_dim=config.embed_dim,
        max_positions=config.max_positions,
        num_layers=len(blocks),
        blocks=tuple(map(_seeing_both_sides, blocks)) if sees_both_sides else blocks,
        norm=None,
        final_norm=config.final_norm,
        embedding_scale=config.embedding_scale,
        is_causal=not sees_both_sides,
    )


def _seeing_both_sides(block: BlockConfig) -> BlockConfig:
    """A window of w tokens up to a query is one of w // 2 on each side of it."""
    if block.window is None:
        return block
    radius = (block.window[0] + 1) // 2
    return block._replace(window=(radius, radius))


def _family(model_type: str) -> Family:
    decoder = DECODERS[model_type]
    names = Names(
        words=decoder.names.words,
        positions=None,
        token_types=None,
        norm=None,
        blocks=decoder.names.blocks,
        final_norm=decoder.names.final_norm,
    )
    return Family(model_types=(model_type,), prefix=decoder.prefix, names=names)


FAMILIES_OF_DECODERS = tuple(map(_family, _MODEL_TYPES))
