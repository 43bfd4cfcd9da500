"""The backward pass of a transformer layer: its parts, their norms, and the residual stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import _core
from ..functions.messages import in_the_name_of
from ._layer_call import MEMORY_OPTIONS, take_extras
from ._norms_of_layers import NORMS, OUTPUT_NORMS
from ._tape import OPTIONS_WITH_GRADIENTS, Backward, Recording, add_gradients, added

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .norm import Norm


class Sublayer(NamedTuple):
    """A part of a layer with its norms, and what is recorded of each."""

    part: Any
    options: Mapping[str, Any]
    before: Norm | None  # of the input of the part
    output_norm: Norm | None  # of its result
    after: Norm | None  # of the sum
    of_part: Recording
    of_before: Recording
    of_output_norm: Recording
    of_after: Recording


class Kept(NamedTuple):
    """Arrays that a call keeps of a sublayer."""

    value: Any  # the input of the part, if it cannot be computed again
    result: Any  # of the part, before an output norm
    total: Any  # result and residual stream
    backward: Backward


def record_layer(
    layer: Any, arrays: tuple[Any, ...], options: Mapping[str, Any], recording: Recording
) -> tuple[NDArray[Any], Backward]:
    """Return the result of a call of `layer`, and its backward pass.

    With the norms before the parts, the residual stream is a sum of results. With the norms after them, each sum is
    normed, and is the stream then.
    """
    if layer.parallel:
        raise ValueError(f"{type(layer).__name__}: a parallel layer has no gradients")
    threads, is_narrow = recording.num_threads, layer.dtype.itemsize == 2
    sublayers = _sublayers(layer, options, recording)
    memory = arrays[1]
    stream = np.ascontiguousarray(arrays[0])
    first = sublayers[0].before
    value = stream if first is None else first._core.forward(stream, None, threads)
    kept = []
    for i, sublayer in enumerate(sublayers):
        inputs = _inputs(layer, sublayer, value, memory)
        with in_the_name_of(type(layer).__name__, **_names(layer, sublayer)):
            out, backward_of_part = sublayer.part._record(inputs, sublayer.options, sublayer.of_part)
        result, norm = None, _next_norm(sublayers, i)
        if sublayer.output_norm is not None:
            result, out = out, sublayer.output_norm._core.forward(out, None, threads)
        given = value
        total, normed = _core.add_and_normalize(out, stream, None if norm is None else norm._core, out, threads)
        value = total if normed is None else normed
        stream = total if layer.norm_first else value
        # A norm is computed again, which takes less time than its memory is worth. Not of 16 bits: the sum is normed
        # before it is rounded, so that the bits would differ.
        is_last = norm is None and i + 1 == len(sublayers)
        kept.append(Kept(given if is_narrow else None, result, None if is_last else total, backward_of_part))

    def backward(arrays: tuple[Any, ...], dout: NDArray[Any], weights: dict[str, Any]) -> dict[str, Any]:
        x, memory = np.ascontiguousarray(arrays[0]), arrays[1]
        inputs: dict[str, Any] = {}
        dstream, dvalue = dout, None  # gradients by the residual stream, and by the input of the next part
        for i in reversed(range(len(sublayers))):
            sublayer, own = sublayers[i], kept.pop()
            if layer.norm_first and dvalue is not None:
                of_norm = _through(_next_norm(sublayers, i), sublayers[i + 1].of_before, own.total, dvalue, weights)
                dstream = dstream if of_norm is None else added(dstream, of_norm, threads)
            elif not layer.norm_first:
                dstream = dstream if dvalue is None else added(dstream, dvalue, threads)
                of_norm = _through(sublayer.after, sublayer.of_after, own.total, dstream, weights)
                if of_norm is None:
                    return inputs
                dstream = of_norm
            dresult = _through(sublayer.output_norm, sublayer.of_output_norm, own.result, dstream, weights)
            dvalue = None
            if dresult is None or not sublayer.of_part.is_needed:
                continue
            value = own.value
            if value is None:
                norm = sublayer.before if i == 0 else _next_norm(sublayers, i - 1)
                value = x if i == 0 else kept[-1].total
                value = value if norm is None else norm._core.forward(value, None, threads)
            found = own.backward(_inputs(layer, sublayer, value, memory), dresult, weights)
            del own, value, dresult
            dvalue = found.pop("x", found.pop("query", None))
            if "key" in found:
                found["memory"] = found.pop("key")
            add_gradients(inputs, found, threads)
        if dvalue is not None:
            of_norm = _through(sublayers[0].before, sublayers[0].of_before, x, dvalue, weights)
            if of_norm is not None:
                dstream = added(dstream, of_norm, threads)
        return inputs | ({"x": dstream} if "x" in recording.inputs else {})

    return stream, backward


def _sublayers(layer: Any, options: Mapping[str, Any], recording: Recording) -> list[Sublayer]:
    of_self: dict[str, Any] = dict(options)
    extras = take_extras(layer, of_self)
    if layer._is_causal:
        of_self.setdefault("is_causal", True)
    of_self["cu_seqlens_q"] = extras.get("cu_seqlens")
    parts: list[tuple[str, Any, Mapping[str, Any], list[str]]] = [
        ("self_attn.", layer.self_attn, of_self, [x for x in OPTIONS_WITH_GRADIENTS if x in recording.inputs])
    ]
    if layer.cross_attn is not None:
        of_memory = ["key"] if "memory" in recording.inputs else []
        parts.append(("multihead_attn.", layer.cross_attn, extras.get("memory_options", {}), of_memory))
    parts.append(("", layer.feed_forward, {}, []))
    found = []
    is_reached = "x" in recording.inputs  # whether gradients of inputs of this step are needed
    for (prefix, part, of_part, others), place, output_place in zip(parts, NORMS, OUTPUT_NORMS, strict=False):
        norm, output_norm = getattr(layer, place), getattr(layer, output_place)
        before = recording.part(f"{place}.", norm if layer.norm_first else None, *["x"] * is_reached)
        is_reached |= bool(before.weights)
        argument = "x" if part is layer.feed_forward else "query"
        own = recording.part(prefix, part, *others, *[argument] * is_reached)
        is_reached |= own.is_needed
        output = recording.part(f"{output_place}.", output_norm, *["x"] * is_reached)
        is_reached |= bool(output.weights)
        after = recording.part(f"{place}.", None if layer.norm_first else norm, *["x"] * is_reached)
        is_reached |= bool(after.weights)
        norms = (norm, None) if layer.norm_first else (None, norm)
        found.append(Sublayer(part, of_part, norms[0], output_norm, norms[1], own, before, output, after))
    return found


def _next_norm(sublayers: list[Sublayer], i: int) -> Norm | None:
    """Return the norm of the sum after sublayer i."""
    return sublayers[i].after or (sublayers[i + 1].before if i + 1 < len(sublayers) else None)


def _inputs(layer: Any, sublayer: Sublayer, value: NDArray[Any], memory: Any) -> tuple[Any, ...]:
    if sublayer.part is layer.feed_forward:
        return (value,)
    return (value, memory if sublayer.part is layer.cross_attn else None, None)


def _names(layer: Any, sublayer: Sublayer) -> dict[str, str]:
    """Return the names in messages of the arguments of a part."""
    if sublayer.part is layer.cross_attn:
        names = {option: name for name, option in MEMORY_OPTIONS.items()}
        return {"query": "x", "key": "memory", "value": "memory", **names}
    return {"query": "x", "key": "x", "value": "x", "cu_seqlens_q": "cu_seqlens"}


def _through(
    norm: Norm | None, recording: Recording, x: NDArray[Any], dout: NDArray[Any], weights: dict[str, Any]
) -> Any:
    """Take a gradient back through a norm, if there is one; None if it is not needed any further."""
    if norm is None:
        return dout if recording.inputs else None
    return norm._through(recording, x, dout, weights).get("x")
