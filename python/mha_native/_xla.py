"""What XLA, the compiler of JAX, calls by itself, without Python."""

from ._core import xla_attention

__all__ = ["xla_attention"]
