"""One row of `cases.toml`: its sizes, its options and its work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

KINDS = ("sdpa", "ragged", "mha", "step", "encoder_layer", "sentences")

# By the name in `cases.toml`: the name in mha_native, and the distance from 1 to the next larger number.
DTYPES = {
    "f32": ("float32", 2**-23),
    "f64": ("float64", 2**-52),
    "f16": ("float16", 2**-10),
    "bf16": ("bfloat16", 2**-7),
}

# The same for formats of weights. int8 scales the largest weight of each output feature to 127, about 2^7.
WEIGHTS = {"": ("", 0.0), "bf16": DTYPES["bf16"], "int8": ("int8", 2**-7)}


def np_dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype of that name; bfloat16 comes from the optional package ml_dtypes.

    Raises
    ------
    ImportError
    """
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


@dataclass(frozen=True)
class Case:
    """One shape. The fields are the columns of `cases.toml`, which explains them; value heads are as wide as D."""

    name: str
    kind: str
    dtype: str
    B: int
    H: int
    Hk: int
    Tq: int
    Tk: int
    D: int
    E: int
    causal: bool
    F: int = 0
    activation: str = ""
    layers: int = 1
    shortest: int = 0
    window: tuple[int, int] | None = None
    admitted: int | None = None
    softcap: float | None = None
    alibi: bool = False
    scores: float = 1
    values: float = 1
    cold: bool = False
    texts: bool = False
    against: str = ""
    weights: str = ""
    cache: str = ""
    quick: bool = False
    extra: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.dtype not in DTYPES:
            raise ValueError(f"case {self.name}: kind {self.kind!r} or dtype {self.dtype!r} is not known")
        if self.weights not in WEIGHTS or (self.weights and not (self.is_layer and self.dtype == "f32")):
            raise ValueError(f"case {self.name}: weights are kept in {', '.join(WEIGHTS)[2:]} by layers in f32")
        if min(self.B, self.H, self.Hk, self.Tq, self.Tk, self.D) < 1 or self.H % self.Hk:
            raise ValueError(f"case {self.name}: sizes must be positive, and H a multiple of Hk")
        if self.cache and (self.cache not in ("bf16", "f16") or (self.kind, self.dtype) != ("step", "f32")):
            raise ValueError(f"case {self.name}: caches of 16 bits are for steps of layers in f32")
        if self.kind == "step" and (self.Tq != 1 or self.causal):
            raise ValueError(f"case {self.name}: a step has one query, which sees all keys")
        if self.is_layer and (self.E != self.H * self.D or self.Hk != self.H):
            raise ValueError(f"case {self.name}: a layer has E = H * D and Hk = H")
        if self.has_feed_forward and self.Tk != self.Tq:
            raise ValueError(f"case {self.name}: an encoder attends to itself, with Tk = Tq")
        if self.is_cross and self.causal:
            raise ValueError(f"case {self.name}: attention to a memory cannot be causal")
        if self.quick and self.extra:
            raise ValueError(f"case {self.name}: quick and extra exclude each other")
        if self.has_feed_forward and (self.F < 1 or self.activation not in ("relu", "gelu")):
            raise ValueError(f"case {self.name}: an encoder needs F, and an activation")
        if not self.has_feed_forward and (self.F or self.activation):
            raise ValueError(f"case {self.name}: F and activation are for encoders")
        if self.layers < 1 or (self.layers > 1 and self.kind != "sentences"):
            raise ValueError(f"case {self.name}: layers must be at least 1, and more are for sentences only")
        if self.texts and (self.kind != "sentences" or self.shortest < 3):
            raise ValueError(f"case {self.name}: texts are for sentences of 3 tokens or more, two of which are special")
        if self.is_ragged and (self.Tk != self.Tq or not 1 <= self.shortest <= self.Tq):
            raise ValueError(f"case {self.name}: sequences attend to themselves, with Tk = Tq and 1 <= shortest <= Tq")
        if self.admitted is not None and not 0 < self.admitted <= self.Tk:
            raise ValueError(f"case {self.name}: the mask must admit 1 to Tk keys")
        if min(self.scores, self.values) <= 0:
            raise ValueError(f"case {self.name}: standard deviations of scores and values must be positive")
        if self.kind != "sdpa" and (self.options.keys() - {"is_causal"} or self.cold or self.deviations != (1, 1)):
            raise ValueError(
                f"case {self.name}: options, deviations, and memory that is cold, are for attention of a dense batch"
            )

    @property
    def is_layer(self) -> bool:
        """Whether there are weights."""
        return self.kind in ("mha", "step", "encoder_layer", "sentences")

    @property
    def is_cross(self) -> bool:
        """Whether a layer attends to another sequence than its own."""
        return self.kind == "mha" and self.Tk != self.Tq

    @property
    def has_feed_forward(self) -> bool:
        return self.kind in ("encoder_layer", "sentences")

    @property
    def is_ragged(self) -> bool:
        """Whether sequences may differ in length."""
        return self.kind in ("ragged", "sentences")

    @property
    def options(self) -> dict[str, Any]:
        """Keywords of the call, as mha_native and its reference name them; those at their defaults are left out."""
        options: dict[str, Any] = {}
        if self.causal:
            options["is_causal"] = True
        if self.window is not None:
            options["window"] = self.window
        if self.admitted is not None:
            options["attn_mask"] = np.broadcast_to(np.arange(self.Tk) < self.admitted, (self.B, 1, 1, self.Tk)).copy()
        if self.softcap is not None:
            options["softcap"] = self.softcap
        if self.alibi:  # powers of two, as in the paper; in the dtype of lse, as the function requires
            options["alibi_slopes"] = (2 ** (-8 * np.arange(1, self.H + 1) / self.H)).astype(
                np.float64 if self.dtype == "f64" else np.float32
            )
        return options

    @property
    def deviations(self) -> tuple[float, float]:
        """Standard deviations of the scores and of the values."""
        return self.scores, self.values

    @property
    def is_masked(self) -> bool:
        """Whether a window or a mask hides keys, whatever else the causal mask hides."""
        return self.window is not None or self.admitted is not None

    @property
    def changes_scores(self) -> bool:
        return self.softcap is not None or self.alibi

    def visible(self, queries: int, keys: int) -> NDArray[np.bool_]:
        """Which of `keys` keys each of `queries` queries sees, [queries, keys]."""
        i, j = np.arange(queries)[:, None], np.arange(keys)
        left, right = self.window or (-1, -1)
        seen = np.full((queries, keys), True)
        if self.causal:
            seen &= j <= i
        if left >= 0:
            seen &= j >= i - left
        if right >= 0:
            seen &= j <= i + right
        if self.admitted is not None:
            seen &= j < self.admitted
        return seen

    def hidden(self, queries: int, keys: int) -> NDArray[np.bool_] | None:
        """The negation of `visible`; None if every query sees every key."""
        return ~self.visible(queries, keys) if self.causal or self.is_masked else None

    def alibi_bias(self) -> Array | None:
        """The ALiBi slopes as a bias of scores, [1, H, Tq, Tk], for contenders without slopes; None without ALiBi."""
        if not self.alibi:
            return None
        distance = np.abs(np.arange(self.Tq)[:, None] - np.arange(self.Tk))
        bias: Array = -self.options["alibi_slopes"][None, :, None, None] * distance
        return bias.astype(self.np_dtype)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of queries of each batch element."""
        if not self.is_ragged:
            return np.full(self.B, self.Tq)
        even = np.linspace(self.shortest, self.Tq, self.B).round().astype(np.int64)
        return np.random.default_rng(0).permutation(even)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """The first row of each sequence of a ragged batch, and the end of the last, [B + 1]."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @property
    def np_dtype(self) -> np.dtype[Any]:
        return np_dtype_of(self.dtype_name)

    @property
    def itemsize(self) -> int:
        return {"f32": 4, "f64": 8}.get(self.dtype, 2)

    @property
    def dtype_name(self) -> str:
        """The dtype as mha_native names it."""
        return DTYPES[self.dtype][0]

    @property
    def weight_dtype(self) -> str | None:
        """The format of weights as mha_native names it; None if it is the dtype of the arrays."""
        return WEIGHTS[self.weights][0] or None

    @property
    def precision(self) -> str:
        """The type of the operands of most products, in one word for tables."""
        return "int8" if self.weights == "int8" else self.dtype

    @property
    def visible_pairs(self) -> int:
        """Query-key pairs that one head computes, in all batch elements, with causal pairs counted exactly."""
        if not self.is_ragged:
            return self.B * int(np.count_nonzero(self.visible(self.Tq, self.Tk)))
        return sum(int(np.count_nonzero(self.visible(n, n))) for n in self.lengths.tolist())

    @property
    def flops(self) -> int:
        """Floating-point operations of the products; the softmax is not counted.

        Attention: 2 D for the score and 2 D for the weighted value of each visible pair. A layer adds 2 E^2 for each
        row of its four projections, of which keys and values have the rows of the memory, and 2 E F for each row of
        the two products of a feed-forward.
        """
        attention = 4 * self.H * self.visible_pairs * self.D
        queries = int(self.lengths.sum())
        keys = self.B * self.Tk if self.is_cross else queries
        products = 4 * (queries + keys) * self.E**2 + 4 * queries * self.E * self.F
        return self.layers * (attention + products)

    @property
    def matrices_of_layer(self) -> int:
        """Elements of the matrices of one layer, which are kept in the format `weights`."""
        return 4 * self.E**2 + 2 * self.E * self.F if self.is_layer else 0

    @property
    def vectors_of_layer(self) -> int:
        """Elements of the biases of one layer and of its norms, which are kept in `dtype`."""
        if not self.is_layer:
            return 0
        return 4 * self.E + (self.F + 5 * self.E if self.has_feed_forward else 0)

    @property
    def key_value_bytes(self) -> int:
        """Bytes of all keys and values of a dense batch."""
        return 2 * self.B * self.Hk * self.Tk * self.D * self.itemsize

    @property
    def least_bytes(self) -> int:
        """Bytes that must be read or written at least once: inputs, weights and result."""
        queries, size = int(self.lengths.sum()), self.itemsize
        kept = {"": size, "bf16": 2, "int8": 1}[self.weights]
        of_layers = self.layers * (self.matrices_of_layer * kept + self.vectors_of_layer * size)
        if self.kind == "sentences":  # one row of the embedding table for each token, one result for each text
            return (queries + self.B) * self.E * size + of_layers
        if self.is_layer:
            of_cache = 2 * self.B * self.Tk * self.E * (2 if self.cache else size) if self.kind == "step" else 0
            of_memory = self.B * self.Tk * self.E * size if self.is_cross else 0
            return 2 * queries * self.E * size + of_memory + of_layers + of_cache
        keys = queries if self.kind == "ragged" else self.B * self.Tk
        return 2 * self.D * (self.H * queries + self.Hk * keys) * size
