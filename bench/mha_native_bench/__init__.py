"""Speed of mha_native beside other libraries: ``python -m mha_native bench``. bench/README.md is the protocol."""
