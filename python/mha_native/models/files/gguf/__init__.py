"""Models in one file of the format GGUF, in the terms of a folder of Hugging Face."""
