"""The score options: which keys a query sees, and what becomes of its scores. All of attention takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from numpy import ndarray

from .arrays import Tensor, to_numpy
from .messages import shown


class ModelOptions(TypedDict, total=False):
    """Options that belong to a model: they do not depend on the tokens of a call."""

    window: tuple[int, int] | None
    scale: float | None
    softcap: float | None
    alibi_slopes: Tensor | None
    position_bias: Tensor | None
    sinks: Tensor | None


class KeywordOptions(ModelOptions, total=False):
    """Options that are keywords of every function and layer; `scaled_dot_product_attention` says what they mean."""

    is_causal: bool
    query_offset: int | Tensor
    key_lengths: Tensor | None
    key_mask: Tensor | None
    block_mask: Tensor | None


class ScoreOptions(KeywordOptions, total=False):
    """All options of attention. One that is missing has its default. The core knows them from attention_options.def."""

    attn_mask: Tensor | None


class AttentionOptions(ScoreOptions, total=False):
    """Those, and what only the attention of layers takes."""

    positions: Tensor | None


# The names of each kind of options.
MODEL_OPTIONS = ModelOptions.__optional_keys__
KEYWORD_OPTIONS = KeywordOptions.__optional_keys__
SCORE_OPTIONS = ScoreOptions.__optional_keys__
ATTENTION_OPTIONS = AttentionOptions.__optional_keys__

# Types that are known to be no tensors of another library.
_PLAIN = frozenset({ndarray, bool, int, float, tuple, list, type(None)})


def core_options(function: str, options: Mapping[str, Any], accepted: frozenset[str] = SCORE_OPTIONS) -> ScoreOptions:
    """`options` as the core takes them: arrays stand in place of tensors.

    Parameters
    ----------
    function : str
        The name of the caller, for messages.
    options : dict
        The keyword arguments that the caller does not name. Where there is nothing to convert, this is the result.
    accepted : set of str
        The names that it takes.

    Raises
    ------
    TypeError
        For a name that is not `accepted`, as Python does, and for a tensor that NumPy cannot read.
    """
    converted: Any = options
    for name, value in options.items():
        if name not in accepted:
            raise TypeError(f"{function}: got an unexpected keyword argument {shown(name)}")
        if type(value) not in _PLAIN:
            if converted is options:
                converted = dict(options)
            converted[name] = to_numpy(function, name, value)
    return converted  # type: ignore[no-any-return]
