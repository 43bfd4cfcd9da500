"""Models in one file of the format GGUF, in the words of a folder of Hugging Face."""
