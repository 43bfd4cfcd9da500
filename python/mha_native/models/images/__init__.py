"""Images: read from files, arrays and PIL images, and turned into the pixels that a model reads."""
