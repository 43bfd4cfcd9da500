"""The forward of one layer of a model of transformers, computed by a layer of this library."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...functions.options import ModelOptions
from ...layers.encoder import EncoderLayer
from ...layers.rotary_embedding import RotaryEmbedding
from .caches import native_cache_layer
from .masks import options_of_layer
from .snapshots import LayerSnapshot

# Arguments that a layer is given and that do not change what it computes; any other must be None or False.
_OF_NO_EFFECT = frozenset({"use_cache", "cache_position", "output_hidden_states", "return_dict", "position_ids"})


class Turns:
    """The rotary positions of the layers of one type: `cos` and `sin`, [P, R / 2], of positions 0 to P - 1."""

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        self.table = RotaryEmbedding(cos, sin)
        self._cos = cos
        self._last: tuple[Any, NDArray[np.int64] | None] = (None, None)

    def positions_of(self, embeddings: Any, position_ids: torch.Tensor | None) -> NDArray[np.int64] | None:
        """Return the positions of one call, [T] or [B, T]; None if they are not in the table.

        The model has computed `embeddings`, (cos, sin) of [B or 1, T, R], once for all of its layers. By default
        `position_ids`, [B or 1, T], are 0 to T - 1.
        """
        cos = embeddings[0]
        if self._last[0] is not cos:
            self._last = cos, self._found(cos, position_ids)
        return self._last[1]

    def _found(self, cos: torch.Tensor, position_ids: torch.Tensor | None) -> NDArray[np.int64] | None:
        ids = torch.arange(cos.shape[1])[None] if position_ids is None else position_ids
        if ids.shape != cos.shape[:2] or ids.numel() == 0 or ids.min() < 0 or ids.max() >= len(self._cos):
            return None
        expected, given = self._cos[ids].to(cos.dtype), cos[..., : self._cos.shape[1]]
        # Vectors of other lengths may round a cosine in another way.
        if not torch.allclose(given, expected, rtol=0, atol=4 * torch.finfo(cos.dtype).eps):
            return None
        positions: NDArray[np.int64] = ids.to(torch.int64).numpy()
        return positions[0] if len(positions) == 1 else positions


class Neighbours:
    """The state that the layers of one model share.

    If the attention implementation in `config` is not `implementation`, the layers of torch compute. They are expected
    to, if gradients are recorded, `in_training`.
    """

    implementation: str

    def __init__(self, config: Any, in_training: bool) -> None:
        self.config = config
        self._has_warned = in_training
        self._bias: tuple[Any, Any, torch.Tensor | None] = (None, None, None)

    def are_in_use(self) -> bool:
        """Return whether the model uses the implementation."""
        # As `config._attn_implementation`, which takes over a microsecond: it looks each name up in a table.
        used: bool = object.__getattribute__(self.config, "_attn_implementation_internal") == self.implementation
        return used

    def warn_of_gradients(self) -> None:
        """Warn once that torch computes, because gradients are recorded."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "accelerate: gradients are recorded, so that the layers of torch compute; call the model under "
                "torch.no_grad() or torch.inference_mode()",
                stacklevel=3,
            )

    def biased(self, mask: torch.Tensor | None, bias: torch.Tensor) -> torch.Tensor:
        """Return the sum of an additive mask and a bias, computed once for all layers of a call."""
        if self._bias[0] is not mask or self._bias[1] is not bias:
            self._bias = mask, bias, bias if mask is None else bias + mask
        total: torch.Tensor = self._bias[2]
        return total


class LayerForward:
    """The replacement of the method ``forward`` of layer `i` of a model. The layer itself is not changed.

    `make` returns the equivalent layer of this library, or raises ValueError. `options` are its score options; its
    window is in the masks. A layer of a decoder `is_causal`.
    """

    def __init__(
        self,
        layer: Any,
        make: Callable[[Any], EncoderLayer],
        i: int,
        neighbours: Neighbours,
        options: ModelOptions,
        turns: Turns | None,
        is_causal: bool,
    ) -> None:
        self._layer, self._make, self._i, self._neighbours = layer, make, i, neighbours
        self._options: Any = {name: value for name, value in options.items() if name != "window"}
        self._turns, self._is_causal = turns, is_causal
        self._names = tuple(inspect.signature(type(layer).forward).parameters)[1:]  # without self
        self._gives_tuple = neighbours.config.model_type == "mpnet"
        self._refresh()

    def _refresh(self) -> None:
        """Take the weights as they are now. ValueError if they are no longer those of such a layer."""
        self._snapshot: LayerSnapshot | None = LayerSnapshot(self._layer)
        self._native: EncoderLayer | None = None
        self._native = self._make(self._layer)
        self._dtype = next(self._layer.parameters()).dtype

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_snapshot": None, "_native": None}  # a copy of the layer has weights of its own

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        given = dict(zip(self._names, arguments, strict=False)) | named
        out = None if torch.compiler.is_compiling() or torch.jit.is_tracing() else self._computed(given)
        if out is None:
            return type(self._layer).forward(self._layer, *arguments, **named)
        return (out,) if self._gives_tuple else out

    def _computed(self, given: dict[str, Any]) -> torch.Tensor | None:
        """Return the result of the layer; None if torch must compute it."""
        x, mask = given.pop("hidden_states"), given.pop("attention_mask", None)
        cache = given.pop("past_key_values", None)
        of_cache = None if cache is None else native_cache_layer(cache, self._i)
        if (cache is not None and of_cache is None) or not self._is_in_charge(x):
            return None
        embeddings, bias = given.pop("position_embeddings", None), given.pop("position_bias", None)
        if any(value is not None and value is not False for name, value in given.items() if name not in _OF_NO_EFFECT):
            return None
        layer = self._current()
        if layer is None or x.dtype != self._dtype or x.ndim != 3 or not x.is_cpu:
            return None

        batch, count, _ = x.shape
        past = 0 if of_cache is None else of_cache.get_seq_length()
        mask = mask if bias is None else self._neighbours.biased(mask, bias)
        sizes = batch, count, past + count
        options = options_of_layer(mask, sizes, x.dtype, self._is_causal, of_cache is not None)
        if options is None:
            return None
        if self._turns is not None:
            positions = self._turns.positions_of(embeddings, given.get("position_ids"))
            if positions is None:
                return None
            options["positions"] = positions
        native_cache = None if of_cache is None else of_cache.with_room(layer, batch, count)
        if of_cache is not None and native_cache is None:
            return None
        out: torch.Tensor = layer(x, cache=native_cache, **self._options, **options)
        return out

    def _is_in_charge(self, x: torch.Tensor) -> bool:
        """Return whether a call needs only the result, and the model uses the implementation of this library."""
        if self._layer.training or not self._neighbours.are_in_use():
            return False
        snapshot = self._snapshot or LayerSnapshot(self._layer)
        if torch.is_grad_enabled() and (x.requires_grad or snapshot.requires_grad()):
            self._neighbours.warn_of_gradients()
            return False
        return not (torch.is_autocast_enabled("cpu") or snapshot.has_hooks())

    def _current(self) -> EncoderLayer | None:
        """Return the layer with the current weights of the model; None if there is no equivalent layer."""
        if self._snapshot is None or not self._snapshot.is_current():
            with contextlib.suppress(ValueError):
                self._refresh()
        return self._native
