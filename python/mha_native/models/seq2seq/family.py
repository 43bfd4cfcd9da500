"""What a family of encoder-decoders is: everything in which it differs from BART."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..architecture.config_entries import ACTIVATIONS
from ..architecture.tensor_names import BlockNames

_UNGATED = {name: (ours, False) for name, ours in ACTIVATIONS.items()}

ALL = frozenset({"query", "key", "value", "out", "up", "down"})


class StackKeys(NamedTuple):
    """What the entries of config.json are called that are of one of the two stacks of layers."""

    num_layers: str
    num_heads: str
    feedforward_dim: str


class Keys(NamedTuple):
    """What the entries of config.json are called. None: there is no such entry."""

    embed_dim: str = "d_model"
    encoder: StackKeys = StackKeys("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim")
    decoder: StackKeys = StackKeys("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim")
    head_dim: str | None = None  # None: embed_dim / num_heads
    max_positions: str | None = "max_position_embeddings"  # None: there may be any number
    activation: str = "activation_function"
    gated: str | None = None  # which says again what `activation` does
    inner_activation: str | None = None  # likewise
    eps: str | None = None  # None: it is 1e-5
    scales_embeddings: str | None = "scale_embedding"
    scales_output: str | None = None  # None: what the head reads is not scaled
    num_buckets: str | None = None  # None: scores have no bias by distance
    max_distance: str = ""


class MemoryNames(NamedTuple):
    """The names of the attention to the memory, behind what those of a layer begin with."""

    query: str = "encoder_attn.q_proj"
    key: str = "encoder_attn.k_proj"
    value: str = "encoder_attn.v_proj"
    out: str = "encoder_attn.out_proj"
    norm: str = "encoder_attn_layer_norm"


class StackNames(NamedTuple):
    """What the tensors of one of the two stacks are called. None: there is no such tensor."""

    blocks: BlockNames
    positions: str | None
    embedding_norm: str | None
    final_norm: str | None
    position_bias: str | None = None  # the row of each bucket of distances
    ungated_up: str | None = None  # what ``up`` is called where there is no gate, if it has another name then


def bart_names(stack: str, *, embedding_norm: bool = True, final_norm: bool = False) -> StackNames:
    """The names of BART and those that have its layers."""
    blocks = BlockNames(
        layer=f"{stack}.layers.{{}}.",
        query="self_attn.q_proj",
        key="self_attn.k_proj",
        value="self_attn.v_proj",
        out="self_attn.out_proj",
        up="fc1",
        down="fc2",
        norm1="self_attn_layer_norm",
        norm2="final_layer_norm",
    )
    return StackNames(
        blocks=blocks,
        positions=f"{stack}.embed_positions.weight",
        embedding_norm=f"{stack}.layernorm_embedding" if embedding_norm else None,
        final_norm=f"{stack}.layer_norm" if final_norm else None,
    )


class Family(NamedTuple):
    """Encoder-decoders that are computed alike.

    Attributes
    ----------
    model_types : tuple of str
        What config.json calls the family.
    keys : Keys
    encoder, decoder : StackNames
    memory : MemoryNames
    prefix : str
        What the names of its tensors begin with in the files of a model that has a head.
    words : tuple of str
        The names that the table of words may have: the first one that is there counts.
    logit_bias : str, optional
        What is added to logits, if it is there.
    defaults : dict
        What transformers has where config.json says nothing.
    activations : dict of str to (str, bool)
        By what config.json says: the name in the core, and whether the feed-forward is gated.
    norm : {"layer", "rms"}
        The kind of all norms; those of "layer" have a bias.
    norm_first : bool
        As in `BlockConfig`.
    biases : set of str
        The products that add one, of those of `BlockConfig`.
    first_position : int
        The row of the table of positions that the first token has.
    sinusoidal : bool
        Positions are sines of all wavelengths, and behind them cosines, where files do not have them.
    scales_scores : bool
        Scores are multiplied with ``1 / sqrt(D)``; else they are not scaled.
    absent : dict of str to str
        Entries of config.json that must be absent or empty, and why.
    expected : dict
        Entries of config.json that must be what they are here, if they are there.
    pieces : tuple of str
        Files of tokens that are not read: without tokenizer.json a model with them takes no texts, but tokens.
    """

    model_types: tuple[str, ...]
    keys: Keys = Keys()
    encoder: StackNames = bart_names("encoder")
    decoder: StackNames = bart_names("decoder")
    memory: MemoryNames = MemoryNames()
    prefix: str = "model."
    words: tuple[str, ...] = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    logit_bias: str | None = "final_logits_bias"
    defaults: Mapping[str, Any] = {}
    activations: Mapping[str, tuple[str, bool]] = _UNGATED
    norm: str = "layer"
    norm_first: bool = False
    biases: frozenset[str] = ALL
    first_position: int = 2
    sinusoidal: bool = False
    scales_scores: bool = True
    absent: Mapping[str, str] = {}
    expected: Mapping[str, Any] = {"is_encoder_decoder": True, "is_decoder": False}
    pieces: tuple[str, ...] = ()
