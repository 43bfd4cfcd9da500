"""What a family of decoders is: everything in which it differs from Llama."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from ..architecture.build import BEFORE_OR_BEHIND
from ..architecture.tensor_names import BlockNames
from .entries import Entries

# From config.json and the number of a layer.
IsSliding: TypeAlias = Callable[[Entries, int], bool]
Window: TypeAlias = Callable[[Entries], int | None]
Scale: TypeAlias = Callable[[Entries, int], float | None]

BLOCK_NAMES = BlockNames(
    layer="layers.{}.",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    out="self_attn.o_proj",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
    norm1="input_layernorm",
    norm2="post_attention_layernorm",
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
)


class Keys(NamedTuple):
    """What the entries of config.json are called. None: there is no such entry."""

    embed_dim: str = "hidden_size"
    num_layers: str = "num_hidden_layers"
    num_heads: str = "num_attention_heads"
    num_kv_heads: str | None = "num_key_value_heads"  # null, or None: as many as heads
    head_dim: str | None = "head_dim"  # null, or None: embed_dim / num_heads
    feedforward_dim: str = "intermediate_size"
    max_positions: str = "max_position_embeddings"
    activation: str = "hidden_act"
    eps: str = "rms_norm_eps"
    layer_types: str | None = None
    softcap: str | None = None
    logit_softcap: str | None = None


class Names(NamedTuple):
    """What the tensors are called that are of no layer. The norm has a weight, and a bias where norms have one."""

    words: str = "embed_tokens.weight"
    positions: str | None = None  # None: positions are not learned
    final_norm: str = "norm"
    head: str = "lm_head.weight"
    blocks: BlockNames = BLOCK_NAMES


def _never(entries: Entries, i: int) -> bool:
    return False


def _no_window(entries: Entries) -> int | None:
    return None


def _usual_scale(entries: Entries, i: int) -> float | None:
    return None


class Family(NamedTuple):
    """Decoders that are computed alike: embeddings, layers that read no memory, a norm, and a head.

    Attributes
    ----------
    model_types : tuple of str
        What config.json calls the family.
    prefix : str
        What the names of its tensors begin with in the files of a model that has a head.
    keys, names
        Of the entries of config.json, and of the tensors.
    defaults : dict
        What transformers has where config.json says nothing.
    norm : {"layer", "rms", "rms_unit_offset"}
        The kind of all norms; those of "layer" have a bias.
    norms : set of str
        Those of a layer: see `BlockConfig`.
    qk_norm : bool
        Heads of queries and keys have norms.
    biases : dict of str to set of str
        The products that add a bias, by the flag of config.json that says so; "": they do in any case.
    bases : dict of str to (str, float)
        The types of layers whose queries and keys are turned in their own way, as for `read_rotary`; {}: in none.
    window : function
        From config.json to the tokens that a layer of the type "sliding_attention" sees, the last one included.
    is_sliding : function
        Whether layer i is of that type, where there is no list of types.
    scale : function
        From config.json and the number of a layer to what its scores are multiplied with; None: ``1 / sqrt(D)``.
    usual_feedforward : int, optional
        How many times embed_dim is feedforward_dim where it is null; None: it must be said.
    scales_embeddings : bool
        Embeddings are multiplied with ``sqrt(E)``.
    absent : dict of str to str
        Entries of config.json that must be absent or empty, and why.
    """

    model_types: tuple[str, ...]
    prefix: str = "model."
    keys: Keys = Keys()
    names: Names = Names()
    defaults: Mapping[str, Any] = {}
    norm: str = "rms"
    norms: frozenset[str] = BEFORE_OR_BEHIND
    gated: bool = True
    qk_norm: bool = False
    biases: Mapping[str, frozenset[str]] = {}
    bases: Mapping[str, tuple[str, float]] = {"": ("rope_theta", 10000.0)}
    window: Window = _no_window
    is_sliding: IsSliding = _never
    scale: Scale = _usual_scale
    usual_feedforward: int | None = None
    scales_embeddings: bool = False
    absent: Mapping[str, str] = {}
