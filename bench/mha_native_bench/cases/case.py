"""One row of `cases.toml`: its sizes, its options and its work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_native_bench.probes import weight_bytes

Array = NDArray[Any]

QUERY_TOKENS = 11  # of the query of pairs, three special ones included

KINDS = (
    "sdpa", "cached", "ragged", "mha", "step", "encoder_layer", "sentences", "images", "decoder",
    "attention_backward", "linear_backward", "training", "experts", "linear", "maxsim",
)  # fmt: skip

PAGES = ("", "in order", "shuffled", "shared")
PATCH = 16  # rows and columns of pixels of a patch
BLOCK = 64  # queries and keys of a block of a block mask

FULL_EVERY = 3  # layers of ModernBERT: the first, the fourth and so on have no window

# By the name in `cases.toml`: the name in mha_native, and the distance from 1 to the next larger number.
DTYPES = {
    "f32": ("float32", 2**-23),
    "f64": ("float64", 2**-52),
    "f16": ("float16", 2**-10),
    "bf16": ("bfloat16", 2**-7),
}

# The same for formats of weights. int8 scales the largest weight of each output feature to 127, about 2^7, int4 the
# largest of 16 to 8.
WEIGHTS = {
    "": ("", 0.0),
    "bf16": ("bfloat16", 2**-7),
    "int8": ("int8", 2**-7),
    "int4": ("int4", 2**-3),
}

# The formats of GGUF files: weights are random blocks, which peers without the format round once more.
BLOCKED = {
    "q4_0": ("q4_0", 2**-3),
    "q4_1": ("q4_1", 2**-3),
    "q4_k": ("q4_k", 2**-3),
    "iq4_nl": ("iq4_nl", 2**-3),
    "mxfp4": ("mxfp4", 2**-3),
    "q5_0": ("q5_0", 2**-7),
    "q5_1": ("q5_1", 2**-7),
    "q5_k": ("q5_k", 2**-7),
    "q6_k": ("q6_k", 2**-7),
    "q8_0": ("q8_0", 2**-7),
}
WEIGHTS |= BLOCKED

WHOLE_FEATURES = 256  # input features that fill whole words, groups and blocks of every format


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
    X: int = 0
    used: int = 0
    activation: str = ""
    layers: int = 1
    family: str = ""
    V: int = 0
    shortest: int = 0
    window: tuple[int, int] | None = None
    admitted: int | None = None
    softcap: float | None = None
    alibi: bool = False
    blocks: int = 0
    scores: float = 1
    values: float = 1
    cold: bool = False
    texts: bool = False
    pairs: bool = False
    sparse: bool = False
    against: str = ""
    weights: str = ""
    cache: str = ""
    pages: str = ""
    prefix: int = 0
    quick: bool = False
    extra: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.dtype not in DTYPES:
            raise ValueError(f"case {self.name}: kind {self.kind!r} or dtype {self.dtype!r} is not known")
        if self.weights not in WEIGHTS or (self.weights and not (self.is_layer and self.dtype == "f32")):
            raise ValueError(f"case {self.name}: weights are kept in {', '.join(WEIGHTS)[2:]} by layers in f32")
        if min(self.B, self.H, self.Hk, self.Tq, self.Tk, self.D) < 1 or self.H % self.Hk:
            raise ValueError(f"case {self.name}: sizes must be positive, and H a multiple of Hk")
        formats = {"step": ("bf16", "f16"), "cached": ("int8",), "maxsim": ("int8",)}.get(self.kind, ())
        if self.cache and (self.cache not in formats or self.dtype != "f32"):
            raise ValueError(f"case {self.name}: behind f32, steps have caches of 16 bits, others those of int8")
        if self.kind == "cached" and (self.Tq not in (1, self.Tk) or self.causal):
            raise ValueError(f"case {self.name}: over a cache go one query, or as many as keys; it is causal by itself")
        if self.kind != "cached" and (self.pages or self.prefix):
            raise ValueError(f"case {self.name}: pages and prefixes are for attention over a cache")
        if self.pages not in PAGES or (self.pages == "shuffled" and self.B == 1):
            raise ValueError(f"case {self.name}: pages are in order or shared, or shuffled among several sequences")
        if not (self.pages == "shared") <= self.prefix <= self.Tk:
            raise ValueError(f"case {self.name}: shared pages need a prefix, of at most Tk tokens")
        if self.kind == "step" and (self.Tq != 1 or self.causal):
            raise ValueError(f"case {self.name}: a step has one query, which sees all keys")
        if self.is_layer and (self.E != self.H * self.D or (self.Hk != self.H and self.kind != "decoder")):
            raise ValueError(f"case {self.name}: a layer has E = H * D and, but in a decoder, Hk = H")
        if (self.kind == "decoder" or self.sparse) != (self.V > 0) or (self.V and (self.dtype != "f32" or self.causal)):
            raise ValueError(
                f"case {self.name}: decoders and sparse embeddings have V, no others; decoders are causal by themselves"
            )
        if self.sparse and (not self.texts or self.pairs or self.family):
            raise ValueError(f"case {self.name}: sparse embeddings are of texts by a BERT")
        if self.family and (self.kind != "sentences" or self.family not in ("modernbert", "clip_text")):
            raise ValueError(
                f"case {self.name}: a family is that of sentences, and modernbert or clip_text if it is not BERT"
            )
        if self.family == "clip_text" and (not self.causal or self.texts or self.shortest != self.Tq):
            raise ValueError(f"case {self.name}: clip_text is causal, of tokens, and its texts have one length")
        if self.kind == "decoder" and self.Tk < self.Tq:
            raise ValueError(f"case {self.name}: a decoder sees its own tokens, with Tk >= Tq")
        if self.has_feed_forward and self.kind != "decoder" and self.Tk != self.Tq:
            raise ValueError(f"case {self.name}: an encoder attends to itself, with Tk = Tq")
        if self.is_cross and self.causal:
            raise ValueError(f"case {self.name}: attention to a memory cannot be causal")
        if self.quick and self.extra:
            raise ValueError(f"case {self.name}: quick and extra exclude each other")
        of_family = {"clip_text": ("quick_gelu",)}.get(self.family, ("relu", "gelu"))
        activations = ("silu",) if self.kind == "decoder" else of_family
        if self.has_feed_forward and (self.F < 1 or self.activation not in activations):
            raise ValueError(f"case {self.name}: a feed-forward needs F, and an activation")
        if self.kind == "experts" and not (0 < self.used <= self.X and self.F > 0 and self.H == 1):
            raise ValueError(f"case {self.name}: experts have 1 to X used ones, F, and H = 1")
        if self.weights in BLOCKED and self.kind not in ("linear", "decoder"):
            raise ValueError(f"case {self.name}: weights in {self.weights} are for linear maps and decoders")
        if self.kind != "experts" and (self.X or self.used):
            raise ValueError(f"case {self.name}: X and used are for experts")
        if self.kind in ("linear", "linear_backward") and (min(self.E, self.F) < 1 or self.activation or self.causal):
            raise ValueError(f"case {self.name}: a linear map has E inputs and F outputs, and nothing else")
        has_width = self.has_feed_forward or self.kind in ("linear", "linear_backward", "experts")
        if not has_width and (self.F or self.activation):
            raise ValueError(f"case {self.name}: F and activation are for layers with a feed-forward")
        if self.kind == "training" and (self.dtype != "f32" or self.weights or self.causal):
            raise ValueError(f"case {self.name}: training is in f32, of an encoder that sees all keys")
        if self.kind == "maxsim" and (self.H != 1 or self.E or self.causal):
            raise ValueError(f"case {self.name}: vectors of tokens have D features and no heads, and all are compared")
        if self.kind == "images" and (self.causal or self.image_size**2 != (self.Tq - 1) * PATCH**2):
            raise ValueError(f"case {self.name}: an image has rows of a square of patches and one more, which see all")
        if self.layers < 1 or (self.layers > 1 and self.kind not in ("training", "sentences", "images", "decoder")):
            raise ValueError(f"case {self.name}: layers must be at least 1, and more are for whole models only")
        if self.texts and (self.kind != "sentences" or self.shortest < 3):
            raise ValueError(f"case {self.name}: texts are for sentences of 3 tokens or more, two of which are special")
        if self.pairs and (not self.texts or self.shortest <= QUERY_TOKENS):
            raise ValueError(f"case {self.name}: pairs are for texts of more than {QUERY_TOKENS} tokens")
        if self.is_ragged and (self.Tk != self.Tq or not 1 <= self.shortest <= self.Tq):
            raise ValueError(f"case {self.name}: sequences attend to themselves, with Tk = Tq and 1 <= shortest <= Tq")
        if self.admitted is not None and not 0 < self.admitted <= self.Tk:
            raise ValueError(f"case {self.name}: the mask must admit 1 to Tk keys")
        if not 0 <= self.blocks <= -(-self.Tk // BLOCK):
            raise ValueError(f"case {self.name}: one in `blocks` blocks of keys is seen, and there must be so many")
        if self.blocks and (self.causal or self.window or self.admitted):
            raise ValueError(f"case {self.name}: a block mask goes alone, or some queries would see no key")
        if min(self.scores, self.values) <= 0:
            raise ValueError(f"case {self.name}: standard deviations of scores and values must be positive")
        allowed = {"is_causal"} if self.family != "modernbert" else {"is_causal", "window"}
        if self.cold and self.kind not in ("sdpa", "cached", "linear"):
            raise ValueError(f"case {self.name}: cold memory is for linear maps, and attention without ragged batches")
        if self.kind != "sdpa" and (self.options.keys() - allowed or self.deviations != (1, 1)):
            raise ValueError(
                f"case {self.name}: options and deviations are for attention of a dense batch; a window also for "
                "ModernBERT"
            )

    @property
    def is_layer(self) -> bool:
        """Whether there are weights."""
        return self.has_feed_forward or self.kind in ("mha", "step", "experts", "linear")

    @property
    def is_cross(self) -> bool:
        """Whether a layer attends to another sequence than its own."""
        return self.kind == "mha" and self.Tk != self.Tq

    @property
    def is_backward(self) -> bool:
        """Whether gradients are computed, of a function whose gradient by the result is given."""
        return self.kind in ("attention_backward", "linear_backward", "training")

    @property
    def has_feed_forward(self) -> bool:
        return self.kind in ("encoder_layer", "training", "sentences", "images", "decoder")

    @property
    def is_modern(self) -> bool:
        """Whether layers have gated feed-forwards and no biases, and heads turn by their positions."""
        return self.kind == "decoder" or self.family == "modernbert"

    @property
    def is_of_python(self) -> bool:
        """Whether this is measured from Python alone: gradients, a whole model or one product, late interaction,
        attention over a cache or with a block mask."""
        is_one = self.kind in ("cached", "images", "decoder", "experts", "linear", "maxsim")
        return is_one or self.is_backward or self.blocks > 0 or bool(self.family)

    @property
    def image_size(self) -> int:
        """The height and width of an image, whose patches are all rows but the first."""
        return PATCH * math.isqrt(self.Tq - 1)

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
        if self.blocks:
            options["block_mask"] = self.block_mask
        return options

    @property
    def block_mask(self) -> NDArray[np.bool_]:
        """Which blocks of keys each block of queries sees, one in `blocks` of them: [ceil(Tq / 64), ceil(Tk / 64)]."""
        rows, columns = -(-self.Tq // BLOCK), -(-self.Tk // BLOCK)
        order = np.random.default_rng(0).permuted(np.tile(np.arange(columns), (rows, 1)), axis=1)
        return order < columns // self.blocks

    @property
    def deviations(self) -> tuple[float, float]:
        """Standard deviations of the scores and of the values."""
        return self.scores, self.values

    @property
    def is_masked(self) -> bool:
        """Whether a window or a mask hides keys, whatever else the causal mask hides."""
        return self.window is not None or self.admitted is not None or self.blocks > 0

    @property
    def hides_by_query(self) -> bool:
        """Whether some queries see other keys than others do."""
        return self.causal or self.window is not None or self.blocks > 0

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
        if self.kind in ("decoder", "cached"):
            seen &= j <= i + keys - queries
        if left >= 0:
            seen &= j >= i - left
        if right >= 0:
            seen &= j <= i + right
        if self.admitted is not None:
            seen &= j < self.admitted
        if self.blocks:
            seen &= self.block_mask[i // BLOCK, j // BLOCK]
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
        if self.kind == "maxsim":
            return self.cache or self.dtype
        return self.dtype if self.weights in ("", "bf16") else "int8"

    @property
    def whole_bits(self) -> int:
        """The bits of a weight, 4 or 8, for libraries that have no others."""
        return 4 if 8 * self._bytes_of_a_weight <= 5 else 8

    @property
    def visible_pairs(self) -> int:
        """Query-key pairs that one head computes, in all batch elements, with causal pairs counted exactly; of
        ModernBERT in a layer with a window."""
        if not self.is_ragged:
            return self.B * int(np.count_nonzero(self.visible(self.Tq, self.Tk)))
        return sum(int(np.count_nonzero(self.visible(n, n))) for n in self.lengths.tolist())

    @property
    def flops(self) -> int:
        """Floating-point operations of the products; the softmax is not counted.

        Attention: 2 D for the score and 2 D for the weighted value of each visible pair. A layer adds 2 E^2 for each
        row of its four projections, of which keys and values have the rows of the memory, and 2 E F for each row of
        the two products of a feed-forward, or of three. Groups of heads have narrower keys and values. A decoder adds
        2 E V for the last row of each sequence, and the head of sparse embeddings 2 E (E + V) for each row. Late
        interaction has 2 D for each pair of tokens, and the text tower of CLIP 2 E^2 for the row of a text that counts.

        The gradient of attention has five products where attention has two, the gradient of a linear map two where the
        map has one; training has both passes.
        """
        if self.kind == "attention_backward":
            return 10 * self.H * self.D * self.visible_pairs
        if self.kind == "maxsim":
            return 2 * self.D * self.visible_pairs
        if self.kind == "linear_backward":
            return 4 * self.B * self.Tq * self.E * self.F
        if self.kind == "linear":
            return 2 * self.B * self.Tq * self.E * self.F
        if self.kind == "experts":
            return 2 * self.B * self.Tq * self.E * (self.X + 3 * self.used * self.F)
        pairs = self.layers * self.visible_pairs
        if self.family == "modernbert":
            pairs += -(-self.layers // FULL_EVERY) * (int((self.lengths**2).sum()) - self.visible_pairs)
        queries = int(self.lengths.sum())
        of_memory = 2 * self.E * self.Hk * self.D  # the matrices of keys and values
        products = queries * self.matrices_of_layer
        if self.is_cross:
            products += (self.B * self.Tk - queries) * of_memory
        if self.kind == "images":
            of_patches = 2 * self.B * (self.Tq - 1) * 3 * PATCH**2 * self.E
            return 4 * self.H * self.D * pairs + 2 * self.layers * products + of_patches
        of_head = queries * self.E * (self.E + self.V) if self.sparse else self.B * self.E * self.features_of_head
        attention, maps = 4 * self.H * self.D * pairs, 2 * self.layers * products + 2 * of_head
        return attention * 7 // 2 + 3 * maps if self.kind == "training" else attention + maps

    @property
    def features_of_head(self) -> int:
        """Features of a linear map after the layers; 0 without one."""
        return self.E if self.family == "clip_text" else self.V

    @property
    def matrices_of_layer(self) -> int:
        """Elements of the matrices of one layer, which are kept in the format `weights`."""
        if not self.is_layer:
            return 0
        if self.kind == "experts":  # of those that rows choose, each others if there are so many
            return self.E * (self.X + 3 * self.F * min(self.X, self.used * self.B * self.Tq))
        if self.kind == "linear":
            return self.E * self.F
        return 2 * self.E * (self.E + self.Hk * self.D) + (3 if self.is_modern else 2) * self.E * self.F

    @property
    def vectors_of_layer(self) -> int:
        """Elements of the biases of one layer and of its norms, which are kept in `dtype`."""
        if not self.is_layer or self.kind in ("experts", "linear"):
            return 0
        if self.is_modern:
            return 2 * self.E
        return 4 * self.E + (self.F + 5 * self.E if self.has_feed_forward else 0)

    @property
    def key_value_bytes(self) -> int:
        """Bytes of all keys and values of a dense batch; as they lie in a cache; of a decoder, of all its caches."""
        tokens = self.B * self.Tk
        if self.pages == "shared":
            tokens -= (self.B - 1) * self.prefix
        row = self.D + 4 if self.cache == "int8" else self.D * self.itemsize  # of int8 with its scale
        return 2 * self.layers * tokens * self.Hk * row

    @property
    def _bytes_of_a_weight(self) -> float:
        stored = self.weight_dtype
        return weight_bytes(stored, WHOLE_FEATURES) / WHOLE_FEATURES if stored else float(self.itemsize)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights that a call reads once, as they are kept: of layers, and of a head."""
        matrices = self.layers * self.matrices_of_layer + self.E * self.features_of_head
        return round(matrices * self._bytes_of_a_weight) + self.layers * self.vectors_of_layer * self.itemsize

    @property
    def streamed_bytes(self) -> int:
        """Bytes of weights, keys and values that a call for one query must read."""
        return self.weight_bytes + (0 if self.kind == "linear" else self.key_value_bytes)

    @property
    def least_bytes(self) -> int:
        """Bytes that must be read or written at least once: inputs, weights and result."""
        queries, size = int(self.lengths.sum()), self.itemsize
        if self.kind == "sentences":  # one row of the embedding table for each token, one result for each text
            return (queries + self.B) * self.E * size + self.weight_bytes
        if self.kind == "images":  # pixels, one vector for each image
            return self.B * (3 * self.image_size**2 + self.E) * size + self.weight_bytes
        if self.kind == "decoder":
            return (queries * self.E + self.B * self.V) * size + self.streamed_bytes
        if self.kind == "maxsim":  # the documents, a query, a score of each document
            row = self.D + 4 if self.cache == "int8" else self.D * size  # of int8 with its scale
            return (self.B * self.Tk + self.Tq) * row + self.B * max(size, 4)
        if self.kind == "linear":
            return queries * (self.E + self.F) * size + self.weight_bytes
        if self.is_layer:
            of_cache = 2 * self.B * self.Tk * self.E * (2 if self.cache else size) if self.kind == "step" else 0
            of_memory = self.B * self.Tk * self.E * size if self.is_cross else 0
            return 2 * queries * self.E * size + of_memory + self.weight_bytes + of_cache
        if self.kind == "linear_backward":  # of the weight and the gradient of it, too
            return (self.B * self.Tq * (2 * self.E + self.F) + (2 * self.E + 1) * self.F) * size
        if self.kind == "attention_backward":  # with the result and its gradient, and a gradient of each input
            return 2 * (2 * self.D * self.H * queries * size + self.key_value_bytes)
        of_keys = 2 * self.D * self.Hk * queries * size if self.kind == "ragged" else self.key_value_bytes
        return 2 * self.D * self.H * queries * size + of_keys
