"""What a sentence model says of itself, and which of its settings may change after it has been read."""

from typing import Any

import numpy as np

from ..functions.messages import in_the_name_of
from ..layers._constructor_arguments import checked_size
from .architecture.model import Model
from .files.sentence_files import SentenceConfig
from .heads.embedding import Head
from .text.prompts import Settings
from .text.tokenizer import Tokenizer


class SentenceSettings:
    """The settings and sizes of a model. A setting changes as a whole, so that calls in other threads see either."""

    _model: Model
    _tokenizer: Tokenizer
    _head: Head
    _config: SentenceConfig
    _settings: Settings

    @property
    def embed_dim(self) -> int:
        """E, the features of an embedding, unless a call has another `truncate_dim`."""
        kept = self._settings.truncate_dim
        return self._head.features if kept is None else min(kept, self._head.features)

    @property
    def truncate_dim(self) -> int | None:
        """How many features of an embedding are kept unless a call says so; None: all. May be set."""
        return self._settings.truncate_dim

    @truncate_dim.setter
    def truncate_dim(self, truncate_dim: int | None) -> None:
        if truncate_dim is not None:
            truncate_dim = checked_size(type(self).__name__, "truncate_dim", truncate_dim)
        self._settings = self._settings._replace(truncate_dim=truncate_dim)

    @property
    def max_seq_length(self) -> int:
        """The most tokens of a text that count, its special tokens included. May be set, as far as there are
        positions."""
        return self._config.max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, max_seq_length: int) -> None:
        name = type(self).__name__
        length = self._model.config.checked_length(name, max_seq_length)
        with in_the_name_of(name):
            self._tokenizer = self._tokenizer.cut_at(length)
        self._config = self._config._replace(max_seq_length=length)

    @property
    def prompts(self) -> dict[str, str]:
        """What the model puts before a text, by the names that `encode` takes."""
        return dict(self._settings.prompts.by_name)

    @property
    def default_prompt_name(self) -> str | None:
        """Of the prompt where a call names none; None: there is no prompt then."""
        return self._settings.prompts.default_name

    @property
    def similarity_fn_name(self) -> str:
        """What compares embeddings of this model: "cosine", "dot", "euclidean" or "manhattan"."""
        return self._settings.similarity

    @property
    def dtype(self) -> np.dtype[Any]:
        """What the model is computed in."""
        return self._model.dtype

    @property
    def weight_dtype(self) -> str:
        """What the weights of the layers are stored as."""
        return self._model.weight_dtype

    @property
    def num_layers(self) -> int:
        """Layers of the encoder."""
        return self._model.num_layers

    @property
    def num_heads(self) -> int:
        """H, the heads of each layer."""
        return self._model.num_heads
