"""The package transformers, whose models compute attention by the function registered under a name."""

from .registration import register

__all__ = ["register"]
