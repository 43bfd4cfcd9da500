"""Encoder-decoders: what their files say, and the parts that are made of them."""
