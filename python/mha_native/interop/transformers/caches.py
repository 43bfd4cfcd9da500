"""Cache layers for transformers that hold their tokens in a `KVCache`."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ...functions.arrays import like, to_numpy
from ...functions.token_cache import TokenCache
from ...layers.encoder import EncoderLayer

# Least room after a prompt, in tokens: a few dozen steps without growth.
_ROOM = 64


def _tensor(i: int) -> Any:
    """Make the property of a layer for its keys, i = 0, or values, i = 1: a tensor [B, Hk, T, D] or None."""
    return property(lambda layer: layer._taken_out()[i], lambda layer, tensor: layer._put(i, tensor))


class NativeCacheLayer(DynamicLayer):
    """The keys and values of one layer: in a `KVCache` while layers of this library append to it, else in tensors.

    It inherits other operations of `DynamicLayer`, on copies in tensors. A layer with a window keeps all tokens, too.
    """

    keys, values = _tensor(0), _tensor(1)

    def __init__(self) -> None:
        self._native: TokenCache | None = None
        self._tensors: list[torch.Tensor | None] = [None, None]
        super().__init__()

    def with_room(self, layer: EncoderLayer, batch: int, count: int) -> TokenCache | None:
        """Return a cache with room for `count` more tokens; None if the contents do not fit `layer` and `batch`."""
        length, cache = self.get_seq_length(), self._native
        if cache is not None and (cache.batch_size, cache.dtype) == (batch, layer.dtype):
            if length + count <= cache.capacity:
                return cache
        elif length and not self._can_be_read_by(layer, batch):
            return None
        grown = layer.new_cache(batch, max(2 * length, length + count + _ROOM))
        if length and cache is not None:
            grown._take_tokens(cache)
        elif length:
            grown.append(self.keys, self.values)
        self._native, self._tensors, self.is_initialized = grown, [None, None], True
        return grown

    def _can_be_read_by(self, layer: EncoderLayer, batch: int) -> bool:
        """Return whether the tensors have this batch size, and the heads and dtype of `layer`."""
        heads, width = layer.self_attn.num_kv_heads, layer.self_attn.head_dim
        return all(
            x is not None
            and (x.shape[0], x.shape[1], x.shape[3]) == (batch, heads, width)
            and to_numpy("accelerate", "the cache", x).dtype == layer.dtype
            for x in self._taken_out()
        )

    def get_seq_length(self) -> int:
        return super().get_seq_length() if self._native is None else self._native.longest

    def crop(self, tokens_to_remove: int) -> None:
        if self._native is None or tokens_to_remove >= 0:
            super().crop(tokens_to_remove)
        else:
            self._native.rollback(min(-tokens_to_remove, self._native.longest))

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        if self._native is None or len(beam_idx) != self._native.batch_size:
            super().reorder_cache(beam_idx)
        else:
            self._native.reorder(beam_idx)

    def _taken_out(self) -> list[torch.Tensor | None]:
        """Return keys and values as tensors: copies, if they are in a cache."""
        cache = self._native
        if cache is None:
            return self._tensors
        some = torch.empty(0)
        return [like(some, array[:, :, : cache.longest].copy()) for array in (cache.keys, cache.values)]

    def _put(self, i: int, tensor: torch.Tensor | None) -> None:
        self._tensors = self._taken_out()
        self._native = None
        self._tensors[i] = tensor
        if tensor is not None:
            self.dtype, self.device = tensor.dtype, tensor.device


def native_cache_layer(cache: Any, i: int) -> NativeCacheLayer | None:
    """Return layer i of a cache, replacing an equivalent layer; None if the cache has no such layer."""
    if type(cache) is not DynamicCache or cache.offloading:
        return None
    layers = cache.layers
    while len(layers) <= i and cache.layer_class_to_replicate is not None:
        layers.append(cache.layer_class_to_replicate())
    if i >= len(layers):
        return None
    theirs = layers[i]
    if type(theirs) is NativeCacheLayer:
        return theirs
    is_empty_window = type(theirs) is DynamicSlidingWindowLayer and not theirs.is_initialized
    if type(theirs) is not DynamicLayer and not is_empty_window:  # tokens outside a window are gone
        return None
    ours = NativeCacheLayer()
    if theirs.is_initialized:
        ours.keys, ours.values, ours.is_initialized = theirs.keys, theirs.values, True
    layers[i] = ours
    return ours
