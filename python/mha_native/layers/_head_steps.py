"""The steps between projection and attention, for each row of each head of query and key: a norm, and a rotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import _core
from ..functions.messages import in_the_name_of, name_of_type, shown
from ..functions.scalars import checked_real
from ._constructor_arguments import NORM_EPS, initial_weights
from .rotary_embedding import RotaryEmbedding

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._layer_weights import Sizes


# The kinds of norms of query and key: the kind as in NORM_EPS, and whether one norm covers all heads together.
QK_NORMS = {**{kind: (kind, False) for kind in NORM_EPS}, "rms_joint": ("rms", True)}


class HeadSteps(NamedTuple):
    """The steps of one layer: a norm of each head or of all heads together, and a rotation by the position."""

    rotary: RotaryEmbedding | None = None
    qk_norm: str | None = None  # one of QK_NORMS
    qk_norm_eps: float = NORM_EPS["rms"]

    def for_layers_in(self, dtype: np.dtype[Any]) -> HeadSteps:
        """Return the steps for a layer in `dtype`."""
        return self._replace(rotary=self.rotary and self.rotary._for_layers_in(dtype))

    def configuration(self) -> dict[str, Any]:
        """Return the arguments of a constructor that are not the default."""
        norm = {} if self.qk_norm is None else {"qk_norm": self.qk_norm, "qk_norm_eps": self.qk_norm_eps}
        return norm if self.rotary is None else norm | {"rotary": self.rotary}

    def state_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the norms of query and key in a state dict."""
        if self.qk_norm is None:
            return {}
        names = ["weight", "bias"] if self.qk_norm == "layer" else ["weight"]
        features = (
            {"q": sizes.in_rows[0], "k": sizes.in_rows[1]} if self.is_joint else dict.fromkeys("qk", sizes.head_dim)
        )
        return {f"{letter}_norm.{name}": (features[letter],) for letter in "qk" for name in names}

    @property
    def is_joint(self) -> bool:
        """Whether one norm covers all heads together."""
        return self.qk_norm is not None and QK_NORMS[self.qk_norm][1]

    def initial_state(self, sizes: Sizes, dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
        """Return weights that multiply by 1, and biases of 0."""
        weight = 0.0 if self.qk_norm == "rms_unit_offset" else 1.0
        return {
            name: initial_weights(np.full(shape, weight if name.endswith("weight") else 0.0), dtype)
            for name, shape in self.state_shapes(sizes).items()
        }

    def norms(self, arrays: Mapping[str, NDArray[Any]]) -> tuple[_core.Norm | None, _core.Norm | None]:
        """Return the norms of query and key, with the weights of a state dict."""
        return self._norm(arrays, "q_norm"), self._norm(arrays, "k_norm")

    def _norm(self, arrays: Mapping[str, NDArray[Any]], name: str) -> _core.Norm | None:
        if self.qk_norm is None:
            return None
        weight = arrays[f"{name}.weight"]
        with in_the_name_of("MultiHeadAttention", eps="qk_norm_eps"):
            if self.qk_norm == "layer":
                return _core.LayerNorm(weight, arrays[f"{name}.bias"], self.qk_norm_eps)
            return _core.RMSNorm(weight, self.qk_norm_eps, self.qk_norm == "rms_unit_offset")


def norms_state(norms: tuple[_core.Norm | None, ...]) -> dict[str, NDArray[Any]]:
    """Undo `HeadSteps.norms`."""
    state: dict[str, NDArray[Any] | None] = {}
    for letter, norm in zip("qk", norms, strict=True):
        weight, bias = (None, None) if norm is None else norm.weights()
        state |= {f"{letter}_norm.weight": weight, f"{letter}_norm.bias": bias}
    return {name: array for name, array in state.items() if array is not None}


def checked_steps(
    function: str, qk_norm: str | None, qk_norm_eps: float | None, rotary: RotaryEmbedding | None
) -> HeadSteps:
    """Check the arguments of a constructor, and return the steps."""
    if rotary is not None and not isinstance(rotary, RotaryEmbedding):
        raise TypeError(f"{function}: rotary must be a RotaryEmbedding or None; got {name_of_type(rotary)}")
    if qk_norm is not None and not (isinstance(qk_norm, str) and qk_norm in QK_NORMS):
        kind = ValueError if isinstance(qk_norm, str) else TypeError
        raise kind(f"{function}: qk_norm must be None or one of {', '.join(map(repr, QK_NORMS))}; got {shown(qk_norm)}")
    default = NORM_EPS[QK_NORMS[qk_norm or "rms"][0]]
    eps = checked_real(function, "qk_norm_eps", default if qk_norm_eps is None else qk_norm_eps)
    if eps < 0:
        raise ValueError(f"{function}: qk_norm_eps must be at least 0; got {shown(eps)}")
    return HeadSteps(rotary, qk_norm, eps)
