"""Families of text encoders. Each is data: what config.json says, and the names of its tensors."""

from .known import FAMILIES, described, read_config
from .text_config import TextConfig

__all__ = ["FAMILIES", "TextConfig", "described", "read_config"]
