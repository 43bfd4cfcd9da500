"""Layers with weights: `MultiHeadAttention`, what stands around it in a transformer, and stacks of those."""
