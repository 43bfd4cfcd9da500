"""check_spills.py finds what it is there to find."""

import pytest
from check_spills import LEAST_PRODUCTS, short_peaks, spills

STRIP = "mha::avx512::(anonymous namespace)::ScoreKeys<float, 6, 4>::run(long)"
SPILL = "vmovaps 0x40(%rsp),%zmm1"


def disassembly(*, in_loop: list[str], before: str = "nop", after: str = "nop", name: str = STRIP) -> str:
    """A function whose loop has so many lines, the last of which jumps to the first."""
    lines = [f"0000000000000010 <{name}>:", f"  10:\t{before}"]
    lines += [f"  {0x20 + i:x}:\t{line}" for i, line in enumerate(in_loop)]
    lines += [f"  {0x20 + len(in_loop):x}:\tjne    20 <mha::avx512::strip()+0x10>", f"  f0:\t{after}", "  f1:\tret"]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "product",
    [
        "vfmadd231ps %zmm0,%zmm1,%zmm2",
        "vdpbf16ps %zmm0,%zmm1,%zmm2",
        "mulps %xmm0,%xmm1",
        "vpdpbusd %zmm0,%zmm1,%zmm2",
        "{vex} vpdpbusd %ymm0,%ymm1,%ymm2",
    ],
)
@pytest.mark.parametrize("spill", [SPILL, "vfmadd231ps 0x8(%rsp){1to16},%zmm0,%zmm2"])
def test_a_vector_on_the_stack_is_found_in_a_hot_loop(product: str, spill: str) -> None:
    (found,) = spills(disassembly(in_loop=[product] * LEAST_PRODUCTS + [spill]))
    assert found.startswith(STRIP)
    assert spill in found


@pytest.mark.parametrize("strip", ["AddValues", "WeightGradients", "AddFeatures", "MaxSimTokens", "ProjectStrip"])
def test_every_kind_of_strip_is_looked_at(strip: str) -> None:
    in_loop = ["vfmadd231ps %zmm0,%zmm1,%zmm2"] * LEAST_PRODUCTS + [SPILL]
    assert spills(disassembly(in_loop=in_loop, name=STRIP.replace("ScoreKeys", strip)))


def test_the_frame_pointer_is_one_only_if_it_is_set() -> None:
    in_loop = ["vfmadd231ps %zmm0,%zmm1,%zmm2"] * LEAST_PRODUCTS + ["vmovups %ymm1,-0x20(%rbp)"]
    assert spills(disassembly(in_loop=in_loop, before="mov %rsp,%rbp")) != []
    assert spills(disassembly(in_loop=in_loop)) == []


@pytest.mark.parametrize(
    "text",
    [
        disassembly(in_loop=["vfmadd231ps %zmm0,%zmm1,%zmm2"] * LEAST_PRODUCTS),
        disassembly(in_loop=["vfmadd231ps %zmm0,%zmm1,%zmm2"] * LEAST_PRODUCTS, before=SPILL, after=SPILL),
        disassembly(in_loop=["vfmadd231ps %zmm0,%zmm1,%zmm2"] * (LEAST_PRODUCTS - 1) + [SPILL]),  # not hot
        disassembly(in_loop=["vfmadd231ps %zmm0,%zmm1,%zmm2"] * LEAST_PRODUCTS + ["mov 0x8(%rsp),%rax"]),  # no vector
        disassembly(in_loop=["vfmadd231ps %zmm0,%zmm1,%zmm2"] * LEAST_PRODUCTS + [SPILL], name="mha::avx512::norm()"),
    ],
)
def test_what_costs_nothing_passes(text: str) -> None:
    assert spills(text) == []


def test_a_jump_from_seldom_needed_code_is_no_loop() -> None:
    work = ["vfmadd231ps %zmm0,%zmm1,%zmm2"] * LEAST_PRODUCTS + [SPILL]
    text = disassembly(in_loop=[*work, "ret"]).replace("jne    20", "jmp    20")
    assert spills(text) == []
    assert spills(disassembly(in_loop=work).replace("jne    20", "jmp    20")) != []


def test_the_outer_of_two_loops_is_not_hot() -> None:
    inner = ["vfmadd231ps %zmm0,%zmm1,%zmm2"] * LEAST_PRODUCTS
    lines = [
        f"0000000000000010 <{STRIP}>:",
        f"  10:\t{SPILL}",
        *(f"  {0x20 + i:x}:\t{line}" for i, line in enumerate(inner)),
    ]
    assert spills("\n".join([*lines, "  40:\tjne    20 <strip>", "  41:\tjne    10 <strip>"])) == []
    assert spills("\n".join([*lines, "  41:\tjne    10 <strip>"])) != []


@pytest.mark.parametrize(("register", "enough"), [("zmm", 16), ("ymm", 12)])
def test_a_measured_peak_has_more_sums_than_its_latency_needs(register: str, enough: int) -> None:
    name = "double mha::probes::(anonymous namespace)::multiply_add<float, mha::probes::Pairs>(long)"

    def findings(sums: int) -> list[str]:
        in_loop = [f"vfmadd213ps %{register}30,%{register}31,%{register}{i}" for i in range(sums)] * 2
        return short_peaks(disassembly(in_loop=in_loop, name=name))

    assert findings(enough) == []
    (found,) = findings(enough - 1)
    assert f"{enough - 1} independent sums" in found
