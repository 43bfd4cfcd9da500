"""Fail if a register tile of an instruction set's object does not stay in registers.

The accumulators of a tile fill the registers. One value too many, and the compiler moves some of them to the stack and
back in every turn of the loop: nothing is wrong, but it is slower by a third. Looked at are the strips around
`PacketTile` (packet_tile.hpp), there the innermost loops with many multiply-adds. Run by ctest on each kernel
object.

The loops that measure the peak (cpp/probes/loops.cpp) are looked at, too. They need more independent sums than hide the
latency of a multiply-add: with fewer the result is lower than the peak and differs from run to run.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LEAST_PRODUCTS = 8  # in a turn of a hot loop: chains that hide the latency of a multiply-add

# Not of the exact stand-ins for VPDPBUSD: a turn of theirs has two vectors for each, more than there are registers.
PRODUCT = re.compile(r"v?(fn?m(add|sub)\d*|mul)[ps][sd]|vdpbf16ps|vpdpbusd")
ATTENTION = "ScoreKeys|MaxSimTokens|AddValues|MergeValues|WeightGradients|AddFeatures"
PEAK = re.compile(r"probes::.*::multiply_add<")
STRIP = re.compile(rf"::({ATTENTION}|ProjectStrip|PairsStrip|Int[48]WeightsStrip|ExpandedRows)<|{PEAK.pattern}")
VECTOR = re.compile(r"%[xyz]mm")
# Two pipes with a latency of six, VDPBF16PS on Zen 5, need twelve sums; where registers allow it, a third more.
LEAST_SUMS, LEAST_SUMS_IN_32_REGISTERS = 12, 16
HEADING = re.compile(r"[0-9a-f]+ <(.+)>:$")
LINE = re.compile(r"\s*([0-9a-f]+):\s+(?:\{vex\} )?(\S+)\s*(.*)")  # of two encodings objdump names the one meant


class Instruction(NamedTuple):
    address: int
    name: str
    operands: str


def functions(disassembly: str) -> Iterator[tuple[str, list[Instruction]]]:
    """Names and instructions, from the output of ``objdump -d --no-show-raw-insn``."""
    name, body = "", []
    for line in disassembly.splitlines():
        if heading := HEADING.match(line):
            yield name, body
            name, body = heading[1], []
        elif found := LINE.match(line):
            body.append(Instruction(int(found[1], 16), found[2], found[3]))
    yield name, body


def innermost_loops(body: list[Instruction]) -> Iterator[list[Instruction]]:
    """What lies between a jump backwards and its target, unless another such jump does, too, or the function returns
    there: then the jump leads from code that is seldom needed, at the end, to the place where it goes on."""
    begin_of = {instruction.address: i for i, instruction in enumerate(body)}
    ends = []
    for i, instruction in enumerate(body):
        target = re.match(r"([0-9a-f]+)\b", instruction.operands)
        if instruction.name.startswith("j") and target:
            begin = begin_of.get(int(target[1], 16), i + 1)
            returns = instruction.name == "jmp" and any(one.name == "ret" for one in body[begin : i + 1])
            if begin <= i and not returns:
                ends.append((begin, i))
    for begin, end in ends:
        if not any(begin <= first and last <= end and (first, last) != (begin, end) for first, last in ends):
            yield body[begin : end + 1]


def hot_loops(disassembly: str) -> Iterator[tuple[str, list[Instruction], list[Instruction]]]:
    """The name of a strip, all of it, and the loop."""
    for name, body in functions(disassembly):
        for loop in innermost_loops(body) if STRIP.search(name) else ():
            if sum(bool(PRODUCT.fullmatch(one.name)) for one in loop) >= LEAST_PRODUCTS:
                yield name, body, loop


def stack_of(body: list[Instruction]) -> re.Pattern[str]:
    """Addresses on the stack; the frame pointer is any other register where the function does not set it."""
    has_frame = any(one.name == "mov" and one.operands == "%rsp,%rbp" for one in body)
    return re.compile(r"\(%r[sb]p" if has_frame else r"\(%rsp")


def spills(disassembly: str) -> list[str]:
    """The strips that have a hot loop in which a vector is on the stack, with the first such instruction."""
    found = []
    for name, body, loop in hot_loops(disassembly):
        stack = stack_of(body)
        on_stack = [one for one in loop if stack.search(one.operands) and VECTOR.search(one.operands)]
        if on_stack:
            found.append(f"{name}: {on_stack[0].name} {on_stack[0].operands}, {len(on_stack)} of {len(loop)}")
    return found


def short_peaks(disassembly: str) -> list[str]:
    """The loops that measure the peak with too few independent sums, with their number."""
    found = []
    for name, _, loop in hot_loops(disassembly):
        if PEAK.search(name):
            products = [one.operands for one in loop if PRODUCT.fullmatch(one.name)]
            sums = {operands.rsplit(",", 1)[-1] for operands in products}
            least = LEAST_SUMS_IN_32_REGISTERS if "%zmm" in "".join(products) else LEAST_SUMS
            if len(sums) < least:
                found.append(f"{name}: {len(sums)} independent sums, fewer than {least}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objdump", default="objdump")
    parser.add_argument("objects", nargs="+", type=Path)
    arguments = parser.parse_args()

    failed = False
    for path in arguments.objects:
        command = [arguments.objdump, "-d", "-C", "--no-show-raw-insn", str(path)]
        disassembly = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        if not any(hot_loops(disassembly)):
            print(f"{path}: no hot loop")
            failed = True
        for finding in spills(disassembly) + short_peaks(disassembly):
            print(f"{path}: {finding}")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
