"""The commands of ``python -m mha_native``, one module each."""
