"""simulate_loops.py gives the cycles that follow from its numbers."""

import pytest
from check_spills import Instruction
from simulate_loops import GOLDEN_COVE, SHARED, ZEN4, Core, simulate, tile


def chains(count: int, length: int) -> list[Instruction]:
    """Chains of additions, one behind the other, each from its own register."""
    return [Instruction(0, "vaddps", f"%zmm0,%zmm{1 + c},%zmm{1 + c}") for c in range(count) for _ in range(length)]


@pytest.mark.parametrize(("core", "cycles"), [(GOLDEN_COVE, 12), (SHARED, 12), (ZEN4, 24)])
def test_a_register_tile_is_bound_by_its_products(core: Core, cycles: int) -> None:
    assert simulate(tile(6, 4), core) == pytest.approx(cycles, abs=0.1)


def test_what_is_added_to_itself_waits_for_its_latency() -> None:
    assert simulate(chains(1, 1), GOLDEN_COVE) == pytest.approx(4, abs=0.1)
    assert simulate(chains(8, 1), GOLDEN_COVE) == pytest.approx(4, abs=0.1)
    assert simulate(chains(12, 1), GOLDEN_COVE) == pytest.approx(6, abs=0.2)


def test_slow_loads_count_where_few_instructions_are_in_flight() -> None:
    """Little's law: 78 registers, 34 of them for each turn, are 2.3 turns, which last as long as a result takes."""
    assert simulate(tile(6, 4), GOLDEN_COVE, panel=30) == pytest.approx(12, abs=0.1)
    assert simulate(tile(6, 4), SHARED, panel=30) > 15
    assert simulate(tile(6, 4), SHARED._replace(registers=188, waiting=97), panel=30) == pytest.approx(12, abs=0.1)


def test_a_narrow_core_is_bound_by_its_width() -> None:
    width3 = GOLDEN_COVE._replace(width=3)
    assert simulate(tile(6, 4), width3) == pytest.approx(37 / 3, abs=0.1)
    assert simulate(tile(6, 4, prefetches=4), width3) == pytest.approx(41 / 3, abs=0.1)
