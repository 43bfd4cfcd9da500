"""What a family of text encoders is: everything in which it differs from BERT."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from ...functions.options import ScoreOptions
from ..architecture.tensor_names import BlockNames, Tensors


class Keys(NamedTuple):
    """What the entries of config.json are called."""

    embed_dim: str = "hidden_size"
    num_layers: str = "num_hidden_layers"
    num_heads: str = "num_attention_heads"
    feedforward_dim: str = "intermediate_size"
    activation: str = "hidden_act"
    eps: str | None = "layer_norm_eps"  # None: there is no such entry, and it is 1e-12
    token_types: str | None = "type_vocab_size"  # None: tokens have no types


BLOCK_NAMES = BlockNames(
    layer="encoder.layer.{}.",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    out="attention.output.dense",
    norm1="attention.output.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    norm2="output.LayerNorm",
)


class Names(NamedTuple):
    """What the tensors are called: tables, and what has a weight and perhaps a bias.

    Attributes
    ----------
    words, positions, token_types : str
        Tables; None: there is none.
    norm, final_norm : str
        Of embeddings, and behind the last layer; None: there is none.
    blocks : BlockNames
        Of the layers.
    """

    words: str = "embeddings.word_embeddings.weight"
    positions: str | None = "embeddings.position_embeddings.weight"
    token_types: str | None = "embeddings.token_type_embeddings.weight"
    norm: str | None = "embeddings.LayerNorm"
    blocks: BlockNames = BLOCK_NAMES
    final_norm: str | None = None


def no_options(tensors: Tensors, sizes: Mapping[str, int]) -> ScoreOptions:
    """The score options of a family that has none."""
    return {}


class Family(NamedTuple):
    """Text encoders that are computed alike: embeddings, layers, and perhaps a norm behind them.

    Attributes
    ----------
    model_types : tuple of str
        What config.json calls the family.
    prefix : str
        What the names of its tensors begin with in the files of a model that has a head.
    keys, names
        Of the entries of config.json, and of the tensors.
    padding : int, optional
        ``pad_token_id`` where config.json does not say it, for a family whose positions begin behind that number. None:
        they begin at 0.
    further_sizes : dict of str to int
        Other entries of config.json that are sizes, with their defaults.
    further_tensors : dict of str to tuple of str
        Other tensors: the sizes that make their shapes, by names in `further_sizes` or of fields of `TextConfig`.
    options : function
        From the tensors and the further sizes to the score options of every layer, such as a bias by distance. It is
        called once.
    absent : dict of str to str
        Entries of config.json that must be absent or empty, and why.
    fixed : dict of str to int
        Entries of config.json that may say this and nothing else.
    """

    model_types: tuple[str, ...]
    prefix: str
    keys: Keys = Keys()
    names: Names = Names()
    padding: int | None = None
    further_sizes: Mapping[str, int] = {}
    further_tensors: Mapping[str, tuple[str, ...]] = {}
    options: "Options" = no_options
    absent: Mapping[str, str] = {}
    fixed: Mapping[str, int] = {}


class Options(Protocol):
    """From tensors and further sizes to score options."""

    def __call__(self, tensors: Tensors, sizes: Mapping[str, int], /) -> ScoreOptions: ...
