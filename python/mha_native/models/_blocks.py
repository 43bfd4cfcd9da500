"""What one layer of a transformer computes, as data: models say it of each of their layers."""

from typing import NamedTuple

from ._rotary_tables import RotaryConfig


class NormConfig(NamedTuple):
    """A norm of rows of features.

    Attributes
    ----------
    kind : {"layer", "rms", "rms_unit_offset"}
        Of the last, what is multiplied with is 1 more than its weight.
    """

    kind: str
    eps: float
    bias: bool = False


class BlockConfig(NamedTuple):
    """A layer: self-attention and a feed-forward, with the norms and additions around them.

    Attributes
    ----------
    num_kv_heads, head_dim : int
        Hk, D.
    norm : NormConfig
        Of every norm that the layer has.
    norms : set of str
        Those that it has, of ``norm1`` and ``norm2``, which are before or behind a sublayer, and ``output_norm1`` and
        ``output_norm2``, of what a sublayer gives before it is added.
    norm_first : bool
        ``norm1`` and ``norm2`` are of what a sublayer reads (pre-LN), and not of the sum behind it.
    biases : set of str
        The products that add one, of query, key, value, out, linear1, linear2 and gate.
    qk_norm : NormConfig, optional
        Of each head of queries and keys, before it is turned.
    rotary : RotaryConfig, optional
        By what queries and keys are turned.
    window : (left, right), optional
        How many keys before and behind a query it sees besides its own; -1: all.
    scale : float, optional
        What scores are multiplied with. Default: ``1 / sqrt(D)``.
    softcap : float, optional
        Scores become ``softcap * tanh(score / softcap)``.
    """

    embed_dim: int  # E
    num_heads: int  # H
    num_kv_heads: int
    head_dim: int
    feedforward_dim: int  # F
    activation: str
    norm: NormConfig
    norms: frozenset[str] = frozenset({"norm1", "norm2"})
    norm_first: bool = True
    gated: bool = False
    biases: frozenset[str] = frozenset()
    qk_norm: NormConfig | None = None
    rotary: RotaryConfig | None = None
    window: tuple[int, int] | None = None
    scale: float | None = None
    softcap: float | None = None
