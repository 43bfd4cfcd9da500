"""The compiled core: positional arguments, NumPy arrays only. The functions of the package document them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .functions.options import ScoreOptions

# The weights of a linear map: matrix, bias, and the scale of a matrix in int8. A matrix in blocks is (bytes, format).
_LinearWeights = tuple[Any, NDArray[Any] | None, NDArray[Any] | None]

__version__: str
compiler: str

def scaled_dot_product_attention(
    query: NDArray[Any],
    key: NDArray[Any] | KVCache,
    value: NDArray[Any] | None,
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
    key: NDArray[Any] | KVCache,
    options: ScoreOptions,
    stage: str,
    out: NDArray[Any] | None,
    num_threads: int | None,
    /,
) -> NDArray[Any]: ...
def attention_gradient(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    out: NDArray[Any],
    lse: NDArray[Any],
    dout: NDArray[Any],
    dlse: NDArray[Any] | None,
    options: ScoreOptions,
    wrt: tuple[str, ...],
    gradients: tuple[NDArray[Any] | None, NDArray[Any] | None, NDArray[Any] | None],
    num_threads: int | None,
    /,
) -> tuple[NDArray[Any] | None, ...]: ...
def attention_gradient_varlen(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    cu_seqlens_q: NDArray[Any],
    cu_seqlens_k: NDArray[Any],
    out: NDArray[Any],
    lse: NDArray[Any],
    dout: NDArray[Any],
    dlse: NDArray[Any] | None,
    options: ScoreOptions,
    wrt: tuple[str, ...],
    gradients: tuple[NDArray[Any] | None, NDArray[Any] | None, NDArray[Any] | None],
    num_threads: int | None,
    /,
) -> tuple[NDArray[Any] | None, ...]: ...
def attention_statistics(
    query: NDArray[Any],
    key: NDArray[Any] | KVCache,
    options: ScoreOptions,
    num_threads: int | None,
    /,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64], NDArray[Any], NDArray[Any]]: ...
def from_dlpack(capsule: Any, tensor: Any = None, /) -> NDArray[Any]: ...
def array_of_tensor(exchange: Any, tensor: Any, /) -> NDArray[Any] | None: ...
def tensor_of_array(exchange: Any, array: NDArray[Any], /) -> Any: ...
def linear(
    x: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any] | None, num_threads: int | None, /
) -> NDArray[Any]: ...
def linear_gradient(
    x: NDArray[Any] | None,
    weight: NDArray[Any] | None,
    dout: NDArray[Any],
    wrt: tuple[str, ...],
    num_threads: int | None,
    /,
) -> tuple[NDArray[Any] | None, NDArray[Any] | None, NDArray[Any] | None]: ...
def layer_norm_gradient(
    x: NDArray[Any],
    weight: NDArray[Any] | None,
    dout: NDArray[Any],
    eps: float,
    wrt: tuple[str, ...],
    num_threads: int | None,
    /,
) -> tuple[NDArray[Any] | None, NDArray[Any] | None, NDArray[Any] | None]: ...
def rms_norm_gradient(
    x: NDArray[Any],
    weight: NDArray[Any] | None,
    dout: NDArray[Any],
    eps: float,
    unit_offset: bool,
    wrt: tuple[str, ...],
    num_threads: int | None,
    /,
) -> tuple[NDArray[Any] | None, NDArray[Any] | None, None]: ...
def activation(
    x: NDArray[Any], activation: str, up: NDArray[Any] | None, num_threads: int | None, /
) -> NDArray[Any]: ...
def activation_gradient(
    x: NDArray[Any], dout: NDArray[Any], activation: str, up: NDArray[Any] | None, num_threads: int | None, /
) -> tuple[NDArray[Any], NDArray[Any] | None]: ...
def merge_attention(
    outs: list[NDArray[Any]],
    lses: list[NDArray[Any]],
    out: NDArray[Any] | None,
    num_threads: int | None,
    /,
) -> tuple[NDArray[Any], NDArray[Any]]: ...
def xla_attention() -> Any: ...
def xla_attention_gradient() -> Any: ...
def bfloat16() -> np.dtype[Any]: ...
def boolean(function: str, argument: str, value: object, /) -> bool: ...
def integer(function: str, argument: str, value: object, /) -> int: ...
def real(function: str, argument: str, value: object, /) -> float: ...
def dtype_name(dtype: np.dtype[Any], /) -> str: ...
def weight_formats() -> dict[str, bool]: ...
def block_formats() -> dict[str, tuple[int, int]]: ...
def weight_bytes(format: str, in_features: int, /) -> int: ...
def dequantize(blocks: NDArray[np.int8], format: str, num_threads: int | None, /) -> NDArray[np.float32]: ...
def convert(array: NDArray[Any], dtype: DTypeLike, /) -> NDArray[Any]: ...
def embed_tokens(
    tokens: NDArray[np.integer],
    places: NDArray[np.integer] | None,
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
def cross_entropy(
    x: NDArray[Any],
    weight: NDArray[Any],
    targets: NDArray[np.integer],
    bias: NDArray[Any] | None,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
    wrt: tuple[str, ...],
    num_threads: int | None,
    /,
) -> tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any] | None, NDArray[Any] | None]: ...
def maxsim(
    queries: NDArray[Any],
    documents: NDArray[Any],
    cu_seqlens_q: NDArray[np.integer],
    cu_seqlens_k: NDArray[np.integer],
    query_scale: NDArray[np.float32] | None,
    document_scale: NDArray[np.float32] | None,
    pair_queries: NDArray[np.integer] | None,
    pair_documents: NDArray[np.integer] | None,
    out: NDArray[Any] | None,
    num_threads: int | None,
    /,
) -> NDArray[Any]: ...
def quantize_tokens(x: NDArray[Any], num_threads: int | None, /) -> tuple[NDArray[np.int8], NDArray[np.float32]]: ...
def embedding_gradient(
    ids: NDArray[np.integer], dout: NDArray[Any], num_embeddings: int, num_threads: int | None, /
) -> NDArray[Any]: ...
def adamw(
    weight: NDArray[Any],
    gradient: NDArray[Any],
    m: NDArray[Any],
    v: NDArray[Any],
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    gradient_norm: float,
    max_norm: float,
    step: int,
    num_threads: int | None,
    /,
) -> None: ...
def gradient_norm(gradients: list[NDArray[Any]], num_threads: int | None, /) -> float: ...
def mean_pool(
    x: NDArray[Any],
    cu_seqlens: NDArray[np.integer],
    normalize: bool,
    out: NDArray[Any] | None,
    num_threads: int | None,
    /,
) -> NDArray[Any]: ...

class CancellationFlag:
    def __init__(self) -> None: ...
    def set(self) -> None: ...
    def is_set(self) -> bool: ...
    def begin(self) -> None: ...
    def end(self) -> bool: ...

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
    @staticmethod
    def over(keys: NDArray[Any], values: NDArray[Any], lengths: NDArray[Any] | None, /) -> KVCache: ...
    def append(self, key: NDArray[Any], value: NDArray[Any], new_lengths: NDArray[Any] | None, /) -> None: ...
    def assign(self, key: NDArray[Any], value: NDArray[Any], new_lengths: NDArray[Any] | None, /) -> None: ...
    def stored(self) -> tuple[NDArray[np.int8], NDArray[np.int8], NDArray[np.float32], NDArray[np.float32]]: ...
    def assign_stored(
        self,
        key: NDArray[Any],
        value: NDArray[Any],
        key_scale: NDArray[Any],
        value_scale: NDArray[Any],
        new_lengths: NDArray[Any],
        /,
    ) -> None: ...
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

class PagedKVCache(KVCache):
    def __init__(
        self,
        num_pages: int,
        page_size: int,
        batch_size: int,
        num_kv_heads: int,
        head_dim: int,
        value_head_dim: int | None,
        dtype: DTypeLike,
        /,
    ) -> None: ...
    def fork(self, sequence: int, into: int | None, length: int | None, /) -> int: ...
    def release(self, sequence: int | NDArray[Any], /) -> None: ...
    def stored_pages(self) -> tuple[NDArray[Any], ...]: ...
    def assign_pages(
        self,
        key: NDArray[Any],
        value: NDArray[Any],
        key_scale: NDArray[Any] | None,
        value_scale: NDArray[Any] | None,
        page_table: NDArray[Any],
        lengths: NDArray[Any],
        /,
    ) -> None: ...
    def check(self) -> bool: ...
    @property
    def keys(self) -> NDArray[Any]: ...
    @property
    def values(self) -> NDArray[Any]: ...
    @property
    def num_pages(self) -> int: ...
    @property
    def page_size(self) -> int: ...
    @property
    def free_pages(self) -> int: ...
    @property
    def page_table(self) -> NDArray[np.int64]: ...

class RotaryEmbedding:
    def __init__(self, cos: NDArray[Any], sin: NDArray[Any], interleaved: bool, /) -> None: ...
    def rotate(
        self,
        function: str,
        x: NDArray[Any],
        positions: NDArray[np.integer] | None,
        backwards: bool,
        num_threads: int | None,
        /,
    ) -> NDArray[Any]: ...
    @property
    def cos(self) -> NDArray[Any]: ...
    @property
    def sin(self) -> NDArray[Any]: ...
    @property
    def interleaved(self) -> bool: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...

class MultiHeadAttention:
    def __init__(
        self,
        sizes: tuple[int, ...],
        projections: tuple[_LinearWeights, ...],
        added: tuple[NDArray[Any] | None, NDArray[Any] | None],
        add_zero_attn: bool,
        weight_dtype: str,
        query_norm: Norm | None,
        key_norm: Norm | None,
        rotary: RotaryEmbedding | None,
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
        cache: KVCache | None,
        sequences: NDArray[Any] | None,
        out: NDArray[Any] | None,
        num_threads: int | None,
        /,
    ) -> NDArray[Any]: ...
    def forward_and_record(
        self,
        query: NDArray[Any],
        key: NDArray[Any],
        value: NDArray[Any],
        cu_seqlens_q: NDArray[Any] | None,
        cu_seqlens_k: NDArray[Any] | None,
        options: ScoreOptions,
        num_threads: int | None,
        /,
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]: ...
    def append_to(
        self,
        cache: KVCache,
        key: NDArray[Any],
        value: NDArray[Any],
        new_lengths: NDArray[Any] | None,
        num_threads: int | None,
        /,
    ) -> None: ...
    def weights(self) -> tuple[tuple[_LinearWeights, ...], tuple[NDArray[Any] | None, NDArray[Any] | None]]: ...
    @property
    def formats(self) -> tuple[str, ...]: ...
    @property
    def norms(self) -> tuple[Norm | None, Norm | None]: ...
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

class Norm:
    def forward(self, x: NDArray[Any], out: NDArray[Any] | None, num_threads: int | None, /) -> NDArray[Any]: ...
    def weights(self) -> tuple[NDArray[Any], NDArray[Any] | None]: ...
    @property
    def eps(self) -> float: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...

class LayerNorm(Norm):
    def __init__(self, weight: NDArray[Any], bias: NDArray[Any] | None, eps: float, /) -> None: ...

class RMSNorm(Norm):
    def __init__(self, weight: NDArray[Any], eps: float, unit_offset: bool, /) -> None: ...

class Linear:
    def __init__(self, weights: _LinearWeights, weight_dtype: str, /) -> None: ...
    def forward(self, x: NDArray[Any], out: NDArray[Any] | None, num_threads: int | None, /) -> NDArray[Any]: ...
    def weights(self) -> _LinearWeights: ...
    def rows(self, features: NDArray[np.integer], /) -> NDArray[np.float32]: ...
    @property
    def formats(self) -> tuple[str, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...

class FeedForward:
    def __init__(self, linears: tuple[_LinearWeights, ...], activation: str, weight_dtype: str, /) -> None: ...
    def forward(self, x: NDArray[Any], out: NDArray[Any] | None, num_threads: int | None, /) -> NDArray[Any]: ...
    def weights(self) -> tuple[_LinearWeights, ...]: ...
    @property
    def formats(self) -> tuple[str, ...]: ...
    @property
    def up(self) -> Linear: ...
    @property
    def down(self) -> Linear: ...
    @property
    def gate(self) -> Linear | None: ...
    @property
    def activation(self) -> str: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...

class Experts:
    def __init__(
        self,
        router: Linear,
        feed_forwards: list[FeedForward],
        choice: tuple[int, bool, bool, float],
        shared: FeedForward | None,
        shared_gate: Linear | None,
        correction: NDArray[np.float32] | None,
        /,
    ) -> None: ...
    def forward(self, x: NDArray[Any], out: NDArray[Any] | None, num_threads: int | None, /) -> NDArray[Any]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...

class TransformerStack:
    def __init__(self, name: str, layers: list[tuple[Any, ...]], norm: Norm | None, /) -> None: ...
    def forward(
        self,
        x: NDArray[Any],
        options: ScoreOptions,
        extras: Mapping[str, Any],
        out: NDArray[Any] | None,
        num_threads: int | None,
        /,
    ) -> Any: ...

def add_and_normalize(
    x: NDArray[Any],
    residual: NDArray[Any],
    norm: Norm | None,
    sum: NDArray[Any] | None,
    num_threads: int | None,
    /,
) -> tuple[NDArray[Any], NDArray[Any] | None]: ...
def sinusoidal_positions(length: int, embed_dim: int, first_position: int, dtype: DTypeLike, /) -> NDArray[Any]: ...
def built_isas() -> tuple[str, ...]: ...
def isa_supported(name: str, /) -> bool: ...
def isa_reason(name: str, /) -> str: ...
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
