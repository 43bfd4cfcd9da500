"""What models that write texts say of themselves."""

from typing import Any

import numpy as np


class GeneratorFace:
    """Attributes of `CausalLM` and of `Seq2SeqLM`."""

    _model: Any  # the computation, with its config

    @property
    def vocab_size(self) -> int:
        """V, the logits of a token."""
        return int(self._model.config.vocab_size)

    @property
    def embed_dim(self) -> int:
        """E, the features of a token."""
        return int(self._model.config.embed_dim)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What the model is computed in."""
        return self._model.dtype  # type: ignore[no-any-return]

    @property
    def weight_dtype(self) -> str:
        """What the matrices of the layers are stored as, by name."""
        return str(self._model.weight_dtype)
