"""The one list of shapes and options that the numeric tests run over: named rows, each with the reason it is there."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from element_types import accumulator_of, limits

BLOCK_EDGES = (16, 32, 64, 96, 128)
"""Widths that a kernel may block by: vectors, register tiles, query and key blocks."""

PLANTED_POSITIONS = (0, 1, 15, 16, 31, 32, 47, 48, 63, 64, 95, 96, 97, 127, 128, 191, 192, 193, 255, 256, 287, 288, 398)
"""Key positions on both sides of every tile edge, the first and the last of `PLANTED_KEYS` keys."""

PLANTED_KEYS = 399

_SUBNORMAL = 0.01
"""Of the smallest normal number of a type."""


# Sizes at which every restriction on keys says something, and the restrictions.
_BOUNDS: dict[str, Any] = {"query_offset": (-3, 40, 80), "key_lengths": (120, 0, 101), "window": (50, 3)}
EVERY_RESTRICTION: dict[str, Any] = {"B": 3, "H": 6, "Hk": 3, "Tq": 45, "Tk": 120, "is_causal": True, **_BOUNDS}


@dataclass(frozen=True)
class Case:
    """One call. `mask` is "boolean" or "additive" and its shape in axis letters: "boolean B1QK", "additive K"."""

    name: str
    reason: str
    B: int = 1
    H: int = 2
    Hk: int | None = None
    Tq: int = 7
    Tk: int | None = None
    D: int = 16
    Dv: int | None = None
    is_causal: bool = False
    query_offset: int | tuple[int, ...] = 0
    key_lengths: tuple[int, ...] | None = None
    window: tuple[int, int] | None = None
    mask: str | None = None
    scale: float | None = None
    softcap: float | None = None
    alibi: bool | str = False  # or "each": other slopes for each batch element
    position_bias: int | None = None  # the farthest distance with an entry of its own, R
    sinks: bool = False
    data: str = "normal"

    @property
    def kv_heads(self) -> int:
        return self.H if self.Hk is None else self.Hk

    @property
    def keys(self) -> int:
        return self.Tq if self.Tk is None else self.Tk

    @property
    def value_dim(self) -> int:
        return self.D if self.Dv is None else self.Dv

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Call:
    """The arrays and keyword arguments of a call."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    options: dict[str, Any]

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.query, self.key, self.value


def make_call(case: Case, dtype: Any) -> Call:
    """The call of a case; the same numbers, rounded to `dtype`, on every run and for every dtype."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    query = rng.standard_normal((case.B, case.H, case.Tq, case.D))
    key = rng.standard_normal((case.B, case.kv_heads, case.keys, case.D))
    value = rng.standard_normal((case.B, case.kv_heads, case.keys, case.value_dim))
    given = {name: getattr(case, name) for name in ("window", "scale", "softcap")}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if case.is_causal:
        options["is_causal"] = True
    if case.query_offset != 0:
        offset = case.query_offset
        options["query_offset"] = np.array(offset) if isinstance(offset, tuple) else offset
    if case.key_lengths is not None:
        options["key_lengths"] = np.array(case.key_lengths)
    if case.mask is not None:
        options["attn_mask"] = _mask(case, rng, dtype)
    if case.alibi:
        slopes = 0.5 ** (8 * np.arange(1, case.H + 1) / case.H)
        if case.alibi == "each":
            slopes = slopes * (1 - 0.3 * np.arange(case.B)[:, None])
        options["alibi_slopes"] = slopes.astype(accumulator_of(dtype))
    if case.position_bias is not None:
        table = 2 * rng.standard_normal((case.H, 2 * case.position_bias + 1))
        options["position_bias"] = table.astype(accumulator_of(dtype))
    if case.sinks:
        sinks = 2 * rng.standard_normal(case.H) + np.log(max(case.keys, 1))
        options["sinks"] = sinks.astype(accumulator_of(dtype))
    if case.data == "peaked":
        query *= 30
    elif case.data == "score_offset":
        # Softmax does not see a constant added to a row, but the scores round at its size.
        options["attn_mask"] = np.full((1, 1), 1e4, dtype)
    elif case.data == "value_offset":
        value += 1e4
    elif case.data == "subnormal_values":
        value *= _SUBNORMAL * float(limits(dtype).tiny)
    elif case.data == "subnormal_scores":
        query *= _SUBNORMAL * float(limits(dtype).tiny)
    elif case.data == "rising":
        # Every key outdoes all before it: the running maximum moves at every block.
        query[..., 0], key[..., 0] = 4, np.arange(case.keys)
    elif case.data == "huge_scores":
        query *= 100
        key *= 100
    elif case.data == "one_hot":
        value[...] = np.eye(case.keys, case.value_dim)
    return Call(query.astype(dtype), key.astype(dtype), value.astype(dtype), options)


def _mask(case: Case, rng: np.random.Generator, dtype: Any) -> np.ndarray:
    kind, axes = case.mask.split()  # type: ignore[union-attr]
    sizes = {"B": case.B, "H": case.H, "Q": case.Tq, "K": case.keys, "1": 1}
    shape = tuple(sizes[axis] for axis in axes)
    if kind == "boolean":
        return rng.random(shape) < 0.6
    bias = rng.standard_normal(shape).astype(dtype)
    if kind == "additive":
        bias[rng.random(shape) < 0.3] = -np.inf
    return bias


def planted(position: int, dtype: Any, **sizes: int) -> Call:
    """Random inputs whose key at `position` takes all but about exp(-25) of the weight of every row that sees it."""
    case = Case(f"planted-{position}", "", **({"H": 1, "Tq": 5, "Tk": PLANTED_KEYS, "D": 24, "Dv": 20} | sizes))
    rng = np.random.default_rng(position)
    call = make_call(case, np.float64)
    direction = rng.choice([-1.0, 1.0], case.D)
    query = direction + 0.1 * call.query
    key = call.key.copy()
    key[:, :, position] = 32 / np.sqrt(case.D) * direction
    return Call(query.astype(dtype), key.astype(dtype), call.value.astype(dtype), {})


def _sizes() -> list[Case]:
    rows = [Case(f"size-{n}", "tails of vectors and tiles", B=2, Tq=n, D=n) for n in range(1, 10)]
    for edge in BLOCK_EDGES:
        for n in (edge - 1, edge, edge + 1):
            rows += [
                Case(f"length-{n}", "both lengths at a block edge", H=1, Tq=n, D=8),
                Case(f"keys-{n}-causal", "the diagonal ends at a block edge", H=1, Tq=n, D=8, is_causal=True),
                Case(f"width-{n}", "head_dim at a block edge", H=1, Tq=10, Tk=20, D=n),
            ]
    return [
        *rows,
        Case("one-query-many-keys", "decode: one row, several key blocks", Tq=1, Tk=777, D=64),
        Case("few-queries-many-keys", "rows below a vector", Tq=3, Tk=1025, D=32),
        Case("long", "several query and key blocks, no multiple of any", H=1, Tq=321, Tk=459, D=40),
        Case("long-causal", "the same with a diagonal", H=1, Tq=459, D=40, is_causal=True),
        Case("many-queries-one-key", "softmax over one key is 1", Tq=200, Tk=1),
        Case("batch", "tiles of three batch elements", B=3, H=3, Tq=70, Tk=33),
        *(
            Case(f"head-dim-{d}", "vector tails and long sums", H=1, Tq=37, Tk=41, D=d)
            for d in (1, 3, 16, 31, 40, 64, 65, 80, 128, 200, 1024)
        ),
        *(
            Case(f"value-dim-{d}-{dv}", "Dv != D", Tq=19, Tk=101, D=d, Dv=dv)
            for d, dv in ((64, 1), (1, 64), (40, 80), (16, 200), (128, 3), (65, 33), (8, 1024))
        ),
        *(
            Case(f"group-{h}-{hk}-{tq}", "grouped heads share a tile", B=2, H=h, Hk=hk, Tq=tq, Tk=110, D=20)
            for h, hk in ((4, 4), (6, 2), (8, 2), (8, 1), (16, 2))
            for tq in (1, 5, 70)
        ),
        Case("group-causal", "rows of several heads with bounds of their own", H=6, Hk=2, Tq=45, D=20, is_causal=True),
    ]


def _bounds() -> list[Case]:
    reason = "structural bounds of each row"
    rows = [
        Case("causal-more-keys", reason, Tq=30, Tk=110, is_causal=True),
        Case("causal-more-queries", reason, Tq=110, Tk=30, is_causal=True),
        Case("causal-decode", "offset Tk - Tq", Tq=5, Tk=200, is_causal=True, query_offset=195),
        Case("causal-offset", "the diagonal starts inside a block", Tq=100, Tk=150, is_causal=True, query_offset=37),
        Case("causal-negative-offset", "first rows see nothing", Tq=50, Tk=60, is_causal=True, query_offset=-20),
        Case("causal-far-negative", "no row sees anything", Tq=8, Tk=60, is_causal=True, query_offset=-60),
        Case("causal-far-positive", "every row sees all", Tq=8, Tk=60, is_causal=True, query_offset=1000),
        Case(
            "causal-offsets", "one for each batch element", B=3, Tq=40, Tk=70, is_causal=True, query_offset=(-5, 0, 30)
        ),
        Case("lengths", "none, some and all keys", B=3, Tq=9, Tk=130, key_lengths=(0, 97, 130)),
        Case("lengths-causal", reason, B=3, Tq=70, Tk=70, key_lengths=(1, 64, 70), is_causal=True),
        Case("lengths-group", reason, B=2, H=6, Hk=3, Tq=20, Tk=100, key_lengths=(33, 96)),
    ]
    for left, right in ((0, 0), (3, 2), (-1, 0), (5, -1), (64, 0), (40, 40), (-1, -1), (1000, 1000)):
        rows.append(Case(f"window-{left}-{right}", "both ends move", Tq=133, D=8, window=(left, right)))
    return [
        *rows,
        Case("window-offset", "window around a shifted position", Tq=50, Tk=90, window=(7, 3), query_offset=21),
        Case(
            "window-offsets", "shifted for each batch element", B=2, Tq=20, Tk=90, window=(9, 0), query_offset=(60, -8)
        ),
        Case("window-causal", "the narrower right end wins", Tq=100, window=(20, 15), is_causal=True),
        Case("window-lengths", "windows past the end", B=2, Tq=60, window=(4, 4), key_lengths=(30, 60)),
        Case("window-decode", "one row, a window far into the keys", Tq=1, Tk=500, window=(100, 0), query_offset=480),
    ]


def _everything(name: str, **more: Any) -> Case:
    return Case(name, "every restriction at once", **EVERY_RESTRICTION, **more)


def _masks() -> list[Case]:
    rows = []
    for kind in ("boolean", "additive", "finite"):
        for axes in ("K", "1", "QK", "Q1", "HQK", "1QK", "H11", "BHQK", "B11K", "1H1K", "B1QK", "11Q1", "1111"):
            reason, mask = "a mask of this shape broadcasts", f"{kind} {axes}"
            rows.append(Case(f"{kind}-{axes}", reason, B=2, H=3, Tq=21, Tk=103, D=8, mask=mask))
        reason, mask = "one mask row for each query head of a group", f"{kind} BHQK"
        rows.append(Case(f"{kind}-group", reason, B=2, H=6, Hk=2, Tq=18, Tk=99, mask=mask))
        rows.append(Case(f"{kind}-causal", "composes with a diagonal", Tq=101, mask=f"{kind} HQK", is_causal=True))
        rows.append(_everything(f"{kind}-everything", D=24, Dv=17, mask=mask, scale=-0.4))
    return rows


def _values() -> list[Case]:
    return [
        Case("scale-negative", "prefers the least similar key", Tq=20, Tk=130, scale=-0.7),
        Case("scale-zero", "uniform weights", Tq=20, Tk=130, scale=0.0),
        Case("scale-large", "nearly one-hot weights", Tq=20, Tk=130, scale=8.0),
        Case("scale-tiny", "nearly uniform weights", Tq=20, Tk=130, scale=1e-6),
        Case("scale-underflow", "rounds to 0 in float32", Tq=20, Tk=130, scale=1e-60, mask="boolean QK"),
        Case("peaked", "few keys take all the weight", Tq=40, Tk=200, data="peaked"),
        Case("huge-scores", "exp would overflow without the maximum", Tq=40, Tk=200, data="huge_scores"),
        Case("rising", "the running maximum moves at every key block", Tq=10, Tk=400, data="rising"),
        Case("score-offset", "scores near 1e4", Tq=40, Tk=200, data="score_offset"),
        Case("value-offset", "values near 1e4", Tq=40, Tk=200, data="value_offset"),
        Case("subnormal-values", "values near the smallest normal number", Tq=40, Tk=200, data="subnormal_values"),
        Case("subnormal-scores", "scores below the smallest normal number", Tq=40, Tk=200, data="subnormal_scores"),
        Case("one-hot", "values read the weights back", Tq=40, Tk=200, Dv=200, data="one_hot"),
        Case("one-hot-causal", "the same under a diagonal", Tq=130, Dv=130, data="one_hot", is_causal=True),
    ]


def _score_options() -> list[Case]:
    rows = []
    options: dict[str, dict[str, Any]] = {
        "softcap": {"softcap": 2.0},
        "alibi": {"alibi": True},
        "position-bias": {"position_bias": 24},
        "sinks": {"sinks": True},
        "modified": {"softcap": 2.5, "alibi": True, "position_bias": 40, "sinks": True},
    }
    offsets: dict[str, Any] = {"B": 3, "Tq": 20, "Tk": 90, "is_causal": True, "query_offset": (-5, 0, 60)}
    for name, option in options.items():
        rows += [
            Case(f"{name}-plain", "by itself", Tq=70, Tk=130, D=24, Dv=17, **option),
            Case(f"{name}-one-row", "a row below a vector", Tq=1, Tk=201, D=40, query_offset=200, **option),
            Case(f"{name}-causal", "under a diagonal", Tq=101, is_causal=True, **option),
            Case(f"{name}-window", "both ends move", Tq=133, window=(40, 9), **option),
            Case(f"{name}-offsets", "positions of each batch element", **offsets, **option),
            Case(f"{name}-lengths", "no key, some and all", B=3, Tq=9, Tk=130, key_lengths=(0, 97, 130), **option),
            Case(f"{name}-group", "each head its own, in one tile", B=2, H=8, Hk=2, Tq=21, Tk=70, **option),
            Case(f"{name}-boolean", "some rows see some keys", Tq=40, Tk=120, mask="boolean HQK", **option),
            Case(f"{name}-boolean-K", "the same keys for all rows", B=2, Tq=40, Tk=120, mask="boolean B11K", **option),
            Case(f"{name}-additive", "added after the cap", H=3, Tq=40, Tk=120, mask="additive HQK", **option),
            Case(f"{name}-scale-negative", "prefers the least similar key", Tq=20, Tk=130, scale=-0.7, **option),
            Case(f"{name}-scale-zero", "products have no say", Tq=20, Tk=130, scale=0.0, **option),
            Case(f"{name}-peaked", "few keys take all the weight", Tq=40, Tk=200, data="peaked", **option),
            Case(f"{name}-huge-scores", "exp would overflow", Tq=40, Tk=200, data="huge_scores", **option),
            Case(f"{name}-rising", "the maximum moves at every block", Tq=10, Tk=400, data="rising", **option),
            Case(f"{name}-one-hot", "values read the weights back", Tq=40, Tk=200, Dv=200, data="one_hot", **option),
            *(
                _everything(f"{name}-everything-{kind}", D=24, Dv=17, mask=f"{kind} BHQK", scale=0.4, **option)
                for kind in ("boolean", "additive")
            ),
        ]
    return [
        *rows,
        Case("softcap-50", "hardly bends the scores", Tq=70, Tk=130, softcap=50.0),
        Case("softcap-low", "nearly every score is at the cap", Tq=70, Tk=130, softcap=0.1),
        Case("softcap-far", "far above every score: no cap at all", Tq=70, Tk=130, softcap=1e30),
        Case("softcap-small-scores", "no digit of a small score is lost", Tq=20, Tk=70, scale=1e-4, softcap=50.0),
        Case("softcap-peaked-50", "scores on both sides of the bend", Tq=40, Tk=200, data="peaked", softcap=50.0),
        Case("alibi-far", "a row far from all keys", Tq=20, Tk=130, alibi=True, query_offset=100_000),
        Case("position-bias-far", "a row far from all keys", Tq=20, Tk=130, position_bias=5, query_offset=100_000),
        Case("position-bias-one", "a constant for each head", H=3, Tq=20, Tk=130, position_bias=0, softcap=2.0),
        Case("position-bias-long", "no distance is beyond the table", Tq=70, Tk=300, position_bias=400),
        Case("position-bias-heads", "more heads than rows of a tile", H=80, Hk=1, Tq=5, Tk=150, position_bias=30),
        Case("alibi-each-plain", "slopes of each batch element", B=5, Tq=70, Tk=130, D=24, Dv=17, alibi="each"),
        Case("alibi-each-one-row", "rows below a vector", B=3, H=8, Hk=2, Tq=1, Tk=201, query_offset=200, alibi="each"),
        Case("alibi-each-group", "heads of one tile", B=2, H=8, Hk=2, Tq=21, Tk=70, D=24, alibi="each"),
        _everything("alibi-each-everything", mask="additive BHQK", **options["modified"] | {"alibi": "each"}),
        Case("alibi-many-heads", "slopes from 1/2 to 1/256", H=16, Tq=20, Tk=300, is_causal=True, alibi=True),
    ]


CASES: list[Case] = _sizes() + _bounds() + _masks() + _values() + _score_options()
assert len({case.name for case in CASES}) == len(CASES), "case names are the seeds and must differ"

_QUICK_CASES = """
    size-1 size-3 size-7 length-17 length-64 length-97 keys-33-causal keys-65-causal keys-128-causal width-15 width-33
    width-63 width-64 width-129 one-query-many-keys few-queries-many-keys long long-causal many-queries-one-key batch
    head-dim-1 head-dim-3 head-dim-31 head-dim-128 head-dim-200 value-dim-64-1 value-dim-40-80 value-dim-16-200
    value-dim-65-33 group-6-2-5 group-8-1-70 group-16-2-1 group-causal
    causal-more-keys causal-decode causal-offsets causal-far-negative lengths lengths-group window-3-2 window-64-0
    window-offsets window-decode
    boolean-QK boolean-B11K boolean-group boolean-everything additive-QK additive-B11K additive-group
    additive-everything finite-HQK finite-group finite-everything
    softcap-plain alibi-plain position-bias-plain sinks-plain modified-plain softcap-one-row alibi-one-row
    position-bias-one-row position-bias-group sinks-one-row modified-one-row
    modified-group modified-offsets modified-boolean-K modified-everything-boolean modified-everything-additive
    modified-huge-scores modified-rising alibi-far alibi-each-group alibi-each-one-row softcap-50
"""
BY_NAME = {case.name: case for case in CASES}
QUICK_CASES: frozenset[Case] = frozenset([BY_NAME[name] for name in _QUICK_CASES.split()] + _values())
"""The cases of every run: every option, every kernel, sizes off every block edge."""
RESTRICTED = [case for case in CASES if any((case.is_causal, case.key_lengths, case.window, case.mask))]
"""The cases with keys that some row does not see."""
