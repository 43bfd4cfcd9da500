"""The families that there are, by the name that config.json has for them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..files.json_files import read_choice, read_json
from . import bert, decoders, distilbert, modernbert, mpnet, roberta, rotary_bert, t5
from .family import Family
from .like_bert import read_like_bert
from .text_config import TextConfig

# A family is a module beside this one and an entry here; all that is read by it follows.
FAMILIES = {
    model_type: family
    for family in (
        bert.FAMILY,
        distilbert.FAMILY,
        mpnet.FAMILY,
        roberta.FAMILY,
        modernbert.FAMILY,
        rotary_bert.NOMIC,
        rotary_bert.GTE,
        t5.FAMILY,
        *decoders.FAMILIES_OF_DECODERS,
    )
    for model_type in family.model_types
}

# How config.json of a family is read that is not said by how it differs from BERT.
_READERS: dict[tuple[str, ...], Callable[[Path, Mapping[str, Any], Family], TextConfig]] = {
    modernbert.FAMILY.model_types: modernbert.read_modernbert,
    rotary_bert.NOMIC.model_types: rotary_bert.read_nomic,
    rotary_bert.GTE.model_types: rotary_bert.read_gte,
    t5.FAMILY.model_types: t5.read_t5,
    **{family.model_types: decoders.read_decoder for family in decoders.FAMILIES_OF_DECODERS},
}


def read_config(path: Path) -> TextConfig:
    """What config.json says, of a model of a known family that has no adapter beside it.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If the model is of another kind, or computes what is not computed here.
    """
    values = read_json(path, dict)
    if (adapter := path.with_name("adapter_config.json")).exists():
        raise ValueError(f"{adapter} changes the weights; merge the adapter into the model, and save that")
    return described(path, values)


def described(path: Path, values: Mapping[str, Any]) -> TextConfig:
    """What a model computes of which config.json, which messages call `path`, says `values`: see `read_config`."""
    if values.get("model_type") == "new":
        raise ValueError(
            f"{path}: model_type 'new' is that of a GTE which is computed by code beside its files; a conversion of it "
            "to the GTE of transformers, with model_type 'gte', is read"
        )
    family = FAMILIES[read_choice(path, values, "model_type", None, *FAMILIES)]
    return _READERS.get(family.model_types, read_like_bert)(path, values, family)
