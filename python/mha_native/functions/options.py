"""The score options of all attention: which keys a query sees, and how its scores are modified."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar

from numpy import ndarray

from .arrays import Tensor, to_numpy
from .messages import shown


class ModelOptions(TypedDict, total=False):
    """Options of a model, which do not depend on the tokens of a call."""

    window: tuple[int, int] | None
    scale: float | None
    softcap: float | None
    alibi_slopes: Tensor | None
    position_bias: Tensor | None
    sinks: Tensor | None


class RareOptions(ModelOptions, total=False):
    """Keyword options other than `is_causal`, which few calls give."""

    query_offset: int | Tensor | None
    key_lengths: Tensor | None
    key_mask: Tensor | None
    block_mask: Tensor | None


class KeywordOptions(RareOptions, total=False):
    """Keyword options of every function and layer, as documented at `scaled_dot_product_attention`."""

    is_causal: bool


class ScoreOptions(KeywordOptions, total=False):
    """The options that functions and layers have. A missing one has its default.

    The core has a list of all options: attention_options.def.
    """

    attn_mask: Tensor | None


class DropoutOptions(TypedDict, total=False):
    """Options that only attention over arrays and its gradient have."""

    dropout_p: float | None
    dropout_seed: int | None


class RareFunctionOptions(RareOptions, DropoutOptions, total=False):
    """Keyword options of attention over arrays, other than `is_causal`."""


class KeywordFunctionOptions(KeywordOptions, DropoutOptions, total=False):
    """Keyword options of attention over arrays."""


class FunctionOptions(ScoreOptions, DropoutOptions, total=False):
    """All options of attention over arrays."""


class AttentionOptions(ScoreOptions, total=False):
    """All options of attention in layers."""

    positions: Tensor | None


# The names of each kind of options.
MODEL_OPTIONS = ModelOptions.__optional_keys__
RARE_OPTIONS = RareOptions.__optional_keys__
KEYWORD_OPTIONS = KeywordOptions.__optional_keys__
SCORE_OPTIONS = ScoreOptions.__optional_keys__
FUNCTION_OPTIONS = FunctionOptions.__optional_keys__
RARE_FUNCTION_OPTIONS = RareFunctionOptions.__optional_keys__
ATTENTION_OPTIONS = AttentionOptions.__optional_keys__

Call = TypeVar("Call", bound=Callable[..., Any])

# Types that need no conversion.
_PLAIN = frozenset({ndarray, bool, int, float, tuple, list, type(None)})


def core_options(function: str, options: Mapping[str, Any], accepted: frozenset[str] = SCORE_OPTIONS) -> ScoreOptions:
    """Return `options` with arrays in place of tensors.

    Parameters
    ----------
    function : str
        The name of the caller, for messages.
    options : dict
        Keyword arguments of the caller. Returned as it is if there is nothing to convert.
    accepted : set of str
        The supported names.

    Raises
    ------
    TypeError
        For a name that is not supported, and for a tensor that NumPy cannot read.
    """
    converted: Any = options
    for name, value in options.items():
        if name not in accepted:
            raise TypeError(f"{function}: got an unexpected keyword argument {shown(name)}")
        if type(value) not in _PLAIN:
            if converted is options:
                converted = dict(options)
            converted[name] = to_numpy(function, name, value)
    found: ScoreOptions = converted
    return found


def lists_options(options: type) -> Callable[[Call], Call]:
    """Give a function with the `options` of a TypedDict a signature that lists them, for `help` and documents.

    Python looks up the default of each keyword-only argument in a dict. For all options that takes a tenth of the time
    of a call on two tokens, so the function itself does not name them.
    """
    listed = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_written(kind))
        for name, kind in options.__annotations__.items()
    ]

    def with_signature(call: Call) -> Call:
        signature = inspect.signature(call)
        named = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        call.__signature__ = signature.replace(parameters=[*named, *listed])  # type: ignore[attr-defined]
        return call

    return with_signature


def _written(annotation: Any) -> str:
    return str(getattr(annotation, "__forward_arg__", annotation))
