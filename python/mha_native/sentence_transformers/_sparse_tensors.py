"""Conversion of sparse tensors of torch to `SparseEmbeddings`, and back."""

from typing import Any

import numpy as np

from ..functions.messages import shown
from ..models import SparseEmbeddings
from ._tensors import as_array, is_tensor


def torch_or_none() -> Any:
    """Return the module torch, or None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    return torch


def is_sparse(value: object) -> bool:
    """Return whether `value` is SparseEmbeddings, a sparse tensor, or a list that begins with one."""
    if isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, SparseEmbeddings) or (is_tensor(value) and "sparse" in str(getattr(value, "layout", "")))


def as_sparse(function: str, name: str, value: Any) -> tuple[SparseEmbeddings, bool]:
    """Return vectors [N, V] or [V] as SparseEmbeddings, and whether there is one axis.

    TypeError or ValueError if `value` is neither SparseEmbeddings nor numbers of one or two axes.
    """
    if isinstance(value, SparseEmbeddings):
        return value, False
    if isinstance(value, list) and is_sparse(value):
        parts = [as_sparse(function, name, each)[0] for each in value]
        widths = {each.features for each in parts}
        if len(widths) > 1:
            raise ValueError(f"{function}: {name} must have as many features; got {sorted(widths)}")
        return SparseEmbeddings.concatenated(parts, parts[0].features), False
    if is_sparse(value):
        tensor = value.detach().cpu()
        is_one = tensor.dim() == 1
        if tensor.dim() in (1, 2):
            tensor = (tensor.unsqueeze(0) if is_one else tensor).to_sparse_coo().coalesce()
            rows, columns = tensor.indices().numpy()
            offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=tensor.shape[0]))]).astype(np.int64)
            values = tensor.values().float().numpy()
            return SparseEmbeddings(offsets, columns.astype(np.int32), values, tensor.shape[1]), is_one
    array = None if is_sparse(value) else as_array(value)
    if array is None or array.dtype.kind not in "fiu" or array.ndim not in (1, 2):
        raise TypeError(f"{function}: {name} must be numbers [N, V] or [V]; got {shown(value)}")
    return SparseEmbeddings.of_dense(np.atleast_2d(array).astype(np.float32, copy=False)), array.ndim == 1


def as_sparse_tensor(embeddings: SparseEmbeddings, is_one: bool) -> Any:
    """Return a sparse tensor [N, V] of torch, which shares its memory with the values; [V] if `is_one`."""
    torch = torch_or_none()
    places = torch.from_numpy(embeddings.indices.astype(np.int64))[None]
    shape: tuple[int, ...] = (embeddings.features,)
    if not is_one:
        rows = np.repeat(np.arange(embeddings.num_texts), np.diff(embeddings.offsets))
        places = torch.cat([torch.from_numpy(rows)[None], places])
        shape = (embeddings.num_texts, embeddings.features)
    values = torch.from_numpy(embeddings.values)
    return torch.sparse_coo_tensor(places, values, shape, is_coalesced=True, check_invariants=False)
