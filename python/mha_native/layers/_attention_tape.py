"""The backward pass of a multi-head attention layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import _core
from ..functions.gradient import attention_gradient
from ..functions.linear import linear, linear_gradient
from ..functions.norm_gradient import layer_norm_gradient, rms_norm_gradient
from ._tape import (
    OPTIONS_WITH_GRADIENTS,
    Backward,
    Recording,
    add_gradients,
    added,
    no_gradients,
    through_map,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._layer_state import LayerState


# The ends of the names of weights that belong to a projection of query, key or value.
_WEIGHTS_OF_LETTERS = ("proj_weight", "proj_bias", "norm.weight", "norm.bias")


class Call(NamedTuple):
    """Everything but the inputs of a recorded call."""

    layer: LayerState
    cu_seqlens: tuple[NDArray[Any], NDArray[Any]] | None  # of a ragged batch
    options: Mapping[str, Any]
    recording: Recording


class Rows(NamedTuple):
    """Arguments and results of attention: rows of heads [H, B, T, D], heads [B, T, H Dv], and lse [B, H, T]."""

    query: NDArray[Any]
    key: NDArray[Any]
    value: NDArray[Any]
    heads: NDArray[Any]
    lse: NDArray[Any]


class Projection(NamedTuple):
    """Projections of one input, one next to another: their letters, and the argument of the call."""

    letters: str
    argument: str
    gradient: NDArray[Any]  # by their results, [..., features]


def record_attention(
    layer: LayerState, arrays: tuple[Any, ...], options: Mapping[str, Any], recording: Recording
) -> tuple[NDArray[Any], Backward]:
    """Return the result of a call of `layer`, and its backward pass."""
    rest = dict(options)
    offsets = rest.pop("cu_seqlens_q", None)
    of_keys = rest.pop("cu_seqlens_k", None)
    ragged = None if offsets is None else (offsets, offsets if of_keys is None else of_keys)
    call = Call(layer, ragged, rest, recording)
    if not recording.is_needed:
        return _forward(call, arrays), no_gradients
    kept: list[Rows] = []
    if recording.recompute == "none":
        out, rows = _forward_and_rows(call, arrays)
        kept.append(rows)
    else:
        out = _forward(call, arrays)

    def backward(arrays: tuple[Any, ...], dout: NDArray[Any], weights: dict[str, Any]) -> dict[str, Any]:
        rows = kept.pop() if kept else _forward_and_rows(call, arrays)[1]
        return _backward(call, arrays, rows, dout, weights)

    return out, backward


def _inputs(arrays: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    query, key, value = arrays
    key = query if key is None else key
    return query, key, key if value is None else value


def _forward(call: Call, arrays: tuple[Any, ...]) -> NDArray[Any]:
    core, threads = call.layer._core, call.recording.num_threads
    if call.cu_seqlens is None:
        out: NDArray[Any] = core.forward(*_inputs(arrays), call.options, None, None, False, None, threads)
    else:
        out = core.forward_varlen(*_inputs(arrays), *call.cu_seqlens, call.options, None, None, None, threads)
    return out


def _forward_and_rows(call: Call, arrays: tuple[Any, ...]) -> tuple[NDArray[Any], Rows]:
    offsets = (None, None) if call.cu_seqlens is None else call.cu_seqlens
    out, *rows = call.layer._core.forward_and_record(
        *_inputs(arrays), *offsets, call.options, call.recording.num_threads
    )
    return out, Rows(*rows)


def _backward(
    call: Call, arrays: tuple[Any, ...], rows: Rows, dout: NDArray[Any], weights: dict[str, Any]
) -> dict[str, Any]:
    layer, recording = call.layer, call.recording
    state = layer.state_dict()
    reaches_heads = recording.weights - {"out_proj.weight", "out_proj.bias"} or recording.inputs
    heads = rows.heads.reshape(*dout.shape[:-1], -1)
    weight = state["out_proj.weight"]
    dheads = through_map(recording, "out_proj.", heads, weight, dout, weights, bool(reaches_heads))
    if dheads is None:
        return {}
    projections = _projections(call, arrays)
    inputs = _through_attention(call, rows, dheads, projections, state, weights)
    del heads, dheads, rows
    _through_steps(call, arrays, projections, state, weights)
    _through_projections(call, arrays, projections, state, weights, inputs)
    return inputs


def _projections(call: Call, arrays: tuple[Any, ...]) -> list[Projection]:
    """Return the projections through which gradients go; projections of one input are one if they can be stacked."""
    sizes, recording = call.layer._sizes, call.recording
    of_key = "query" if arrays[1] is None else "key"
    groups: list[tuple[str, str]] = []
    for letter, argument in zip("qkv", ("query", of_key, of_key if arrays[2] is None else "value"), strict=True):
        if groups and sizes.are_stackable and groups[-1][1] == argument:
            groups[-1] = (groups[-1][0] + letter, argument)
        else:
            groups.append((letter, argument))
    found = []
    for letters, argument in groups:
        own = {"in_proj_weight", "in_proj_bias"}
        own |= {f"{letter}_{name}" for letter in letters for name in _WEIGHTS_OF_LETTERS}
        if argument in recording.inputs or own & recording.weights:
            x = _inputs(arrays)["qkv".index(letters[0])]
            width = sum(sizes.in_rows["qkv".index(letter)] for letter in letters)
            found.append(Projection(letters, argument, np.empty((*x.shape[:-1], width), x.dtype)))
    return found


def _heads_of(layer: LayerState, projections: list[Projection]) -> dict[str, NDArray[Any]]:
    """Return the gradient by the rows of each letter, [B, heads, T, D]: a view of the gradient of a projection."""
    sizes = layer._sizes
    widths = {"q": sizes.head_dim, "k": sizes.head_dim, "v": sizes.value_head_dim}
    views = {}
    for projection in projections:
        gradient, first = projection.gradient, 0
        for letter in projection.letters:
            columns = sizes.in_rows["qkv".index(letter)]
            own = gradient[..., first : first + columns]
            batch = own if own.ndim == 3 else own[None]
            views[letter] = batch.reshape(*batch.shape[:2], -1, widths[letter]).swapaxes(1, 2)
            first += columns
    return views


def _through_attention(
    call: Call,
    rows: Rows,
    dheads: NDArray[Any],
    projections: list[Projection],
    state: Mapping[str, NDArray[Any]],
    weights: dict[str, Any],
) -> dict[str, Any]:
    """Write the gradients by the rows of heads; return the gradients of options."""
    layer, recording = call.layer, call.recording
    threads, sizes = recording.num_threads, layer._sizes
    batch, length = rows.heads.shape[:2]
    query, key, value = (x.swapaxes(0, 1) for x in rows[:3])
    out, dout = (
        x.reshape(batch, length, sizes.num_heads, sizes.value_head_dim).swapaxes(1, 2) for x in (rows.heads, dheads)
    )
    views = _heads_of(layer, projections)
    options: Any = {name: option for name, option in call.options.items() if name != "positions"}
    of_options = tuple(name for name in OPTIONS_WITH_GRADIENTS if name in recording.inputs)
    wrt = tuple(name for name in ("query", "key", "value") if name[0] in views) + of_options
    places = (views.get("q"), views.get("k"), views.get("v"))
    found: tuple[Any, ...] = ()
    if wrt and call.cu_seqlens is None:
        found = _core.attention_gradient(query, key, value, out, rows.lse, dout, None, options, wrt, places, threads)
    elif wrt and call.cu_seqlens is not None:
        query_rows, key_rows, value_rows, out_rows, dout_rows = (
            x[0].swapaxes(0, 1) for x in (query, key, value, out, dout)
        )
        of_rows: Any = tuple(None if x is None else x[0].swapaxes(0, 1) for x in places)
        offsets, of_keys = call.cu_seqlens
        lse = rows.lse[0].T
        found = _core.attention_gradient_varlen(
            query_rows,
            key_rows,
            value_rows,
            offsets,
            of_keys,
            out_rows,
            lse,
            dout_rows,
            None,
            options,
            wrt,
            of_rows,
            threads,
        )
    if layer._parts.add_bias_kv or layer._parts.add_zero_attn:
        _through_added_keys(call, (query, out, rows.lse, dout), views.get("q"), state, weights)
    return dict(zip(OPTIONS_WITH_GRADIENTS, found[3:], strict=False)) if of_options else {}


def _through_added_keys(
    call: Call,
    arrays: tuple[NDArray[Any], ...],
    dquery: NDArray[Any] | None,
    state: Mapping[str, NDArray[Any]],
    weights: dict[str, Any],
) -> None:
    """Add the gradient of the query through the keys that the layer adds, and store the gradients of those."""
    layer, recording = call.layer, call.recording
    query, out, lse, dout = arrays
    heads, sizes = layer._sizes.num_kv_heads, layer._sizes

    def added_rows(name: str, columns: int) -> NDArray[Any]:
        zeros = np.zeros((heads, layer._parts.add_bias_kv + layer._parts.add_zero_attn, columns), query.dtype)
        if layer._parts.add_bias_kv:
            zeros[:, 0] = state[name].reshape(heads, columns)
        return zeros

    wrt = recording.wanted(key="bias_k", value="bias_v") + ("query",) * (dquery is not None)
    if not wrt:
        return
    own: Any = {name: call.options[name] for name in ("scale", "softcap") if name in call.options}
    rows = added_rows("bias_k", sizes.head_dim), added_rows("bias_v", sizes.value_head_dim)
    found = attention_gradient(query, *rows, out, lse, dout, wrt=wrt, num_threads=recording.num_threads, **own)
    for name, gradient in (("bias_k", found.key), ("bias_v", found.value)):
        if gradient is not None:
            recording.store(weights, {name: gradient[:, 0].reshape(1, 1, -1)})
    if dquery is not None:
        dquery[...] = added(np.ascontiguousarray(dquery), found.query, recording.num_threads)


def _through_steps(
    call: Call,
    arrays: tuple[Any, ...],
    projections: list[Projection],
    state: Mapping[str, NDArray[Any]],
    weights: dict[str, Any],
) -> None:
    """Replace the gradients by rows of query and key with those before the rotation and the norms of heads."""
    layer, recording = call.layer, call.recording
    steps, threads = layer._steps, recording.num_threads
    for letter, gradient in _heads_of(layer, projections).items():
        if letter == "v":
            continue
        if steps.rotary is not None:
            gradient[...] = steps.rotary.gradient(gradient, _positions(call, letter, gradient), num_threads=threads)
        if steps.qk_norm is None:
            continue
        weight, bias = _projection_weights(layer, state, letter)
        x = linear(_inputs(arrays)["qkv".index(letter)], weight, bias, num_threads=threads)
        by_row = gradient.swapaxes(1, 2)
        if not steps.is_joint:
            x = x.reshape(by_row.shape).swapaxes(1, 2)
        rows = np.ascontiguousarray(by_row).reshape(x.shape) if steps.is_joint else gradient
        given: Any = (x, state[f"{letter}_norm.weight"], rows)
        wrt = (*recording.wanted(weight=f"{letter}_norm.weight", bias=f"{letter}_norm.bias"), "x")
        if steps.qk_norm == "layer":
            found = layer_norm_gradient(*given, eps=steps.qk_norm_eps, wrt=wrt, num_threads=threads)
        else:
            offset = steps.qk_norm == "rms_unit_offset"
            found = rms_norm_gradient(*given, eps=steps.qk_norm_eps, unit_offset=offset, wrt=wrt, num_threads=threads)
        dx: Any = found.x
        gradient[...] = dx.reshape(by_row.shape).swapaxes(1, 2) if steps.is_joint else dx
        recording.store(weights, {f"{letter}_norm.weight": found.weight, f"{letter}_norm.bias": found.bias})


def _positions(call: Call, letter: str, rows: NDArray[Any]) -> NDArray[np.int64]:
    """Return the positions of rows of query or key, [T] or [B, T]."""
    given = call.options.get("positions")
    if given is not None:
        return np.asarray(given, np.int64)
    length = rows.shape[2]
    counted: NDArray[np.int64] = np.arange(length)
    offset = np.asarray(call.options.get("query_offset", 0) if letter == "q" else 0, np.int64)
    if call.cu_seqlens is None:
        return counted + (offset[:, None] if offset.ndim else offset)
    starts = np.asarray(call.cu_seqlens["qk".index(letter)], np.int64)
    lengths = np.diff(starts)
    return counted - np.repeat(starts[:-1], lengths) + (np.repeat(offset, lengths) if offset.ndim else offset)


def _projection_weights(
    layer: LayerState, state: Mapping[str, NDArray[Any]], letters: str
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the matrix of a projection, or of neighbours; and the bias, of a single letter."""
    sizes = layer._sizes.in_rows
    first, last = "qkv".index(letters[0]), "qkv".index(letters[-1]) + 1
    rows = slice(sum(sizes[:first]), sum(sizes[:last]))
    weight = state["in_proj_weight"][rows] if "in_proj_weight" in state else state[f"{letters}_proj_weight"]
    return weight, state["in_proj_bias"][rows] if "in_proj_bias" in state else state.get(f"{letters}_proj_bias")


def _through_projections(
    call: Call,
    arrays: tuple[Any, ...],
    projections: list[Projection],
    state: Mapping[str, NDArray[Any]],
    weights: dict[str, Any],
    inputs: dict[str, Any],
) -> None:
    layer, recording = call.layer, call.recording
    wanted, threads = recording.weights, recording.num_threads
    matrices: list[Any] = []
    biases: list[Any] = []
    for letters, argument, gradient in projections:
        names = {f"{letter}_proj_weight" for letter in letters} | {"in_proj_weight"}
        of_biases = {f"{letter}_proj_bias" for letter in letters} | {"in_proj_bias"}
        wrt = ("weight",) * (not names.isdisjoint(wanted)) + ("bias",) * (not of_biases.isdisjoint(wanted))
        wrt += ("x",) * (argument in recording.inputs)
        weight, _ = _projection_weights(layer, state, letters)
        x = _inputs(arrays)["qkv".index(letters[0])]
        found = linear_gradient(x, weight, gradient, wrt=wrt, num_threads=threads)
        matrices.append(found.weight)
        biases.append(found.bias)
        recording.store(weights, {f"{letters}_proj_weight": found.weight})
        first = 0
        for letter in letters if found.bias is not None else "":
            last = first + layer._sizes.in_rows["qkv".index(letter)]
            recording.store(weights, {f"{letter}_proj_bias": biases[-1][first:last]})
            first = last
        if found.x is not None:
            add_gradients(inputs, {argument: found.x}, threads)
    for name, pieces in (("in_proj_weight", matrices), ("in_proj_bias", biases)):
        if name in wanted:
            recording.store(weights, {name: pieces[0] if len(pieces) == 1 else np.concatenate(pieces)})
