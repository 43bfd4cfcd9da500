"""Layers with weights: `MultiHeadAttention`, the other layers of a transformer, and stacks of layers."""
