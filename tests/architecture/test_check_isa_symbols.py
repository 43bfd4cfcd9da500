"""check_isa_symbols.py finds what it is there to find."""

import pytest
from check_isa_symbols import leaks

OWN = [
    "0000000000000000 T _ZN3mha4avx25tableEv",
    "0000000000000010 W _ZNK3mha4avx24Tile4rowsEv",
    "0000000000000020 V _ZTVN3mha4avx24TileE",
    "0000000000000030 u _ZZN3mha4avx25tableEvE6kTable",
    "0000000000000038 u _ZGVZN3mha4avx25tableEvE6kTable",
    "0000000000000040 W _ZN14mha_eigen_avx28internal5ploadIDv8_fEET_PKf",
]
LOCAL = [
    "0000000000000060 t _ZN3mha7paddingEl",
    "0000000000000070 r _ZL9constants",
]
LEAKS = [
    "_ZN3mha7size_ofENS_5DTypeE",  # the inline function of a common header
    "_ZN3mha6avx5125tableEv",  # another instruction set's
    "_ZN5Eigen8internal5ploadIDv8_fEET_PKf",  # Eigen, not renamed
    "_ZSt4swapIfEvRT_S1_",  # the standard library
    "_ZN3mha13AttentionTileC1Ev",
    "_ZN16mha_eigen_avx5128internal5ploadIDv8_fEET_PKf",
    "table",
]


def test_the_instruction_sets_own_symbols_pass() -> None:
    assert leaks("\n".join(["kernels.cpp.o:", "", *OWN, *LOCAL]), "avx2") == []


@pytest.mark.parametrize("name", LEAKS)
@pytest.mark.parametrize("kind", ["T", "W", "V", "u", "w", "v", "B", "D", "R", "i"])
def test_a_visible_symbol_elsewhere_is_a_leak(name: str, kind: str) -> None:
    assert leaks("\n".join([*OWN, f"0000000000000080 {kind} {name}", *LOCAL]), "avx2") == [name]
