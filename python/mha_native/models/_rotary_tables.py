"""The tables that turn queries and keys by their positions, from what config.json says of them."""

from typing import NamedTuple


class RotaryConfig(NamedTuple):
    """By which angles the first features of each head are turned.

    Attributes
    ----------
    rotary_dim : int
        R, the features of a head that are turned.
    base : float
        Pair i turns by ``position / base^(2 i / R)``, before scaling.
    rule : str
        How that is scaled: default, linear, dynamic, yarn, longrope or llama3.
    """

    rotary_dim: int
    base: float
    max_positions: int  # P
    rule: str = "default"
