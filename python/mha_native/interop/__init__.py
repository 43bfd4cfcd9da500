"""Adapters for other specifications and packages: attention, embeddings and rankers."""
