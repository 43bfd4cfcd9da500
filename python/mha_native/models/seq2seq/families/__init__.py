"""Families of encoder-decoders. Each is data: what config.json says, and the names of its tensors."""

from .known import FAMILIES

__all__ = ["FAMILIES"]
