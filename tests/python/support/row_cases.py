"""Cases whose rows must have the same bits on any number of threads, in any batch, and by themselves."""

from typing import Any

import numpy as np
from cases import Case

# Options that hold a number, or a row of them, for each head.
OF_EACH_HEAD = ("alibi_slopes", "position_bias", "sinks")


def of_batch_element(options: dict[str, Any], b: int) -> dict[str, Any]:
    """The options of a call of this batch element alone."""
    return {
        name: option[b : b + 1]
        if isinstance(option, np.ndarray) and name not in OF_EACH_HEAD and len(option) > 1
        else option
        for name, option in options.items()
    }


_CAUSAL_GROUP: dict[str, Any] = {"H": 8, "Hk": 2, "Tq": 130, "Tk": 700, "D": 64, "is_causal": True}
_DECODE: dict[str, Any] = {"B": 2, "H": 8, "Hk": 2, "Tq": 1, "Tk": 4000, "D": 64}
_MODIFIED: dict[str, Any] = {"softcap": 2.0, "alibi": True, "sinks": True}

# Enough work that seven threads are really used, and fewer tiles than threads in one of them.
LARGE = [
    Case("large", "", B=2, H=4, Tq=260, Tk=500, D=64),
    Case("large-group", "", **_CAUSAL_GROUP),
    Case("large-mask", "", B=3, H=2, Tq=200, Tk=300, D=64, mask="additive BHQK", window=(90, 40)),
    Case("large-decode", "", **_DECODE),
    Case("one-tile", "", H=1, Tq=20, Tk=3000, D=128),
    Case("large-softcap", "", B=2, H=4, Tq=260, Tk=500, D=64, softcap=2.0),
    Case("large-alibi", "", **_CAUSAL_GROUP, alibi=True),
    Case("large-position-bias", "", **_CAUSAL_GROUP, position_bias=128),
    Case("large-sinks", "", B=2, H=4, Tq=260, Tk=500, D=64, sinks=True),
    Case("large-modified", "", **_DECODE, **_MODIFIED, position_bias=600),
]

# First and last query of the parts that a case is computed in by itself.
SLICES = [(0, 1), (7, 8), (149, 150), (0, 5), (60, 69), (3, 19), (31, 95), (64, 128), (100, 150)]
_ROWS: dict[str, Any] = {"H": 2, "Tq": 150, "Tk": 333, "D": 40}
_GROUP: dict[str, Any] = {"H": 6, "Hk": 2, "Tq": 150, "Tk": 333, "D": 24}
_SHIFTED: dict[str, Any] = {"is_causal": True, "query_offset": 150}
ROW_CASES = [
    Case("rows", "", **_ROWS),
    Case("rows-causal", "", **_ROWS, is_causal=True, query_offset=100),
    Case("rows-window", "", **_ROWS, window=(70, 9), query_offset=50),
    Case("rows-group", "", **_GROUP, is_causal=True),
    Case("rows-bias", "", **_ROWS | {"D": 24}, mask="additive HQK"),
    Case("rows-mask", "", **_ROWS | {"D": 24}, mask="boolean HQK", **_SHIFTED),
    Case("rows-softcap", "", **_ROWS, softcap=2.0),
    Case("rows-softcap-group", "", **_GROUP, is_causal=True, softcap=2.0),
    Case("rows-alibi", "", **_ROWS, alibi=True, query_offset=100),
    Case("rows-alibi-group", "", **_GROUP, window=(70, 9), alibi=True, query_offset=50),
    Case("rows-position-bias", "", **_ROWS, position_bias=50, query_offset=100),
    Case("rows-position-bias-group", "", **_GROUP, window=(70, 9), position_bias=31),
    Case("rows-sinks", "", **_ROWS, sinks=True),
    Case("rows-sinks-group", "", **_GROUP, is_causal=True, sinks=True),
    Case("rows-modified", "", **_GROUP, mask="additive HQK", **_SHIFTED, **_MODIFIED, position_bias=90),
]
