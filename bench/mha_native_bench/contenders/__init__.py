"""The contenders: one file and one row of `PEERS` for each."""

from __future__ import annotations

from importlib import import_module

from mha_native_bench.contenders.contender import Contender, Program, in_rotation
from mha_native_bench.contenders.ours import Ours

__all__ = ["PEERS", "Contender", "Ours", "Program", "in_rotation", "make_peer"]

# The name on the command line: module and class. A module imports its library, which need not be installed.
PEERS = {
    "read": ("yardsticks.read_once", "ReadOnce"),
    "against": ("yardsticks.against", "Against"),
    "padded": ("yardsticks.padded", "Padded"),
    "numpy": ("peers.numpy_unfused", "NumPyUnfused"),
    "torch": ("peers.torch_peer", "Torch"),
    "onnxruntime": ("peers.onnxruntime_peer", "OnnxRuntime"),
    "transformers": ("peers.transformers_peer", "Transformers"),
    "openvino": ("peers.openvino_peer", "OpenVino"),
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
