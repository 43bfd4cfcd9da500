"""Contenders: whatever is timed in turns. They are this library, peers and yardsticks.

A peer is another library that computes the case; the fastest of its programs stands for it, and it is ranked. A
yardstick computes something else, so that its time says what part of ours something takes; it is never ranked.
"""

from __future__ import annotations

from importlib import import_module

from mha_native_bench.contenders.contender import Contender, Program, in_rotation
from mha_native_bench.contenders.ours import Ours

__all__ = ["PEERS", "YARDSTICKS", "Contender", "Ours", "Program", "in_rotation", "is_peer", "make_contender"]

# By the name on the command line: module and class. A module imports its library, which need not be installed.
PEERS = {
    "numpy": ("peers.numpy_unfused", "NumPyUnfused"),
    "torch": ("peers.torch_peer", "Torch"),
    "onnxruntime": ("peers.onnxruntime_peer", "OnnxRuntime"),
    "transformers": ("peers.transformers_peer", "Transformers"),
    "sentence-transformers": ("peers.sentence_transformers_peer", "SentenceTransformers"),
    "openvino": ("peers.openvino_peer", "OpenVino"),
    "llama.cpp": ("peers.llama_cpp_peer", "LlamaCpp"),
}
YARDSTICKS = {
    "read": ("yardsticks.read_once", "ReadOnce"),
    "against": ("yardsticks.against", "Against"),
    "padded": ("yardsticks.padded", "Padded"),
}


def make_contender(name: str, thread_counts: list[int]) -> Contender:
    """This library, or the peer or yardstick of that name.

    Raises
    ------
    ImportError
        If its library is not installed.
    """
    if name == Ours.name:
        return Ours(thread_counts)
    module, contender = (PEERS | YARDSTICKS)[name]
    made: Contender = getattr(import_module(f".{module}", __package__), contender)(thread_counts)
    return made


def is_peer(program: Program) -> bool:
    return program.contender != Ours.name and program.contender not in YARDSTICKS
