"""What a layer does to each row of each head of query and key, between their projection and attention."""

from typing import Any, NamedTuple

import numpy as np

from .._messages import name_of_type
from .rotary_embedding import RotaryEmbedding


class HeadSteps(NamedTuple):
    """The steps of one layer."""

    rotary: RotaryEmbedding | None = None

    def for_layers_in(self, dtype: np.dtype[Any]) -> "HeadSteps":
        """The same for a layer in `dtype`."""
        return self._replace(rotary=self.rotary and self.rotary._for_layers_in(dtype))

    def configuration(self) -> dict[str, Any]:
        """The arguments of a constructor that differ from their defaults."""
        return {} if self.rotary is None else {"rotary": self.rotary}


def checked_steps(function: str, rotary: RotaryEmbedding | None) -> HeadSteps:
    """The steps that a caller asked for."""
    if rotary is not None and not isinstance(rotary, RotaryEmbedding):
        raise TypeError(f"{function}: rotary must be a RotaryEmbedding or None; got {name_of_type(rotary)}")
    return HeadSteps(rotary)
