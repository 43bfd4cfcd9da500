"""The norms of a transformer layer: their places, their construction, and their arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _core
from ..functions.messages import shown
from ._constructor_arguments import NORM_EPS
from .layer_norm import LayerNorm
from .norm import Norm
from .rms_norm import RMSNorm

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

# Attributes of a layer, one for each part in the order in which they run: its norm, and the norm of its result before
# the addition. None: no norm.
NORMS = ("norm1", "norm2", "norm3")
OUTPUT_NORMS = ("output_norm1", "output_norm2", "output_norm3")


def new_norm(norm: str, embed_dim: int, eps: float | None, bias: bool, dtype: DTypeLike) -> Norm:
    """Return a norm of the kind `norm`. Only a `LayerNorm` can have a bias."""
    if not (isinstance(norm, str) and norm in NORM_EPS):
        kind = ValueError if isinstance(norm, str) else TypeError
        raise kind(f"TransformerLayer: norm must be 'layer', 'rms' or 'rms_unit_offset'; got {shown(norm)}")
    eps = NORM_EPS[norm] if eps is None else eps
    if norm == "layer":
        return LayerNorm(embed_dim, eps=eps, bias=bias, dtype=dtype)
    return RMSNorm(embed_dim, eps=eps, unit_offset=norm == "rms_unit_offset", dtype=dtype)


def arguments_of_norms(layer: Any) -> dict[str, Any]:
    """Return the arguments of the constructor for the norms of `layer`: eps, and others that are not the default."""
    norms = [getattr(layer, place) for place in NORMS + OUTPUT_NORMS]
    first = next((norm for norm in norms if norm is not None), None)
    own: dict[str, Any] = {}
    if isinstance(first, RMSNorm):
        own["norm"] = "rms_unit_offset" if first.unit_offset else "rms"
    if any(getattr(layer, place) is not None for place in OUTPUT_NORMS):
        own["output_norms"] = True
    return own if first is None else own | {"eps": first.eps}


def cores_of_norms(layer: Any, places: tuple[str, ...]) -> tuple[_core.Norm | None, ...]:
    """Return the objects of the core, with the current weights."""
    norms = [getattr(layer, place) for place in places]
    return tuple(None if norm is None else norm._core for norm in norms)
