"""Families of models. Each is data: the entries of config.json, and the names of tensors."""
