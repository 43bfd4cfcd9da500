"""The contenders: one file and one row of `PEERS` for each."""

from __future__ import annotations

from importlib import import_module

from .contender import Contender, Program
from .ours import Ours

__all__ = ["PEERS", "Contender", "Ours", "Program", "make_peer"]

# The name on the command line: module and class. A module imports its library, which need not be installed.
PEERS = {
    "padded": ("padded", "Padded"),
    "numpy": ("numpy_unfused", "NumPyUnfused"),
    "torch": ("torch_peer", "Torch"),
}


def make_peer(name: str, thread_counts: list[int]) -> Contender:
    """The peer called `name`.

    Raises
    ------
    ImportError
        If its library is not installed.
    """
    module, peer = PEERS[name]
    made: Contender = getattr(import_module(f".{module}", __package__), peer)(thread_counts)
    return made
