"""The score options: which keys a query sees, and what becomes of its scores. All of attention takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from numpy import ndarray

from ._arrays import Tensor, to_numpy


class ModelOptions(TypedDict, total=False):
    """Options that belong to a model: they do not depend on the tokens of a call."""

    window: tuple[int, int] | None
    scale: float | None
    softcap: float | None
    alibi_slopes: Tensor | None
    sinks: Tensor | None


class KeywordOptions(ModelOptions, total=False):
    """Options that are keywords of every function and layer; `scaled_dot_product_attention` says what they mean."""

    is_causal: bool
    query_offset: int | Tensor
    key_lengths: Tensor | None


class ScoreOptions(KeywordOptions, total=False):
    """All options. One that is missing has its default. The core knows them from attention_options.def."""

    attn_mask: Tensor | None
    key_mask: Tensor | None


# Types that are known to be no tensors of another library.
_PLAIN = frozenset({ndarray, bool, int, float, tuple, list, type(None)})


def core_options(
    function: str, options: Mapping[str, Any], accepted: frozenset[str] = ScoreOptions.__optional_keys__
) -> ScoreOptions:
    """A copy of `options` that the core takes: with arrays for tensors.

    Parameters
    ----------
    function : str
        The name of the caller, for messages.
    options : dict
        What it got beyond the arguments that it names.
    accepted : set of str
        The names that it takes.

    Raises
    ------
    TypeError
        For a name that is not `accepted`, as Python does, and for a tensor that NumPy cannot read.
    """
    converted: Any = {}
    for name, value in options.items():
        if name not in accepted:
            raise TypeError(f"{function}: got an unexpected keyword argument {name!r}")
        converted[name] = value if type(value) in _PLAIN else to_numpy(function, name, value)
    return converted  # type: ignore[no-any-return]
