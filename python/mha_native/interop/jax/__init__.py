"""Attention as a function of JAX: traced, compiled and mapped with the rest of a program, on the memory of XLA."""

from .attention import dot_product_attention, scaled_dot_product_attention

__all__ = ["dot_product_attention", "scaled_dot_product_attention"]
