"""What other specifications and packages call, over this library: attention, embeddings, and the scores of rankers."""
