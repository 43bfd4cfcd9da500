"""A row of `cases.toml`: its sizes, its work, its inputs, and what the float64 oracle says about them."""

from __future__ import annotations

import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mha_native
from mha_native import reference
from mha_native_bench.cases.sentence_model import layer_oracle, layer_state, make_tokens, sentence_oracle
from mha_native_bench.machine import last_cache_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Array = NDArray[Any]

# A wheel installs the file into the package; a checkout has it in bench/, where the benchmark in C++ reads it, too.
PACKAGE = Path(__file__).resolve().parents[1]
CASES_FILE = (PACKAGE if (PACKAGE / "cases.toml").exists() else PACKAGE.parent) / "cases.toml"

COLD_CACHES = 4  # times the last cache, so that nothing of it survives until it is read again

KINDS = ("sdpa", "ragged", "mha", "step", "encoder_layer", "sentences")

# In the names of the library, with the distance from 1 to the next number.
DTYPES = {
    "f32": ("float32", 2**-23),
    "f64": ("float64", 2**-52),
    "f16": ("float16", 2**-10),
    "bf16": ("bfloat16", 2**-7),
}

# Formats of weights, likewise; the largest of a row, and of an output feature, is 127 in int8.
WEIGHTS = {"": ("", 0.0), "bf16": DTYPES["bf16"], "int8": ("int8", 2**-7)}


def np_dtype_of(name: str) -> np.dtype[Any]:
    """bfloat16 is of the package ml_dtypes, which need not be installed.

    Raises
    ------
    ImportError
    """
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Case:
    """One shape. The fields are the columns of `cases.toml`, which explains them; Dv is D."""

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
    cold: bool = False
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
            raise ValueError(f"case {self.name}: a memory has no order that a causal layer could follow")
        if self.quick and self.extra:
            raise ValueError(f"case {self.name}: what takes part in no run by itself takes part in no quick one")
        if self.has_feed_forward and (self.F < 1 or self.activation not in ("relu", "gelu")):
            raise ValueError(f"case {self.name}: an encoder needs F, and an activation")
        if not self.has_feed_forward and (self.F or self.activation):
            raise ValueError(f"case {self.name}: F and activation are for encoders")
        if self.layers < 1 or (self.layers > 1 and self.kind != "sentences"):
            raise ValueError(f"case {self.name}: a model has at least one layer, all else is one")
        if self.is_ragged and (self.Tk != self.Tq or not 1 <= self.shortest <= self.Tq):
            raise ValueError(f"case {self.name}: sequences attend to themselves, with Tk = Tq and 1 <= shortest <= Tq")
        if self.admitted is not None and not 0 < self.admitted <= self.Tk:
            raise ValueError(f"case {self.name}: the mask must admit 1 to Tk keys")
        if self.kind != "sdpa" and (self.options.keys() - {"is_causal"} or self.cold):
            raise ValueError(f"case {self.name}: options, and memory that is cold, are for attention of a dense batch")

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
        """Those of the call, by the names that the library and its reference give them; none at its default."""
        options: dict[str, Any] = {}
        if self.causal:
            options["is_causal"] = True
        if self.window is not None:
            options["window"] = self.window
        if self.admitted is not None:
            options["attn_mask"] = np.broadcast_to(np.arange(self.Tk) < self.admitted, (self.B, 1, 1, self.Tk)).copy()
        if self.softcap is not None:
            options["softcap"] = self.softcap
        if self.alibi:  # powers of two, as in the paper; of the dtype of lse
            options["alibi_slopes"] = (2 ** (-8 * np.arange(1, self.H + 1) / self.H)).astype(
                np.float64 if self.dtype == "f64" else np.float32
            )
        return options

    @property
    def is_masked(self) -> bool:
        """Whether some query does not see some key by more than being causal."""
        return self.window is not None or self.admitted is not None

    @property
    def changes_scores(self) -> bool:
        return self.softcap is not None or self.alibi

    def visible(self, queries: int, keys: int) -> NDArray[np.bool_]:
        """Which of so many keys each of so many queries sees, [queries, keys]."""
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
        """The opposite; None if every query sees every key."""
        return ~self.visible(queries, keys) if self.causal or self.is_masked else None

    def alibi_bias(self) -> Array | None:
        """[1, H, Tq, Tk]: what contenders add to scores that know no slopes; None without them."""
        if not self.alibi:
            return None
        distance = np.abs(np.arange(self.Tq)[:, None] - np.arange(self.Tk))
        bias: Array = -self.options["alibi_slopes"][None, :, None, None] * distance
        return bias.astype(self.np_dtype)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Queries of each batch element."""
        if not self.is_ragged:
            return np.full(self.B, self.Tq)
        even = np.linspace(self.shortest, self.Tq, self.B).round().astype(np.int64)
        return np.random.default_rng(0).permutation(even)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where the sequences of a ragged batch begin, and the end of the last."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @property
    def np_dtype(self) -> np.dtype[Any]:
        return np_dtype_of(self.dtype_name)

    @property
    def itemsize(self) -> int:
        return {"f32": 4, "f64": 8}.get(self.dtype, 2)

    @property
    def dtype_name(self) -> str:
        """Of the library."""
        return DTYPES[self.dtype][0]

    @property
    def weight_dtype(self) -> str | None:
        """Of the library; None: that of the arrays."""
        return WEIGHTS[self.weights][0] or None

    @property
    def precision(self) -> str:
        """In one word, as tables have it: what most of the products are of."""
        return "int8" if self.weights == "int8" else self.dtype

    @property
    def visible_pairs(self) -> int:
        """Query-key pairs that take part in one head, in all batch elements; a causal call is not "half"."""
        if not self.is_ragged:
            return self.B * int(np.count_nonzero(self.visible(self.Tq, self.Tk)))
        return sum(int(np.count_nonzero(self.visible(n, n))) for n in self.lengths.tolist())

    @property
    def flops(self) -> int:
        """Of a layer: 2 D for a score and 2 D for a weighted value of each visible pair; 2 E^2 for each row of four
        projections, of which keys and values are of the memory, 2 E F for each of the two of the feed-forward."""
        attention = 4 * self.H * self.visible_pairs * self.D
        queries = int(self.lengths.sum())
        keys = self.B * self.Tk if self.is_cross else queries
        products = 4 * (queries + keys) * self.E**2 + 4 * queries * self.E * self.F
        return self.layers * (attention + products)

    @property
    def matrices_of_layer(self) -> int:
        """Elements of weights that are kept in the format of the case."""
        return 4 * self.E**2 + 2 * self.E * self.F if self.is_layer else 0

    @property
    def vectors_of_layer(self) -> int:
        """Elements of biases, and of two norms around a feed-forward."""
        if not self.is_layer:
            return 0
        return 4 * self.E + (self.F + 5 * self.E if self.has_feed_forward else 0)

    @property
    def key_value_bytes(self) -> int:
        """All that a query of a dense batch has to be compared with, and its values."""
        return 2 * self.B * self.Hk * self.Tk * self.D * self.itemsize

    @property
    def least_bytes(self) -> int:
        """Memory to be read or written at least once: inputs, weights, result."""
        queries, size = int(self.lengths.sum()), self.itemsize
        kept = {"": size, "bf16": 2, "int8": 1}[self.weights]
        of_layers = self.layers * (self.matrices_of_layer * kept + self.vectors_of_layer * size)
        if self.kind == "sentences":  # a row of the table for each token
            return (queries + self.B) * self.E * size + of_layers
        if self.is_layer:
            of_cache = 2 * self.B * self.Tk * self.E * (2 if self.cache else size) if self.kind == "step" else 0
            of_memory = self.B * self.Tk * self.E * size if self.is_cross else 0
            return 2 * queries * self.E * size + of_memory + of_layers + of_cache
        keys = queries if self.kind == "ragged" else self.B * self.Tk
        return 2 * self.D * (self.H * queries + self.Hk * keys) * size


@dataclass(frozen=True)
class Inputs:
    """`arrays`: query, key, value of attention, x [B, Tq, E] of a layer and the memory [B, Tk, E] that it attends to if
    that is another, all tokens [B, Tk, E] that a step is the last of, or the token ids of each text.

    `state`: weights of the layer, in torch's names. `model`: where the model lies that texts are for.
    """

    arrays: tuple[Array, ...]
    state: dict[str, Array]
    model: Path = Path()


def load_cases(path: Path = CASES_FILE) -> list[Case]:
    """All rows, with what they leave out put in."""
    rows: dict[str, dict[str, Any]] = {}
    cases: dict[str, Case] = {}
    for given in tomllib.loads(path.read_text(encoding="utf-8"))["case"]:
        name, plain = given["name"], given.get("against", "")
        if name in rows or (plain and plain not in rows):
            raise ValueError(f"{path}: {name} must be a new name, and go against a case above it")
        rows[name] = row = {**rows.get(plain, {}), "quick": False, "extra": False, **given}
        width = {"D": row["E"] // row["H"]} if "E" in row else {"E": 0}
        if row["kind"] == "sentences":
            width["shortest"] = row["Tq"]
        window = {"window": tuple(row["window"])} if "window" in row else {}
        cases[name] = Case(**{"Hk": row["H"], "Tk": row["Tq"], "causal": False, **width, **row, **window})
        if plain and sizes(cases[plain]) != sizes(cases[name]):
            raise ValueError(f"{path}: {name} must have the sizes of {plain}, which it goes against")
    return list(cases.values())


def sizes(case: Case) -> tuple[Any, ...]:
    """What two cases share that compute on the same arrays."""
    return case.kind, case.B, case.H, case.Hk, case.Tq, case.Tk, case.D, case.E, case.shortest


def plain_case(case: Case) -> Case:
    """The case above that `case` goes against."""
    return next(plain for plain in load_cases() if plain.name == case.against)


def make_inputs(case: Case, model: Path | None = None) -> Inputs:
    """Standard normal arrays, the same on each run; time does not depend on the values. Texts need a `model`."""
    seed = zlib.crc32(case.name.encode())
    rng = np.random.default_rng(seed)
    if case.kind == "sdpa":
        shapes = [(case.B, heads, length, case.D) for heads, length in ((case.H, case.Tq), *[(case.Hk, case.Tk)] * 2)]
        return Inputs(tuple(rng.standard_normal(shape).astype(case.np_dtype) for shape in shapes), {})
    if case.kind == "ragged":
        rows = int(case.lengths.sum())
        shapes = [(rows, heads, case.D) for heads in (case.H, case.Hk, case.Hk)]
        return Inputs(tuple(rng.standard_normal(shape).astype(case.np_dtype) for shape in shapes), {})
    if case.kind == "sentences":
        if model is None:
            raise ValueError(f"{case.name} needs a model")
        return Inputs(tuple(make_tokens(case, rng)), {}, model)
    if case.kind == "encoder_layer":
        x = rng.standard_normal((case.B, case.Tq, case.E))
        return in_dtype(Inputs((x,), layer_state(case, rng)), case)
    state = mha_native.MultiHeadAttention(case.E, case.H, dtype="float64", seed=seed).state_dict()
    for name in ("in_proj_bias", "out_proj.bias"):  # zero in a new layer, and a forgotten bias would go unseen
        state[name] = rng.uniform(-0.1, 0.1, state[name].shape)
    lengths = (case.Tq, case.Tk) if case.is_cross else (case.Tk,)
    arrays = tuple(rng.standard_normal((case.B, length, case.E)) for length in lengths)
    return in_dtype(Inputs(arrays, state), case)


def in_dtype(inputs: Inputs, case: Case) -> Inputs:
    """The same numbers in the dtype of `case`, rounded if they must be. Tokens, and models in files, stay."""
    if case.kind == "sentences":
        return inputs
    arrays = tuple(array.astype(case.np_dtype, copy=False) for array in inputs.arrays)
    return Inputs(arrays, {name: array.astype(case.np_dtype, copy=False) for name, array in inputs.state.items()})


def copies(case: Case, inputs: Inputs) -> list[Inputs]:
    """`inputs`; for a cold case so many of the same that each has left the caches when its turn comes again."""
    if not case.cold:
        return [inputs]
    count = -(-COLD_CACHES * last_cache_bytes() // sum(array.nbytes for array in inputs.arrays))
    return [Inputs(tuple(array.copy() for array in inputs.arrays), inputs.state) for _ in range(max(2, count))]


def padded(case: Case, ragged: Array) -> Array:
    """[N, heads, D] as [B, heads, Tq, D]: zeros behind the end of each sequence."""
    out = np.zeros((case.B, ragged.shape[1], case.Tq, ragged.shape[2]), ragged.dtype)
    for b, length in enumerate(case.lengths):
        out[b, :, :length] = ragged[case.offsets[b] : case.offsets[b + 1]].swapaxes(0, 1)
    return out


def padded_pairs(case: Case) -> int:
    """Of a head, with as many queries in each sequence as in the longest, and `key_lengths`."""
    return sum(int(np.count_nonzero(case.visible(case.Tq, length))) for length in case.lengths.tolist())


def unpadded(case: Case, dense: Array) -> Array:
    """The way back."""
    return np.concatenate([one[:, :length].swapaxes(0, 1) for one, length in zip(dense, case.lengths, strict=True)])


def oracle(case: Case, inputs: Inputs) -> NDArray[np.float64]:
    """The result in float64, by the textbook; of weights as they are before a layer in f32 rounds them."""
    if case.kind == "sentences":
        return sentence_oracle(case, list(inputs.arrays), inputs.model)
    arrays = [array.astype(np.float64) for array in inputs.arrays]
    state = {name: array.astype(np.float64) for name, array in inputs.state.items()}
    if case.kind == "sdpa":
        result: NDArray[np.float64] = reference.scaled_dot_product_attention(*arrays, **case.options)
    elif case.kind == "ragged":
        result = reference.scaled_dot_product_attention_varlen(
            *arrays, case.offsets, case.offsets, is_causal=case.causal
        )
    elif case.kind == "encoder_layer":
        result = layer_oracle(case, arrays[0], state)
    else:
        query, memory = arrays[0][:, -case.Tq :], arrays[-1]
        result = reference.multi_head_attention(query, memory, memory, state, case.H, is_causal=case.causal)
    return result


def tolerance(case: Case, expected: NDArray[np.float64]) -> float:
    """What the largest error of any contender must stay below: ``8 eps sqrt(n) max|expected|``.

    n is the longest sum of the case. Rounding errors of a sum grow like sqrt(n), so honest computations in the dtype,
    in whatever order, stay well below; a wrong mask, layout or scale is far above. Numbers of 16 bits and less are
    summed in more: they are rounded from step to step, and n is the number of layers. It asks "is this the same
    computation?"; how accurate the library is, the tests ask.
    """
    eps = max(DTYPES[case.dtype][1], WEIGHTS[case.weights][1], DTYPES[case.cache or case.dtype][1])
    n = case.layers if eps > 2**-11 else max(case.D, case.Tk, case.E, case.F)
    return float(8 * eps * np.sqrt(n) * np.abs(expected).max())


def largest_error(result: Array, expected: NDArray[np.float64]) -> float:
    """NaN if `result` has one."""
    if result.shape != expected.shape:
        raise ValueError(f"a result of shape {result.shape}; expected {expected.shape}")
    return float(np.abs(result.astype(np.float64) - expected).max())
