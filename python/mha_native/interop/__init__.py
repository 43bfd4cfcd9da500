"""Attention with the meaning that other specifications give it."""
