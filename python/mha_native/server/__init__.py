"""A server of models over HTTP, for clients of OpenAI, Cohere and Text Embeddings Inference."""

from . import _needed as _needed
from .application import app
from .config import Config, Model

__all__ = ["Config", "Model", "app"]
