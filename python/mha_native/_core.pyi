"""The compiled core: positional arguments, NumPy arrays only. The functions of the package document them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ._options import ScoreOptions

# The weights of a linear map: matrix, bias, and the scale of a matrix in int8.
Linear = tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]

__version__: str
compiler: str

def scaled_dot_product_attention(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    options: ScoreOptions,
    return_lse: bool,
    out: NDArray[Any] | None,
    num_threads: int | None,
    /,
) -> Any: ...
def scaled_dot_product_attention_varlen(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    cu_seqlens_q: NDArray[Any],
    cu_seqlens_k: NDArray[Any],
    options: ScoreOptions,
    return_lse: bool,
    out: NDArray[Any] | None,
    num_threads: int | None,
    /,
) -> Any: ...
def attention_weights(
    query: NDArray[Any],
    key: NDArray[Any],
    options: ScoreOptions,
    stage: str,
    out: NDArray[Any] | None,
    num_threads: int | None,
    /,
) -> NDArray[Any]: ...
def attention_statistics(
    query: NDArray[Any],
    key: NDArray[Any],
    options: ScoreOptions,
    num_threads: int | None,
    /,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64], NDArray[Any], NDArray[Any]]: ...
def from_dlpack(capsule: Any, /) -> NDArray[Any]: ...
def merge_attention(
    outs: list[NDArray[Any]],
    lses: list[NDArray[Any]],
    out: NDArray[Any] | None,
    num_threads: int | None,
    /,
) -> tuple[NDArray[Any], NDArray[Any]]: ...
def bfloat16() -> np.dtype[Any]: ...
def dtype_name(dtype: np.dtype[Any], /) -> str: ...
def convert(array: NDArray[Any], dtype: DTypeLike, /) -> NDArray[Any]: ...
def embed_tokens(
    tokens: NDArray[np.integer],
    cu_seqlens: NDArray[np.integer],
    words: NDArray[Any],
    positions: NDArray[Any],
    norm_weight: NDArray[Any] | None,
    norm_bias: NDArray[Any] | None,
    norm_eps: float,
    out: NDArray[Any] | None,
    num_threads: int | None,
    /,
) -> NDArray[Any]: ...
def mean_pool(
    x: NDArray[Any],
    cu_seqlens: NDArray[np.integer],
    normalize: bool,
    out: NDArray[Any] | None,
    num_threads: int | None,
    /,
) -> NDArray[Any]: ...

class DLPackArray:
    def __init__(self, array: NDArray[Any], /) -> None: ...
    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class KVCache:
    def __init__(
        self,
        batch_size: int,
        num_kv_heads: int,
        capacity: int,
        head_dim: int,
        value_head_dim: int | None,
        dtype: DTypeLike,
        /,
    ) -> None: ...
    def append(self, key: NDArray[Any], value: NDArray[Any], new_lengths: NDArray[Any] | None, /) -> None: ...
    def assign(self, key: NDArray[Any], value: NDArray[Any], new_lengths: NDArray[Any] | None, /) -> None: ...
    def rollback(self, count: int | NDArray[Any], /) -> None: ...
    def reorder(self, index: NDArray[Any], /) -> None: ...
    def keep_last(self, count: int, /) -> None: ...
    def clear(self) -> None: ...
    @property
    def keys(self) -> NDArray[Any]: ...
    @property
    def values(self) -> NDArray[Any]: ...
    @property
    def lengths(self) -> NDArray[np.int64]: ...
    @property
    def longest(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def value_head_dim(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...

class MultiHeadAttention:
    def __init__(
        self,
        sizes: tuple[int, ...],
        projections: tuple[Linear, ...],
        added: tuple[NDArray[Any] | None, NDArray[Any] | None],
        add_zero_attn: bool,
        weight_dtype: str,
        /,
    ) -> None: ...
    def forward(
        self,
        query: NDArray[Any],
        key: NDArray[Any] | None,
        value: NDArray[Any] | None,
        options: ScoreOptions,
        cache: KVCache | None,
        new_lengths: NDArray[Any] | None,
        need_weights: bool,
        out: NDArray[Any] | None,
        num_threads: int | None,
        /,
    ) -> Any: ...
    def forward_varlen(
        self,
        query: NDArray[Any],
        key: NDArray[Any],
        value: NDArray[Any],
        cu_seqlens_q: NDArray[Any],
        cu_seqlens_k: NDArray[Any],
        options: ScoreOptions,
        out: NDArray[Any] | None,
        num_threads: int | None,
        /,
    ) -> NDArray[Any]: ...
    def append_to(
        self,
        cache: KVCache,
        key: NDArray[Any],
        value: NDArray[Any],
        new_lengths: NDArray[Any] | None,
        num_threads: int | None,
        /,
    ) -> None: ...
    def weights(self) -> tuple[tuple[Linear, ...], tuple[NDArray[Any] | None, NDArray[Any] | None]]: ...
    @property
    def embed_dim(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def value_head_dim(self) -> int: ...
    @property
    def kdim(self) -> int: ...
    @property
    def vdim(self) -> int: ...
    @property
    def out_dim(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...

class LayerNorm:
    def __init__(self, weight: NDArray[Any], bias: NDArray[Any] | None, eps: float, /) -> None: ...
    def forward(self, x: NDArray[Any], out: NDArray[Any] | None, num_threads: int | None, /) -> NDArray[Any]: ...
    def weights(self) -> tuple[NDArray[Any], NDArray[Any] | None]: ...
    @property
    def eps(self) -> float: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...

class FeedForward:
    def __init__(self, up: Linear, down: Linear, activation: str, weight_dtype: str, /) -> None: ...
    def forward(self, x: NDArray[Any], out: NDArray[Any] | None, num_threads: int | None, /) -> NDArray[Any]: ...
    def weights(self) -> tuple[Linear, Linear]: ...
    @property
    def activation(self) -> str: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...

class TransformerStack:
    def __init__(self, name: str, layers: list[tuple[Any, ...]], norm: LayerNorm | None, /) -> None: ...
    def forward(
        self,
        x: NDArray[Any],
        options: ScoreOptions,
        extras: Mapping[str, Any],
        out: NDArray[Any] | None,
        num_threads: int | None,
        /,
    ) -> Any: ...

def sinusoidal_positions(length: int, embed_dim: int, first_position: int, dtype: DTypeLike, /) -> NDArray[Any]: ...
def built_isas() -> tuple[str, ...]: ...
def isa_supported(name: str, /) -> bool: ...
def active_isa() -> str: ...
def active_isa_reason() -> str: ...
def set_isa(name: str | None, /) -> None: ...
def last_used_isa() -> str: ...
def num_threads() -> int: ...
def num_threads_reason() -> str: ...
def set_num_threads(n: int | None, /) -> None: ...
def in_forked_child() -> bool: ...
def scratch_bytes() -> int: ...
def measure_fma_gflops(dtype: DTypeLike, seconds: float, /) -> float: ...
def read_memory(arrays: list[NDArray[Any]], num_threads: int, /) -> int: ...
def dtypes() -> tuple[str, ...]: ...
