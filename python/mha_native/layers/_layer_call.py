"""The call of a layer or a stack: its arguments as the core takes them, and results as the caller's arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numpy import ndarray

from .. import _core
from ..functions.arrays import Tensor, like, to_numpy
from ..functions.options import ATTENTION_OPTIONS, AttentionOptions, core_options
from ..functions.token_cache import TokenCache, cores_of_caches
from ._layer_options import merged_options


class LayerOptions(AttentionOptions, total=False):
    """Keyword options of the calls of layers and stacks."""

    cu_seqlens: Tensor | None
    new_lengths: Tensor | None
    sequences: Tensor | None


class DecoderOptions(LayerOptions, total=False):
    """Keyword options of the calls of layers and stacks that read a memory."""

    memory_attn_mask: Tensor | None
    memory_key_mask: Tensor | None
    memory_lengths: Tensor | None
    memory_scale: float | None
    memory_sequences: Tensor | None


# The options that are not score options, with and without a memory.
_LAYER_OPTIONS = LayerOptions.__optional_keys__ - ATTENTION_OPTIONS
_DECODER_OPTIONS = DecoderOptions.__optional_keys__ - ATTENTION_OPTIONS

# Options of the attention to the memory, each with its name as an option of attention.
MEMORY_OPTIONS = {
    "memory_attn_mask": "attn_mask",
    "memory_key_mask": "key_mask",
    "memory_lengths": "key_lengths",
    "memory_scale": "scale",
}


def take_extras(module: Any, options: Any) -> dict[str, Any]:
    """Move the arguments that are no options of self-attention from `options` to a new dict, as the core takes them."""
    extras: dict[str, Any] = {}
    if options:
        name = type(module).__name__
        for argument in (_DECODER_OPTIONS if module._reads_memory else _LAYER_OPTIONS).intersection(options):
            if (value := options.pop(argument)) is not None:
                array = to_numpy(name, argument, value)
                if option := MEMORY_OPTIONS.get(argument):
                    extras.setdefault("memory_options", {})[option] = array
                else:
                    extras[argument] = array
    return extras


def run(
    module: Any,
    x: Tensor,
    memory: Tensor | None,
    memory_caches: Iterable[TokenCache] | None,
    caches: Iterable[TokenCache] | None,
    need_weights: bool,
    out: Tensor | None,
    num_threads: int | None,
    options: Any,
) -> tuple[Tensor, list[Tensor]]:
    """Return the result of a layer or a stack for `x`, and the attention weights of each layer if they are needed.

    `options` are the other keyword arguments of a call. The dict is changed: it keeps the options of self-attention.
    """
    name = type(module).__name__
    extras = take_extras(module, options)
    if module._is_causal:
        options.setdefault("is_causal", True)
    if memory is not None:
        extras["memory"] = memory if type(memory) is ndarray else to_numpy(name, "memory", memory)
    if memory_caches is not None:
        extras["memory_caches"] = cores_of_caches(name, "memory_caches", memory_caches)
    if caches is not None:
        extras["caches"] = cores_of_caches(name, "caches", caches)
    if need_weights is not False:
        extras["need_weights"] = _core.boolean(name, "need_weights", need_weights)
    if module.layer_options is not None:
        extras["layer_options"] = merged_options(name, options, module.layer_options, module.dtype)
        options = {}
    result: Any = module._stack().forward(
        x if type(x) is ndarray else to_numpy(name, "x", x),
        core_options(name, options, ATTENTION_OPTIONS),
        extras,
        out if out is None or type(out) is ndarray else to_numpy(name, "out", out),
        num_threads,
    )
    array, weights = result if type(result) is tuple else (result, [])
    if type(x) is ndarray:
        return array, weights
    return like(x, array) if out is None else out, [like(x, of_layer) for of_layer in weights]
