"""How many cycles a turn of a hot loop takes on processors that are not there.

Instructions of a loop, from an object or of a register tile of any shape, pass through a core of a few numbers: it
takes so many a cycle in order, while it has room for them, gives each to the port that has the least to do, starts
what has its operands, and forgets in order. Not in it: how instructions are fetched, caches (how long loads take is an
argument), which lines a prefetch brings, mispredicted jumps, and who else uses the ports. docs/decisions/0025 says what
it was made for and how far it is right.

    python tests/architecture/simulate_loops.py --tiles 6x4 12x2 8x3 14x2 28x1
    python tests/architecture/simulate_loops.py $(find build/dev -path '*kernels_avx512.dir*' -name kernels.cpp.o)
"""

import argparse
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from check_spills import Instruction, functions, innermost_loops

HOT = r"(ProjectStrip|ScoreKeys|MergeValues)<\S+ \S+PacketProducts<float>, 6, 4"
EXPONENTIALS = r"weights_in_place<.*Float16, float>"  # those of float are the same loop, inlined

PRODUCT, ADDITION, SCALAR, LOAD, STORE = "product", "addition", "scalar", "load", "store"
Ports = dict[str, tuple[int, ...]]
VECTOR = re.compile(r"%[xyz]mm(\d+)")


class Core(NamedTuple):
    name: str
    width: int  # instructions a cycle, to take and to forget
    in_flight: int
    registers: int  # vectors that wait for a result or to be forgotten
    waiting: int  # for operands
    waiting_loads: int
    ports: Ports
    busy: int  # cycles that a vector of 512 bits keeps a port
    rounding: int  # operations of VRNDSCALEPS
    level1: int = 8  # cycles from the start of a load to its use


# Ports, rates and latencies: the schedules of LLVM 19 (512-bit FMA: that of skylake-avx512, since that of
# sapphirerapids has one port for it, where the processor has two). Sizes are what is commonly said of these cores, and
# were not checked, but for that of the file of registers,
# 220 of 512 bits, "Golden Cove's Vector Register File: Checking with Official (SPR) Data", chipsandcheese.com, 2023.
# 32 of the registers hold what was last written.
ZEN4_PORTS: Ports = {PRODUCT: (0, 1), ADDITION: (2, 3), SCALAR: (4, 5, 6, 7), LOAD: (8, 9), STORE: (10,)}
GOLDEN_COVE_PORTS: Ports = {PRODUCT: (0, 5), ADDITION: (0, 5), SCALAR: (0, 1, 5, 6, 10), LOAD: (2, 3), STORE: (4,)}
ZEN4 = Core("Zen 4", 6, 320, 160, 64, 64, ZEN4_PORTS, 2, 1)
GOLDEN_COVE = Core("Golden Cove", 6, 512, 188, 97, 70, GOLDEN_COVE_PORTS, 1, 2)
# Beside an awake neighbour on the other hardware thread: half of all that is divided. That registers are is assumed.
SHARED = GOLDEN_COVE._replace(name="shared", in_flight=256, registers=78, waiting=48, waiting_loads=35)


class Operation(NamedTuple):
    kind: str
    latency: int
    reads: tuple[str, ...] = ()
    writes: str = ""
    slot: bool = True  # whether it takes a place of the width of the core: a load within another instruction does not
    is_panel: bool = False  # a load of a whole vector, from the panel


def operations(loop: list[Instruction], core: Core) -> list[Operation]:
    """What a core does for the instructions of a turn. Sums of addresses are never waited for."""
    found = []
    for one in loop:
        name, operands = one.name, one.operands.split(" <")[0]
        in_memory = "(" in operands
        vectors = [f"v{number}" for number in VECTOR.findall(operands)]
        if name.startswith("j") and found and found[-1].kind == SCALAR:
            continue  # a comparison and its jump are one
        if name.startswith("prefetch"):
            found.append(Operation(LOAD, 1))
        elif not vectors:
            found.append(Operation(SCALAR, 1))
        elif name.startswith("vmov") and operands.endswith(")"):
            found.append(Operation(STORE, 1, (vectors[0],)))
        elif name.startswith(("vmov", "vbroadcast")):
            if in_memory:
                found.append(Operation(LOAD, core.level1, (), vectors[-1], True, name.startswith("vmov")))
            else:
                found.append(Operation("", 0, (vectors[0],), vectors[-1]))
        else:
            if in_memory:
                found.append(Operation(LOAD, core.level1, (), "memory", False))
            kind = PRODUCT if name.startswith(("vfm", "vfnm", "vmul")) else ADDITION
            reads = (*vectors[:-1], *(["memory"] * in_memory), *([vectors[-1]] * name.startswith(("vfm", "vfnm"))))
            if name.startswith("vrndscale") and core.rounding == 2:
                found.append(Operation(kind, 4, reads, "half"))
                reads = ("half",)
            found.append(Operation(kind, 4, reads, vectors[-1]))
    return found


def simulate(loop: list[Instruction], core: Core, panel: int = 0, turns: int = 150) -> float:
    """Cycles of a turn; loads of whole vectors take `panel` cycles, if that is given."""
    turn = operations(loop, core)
    if panel:
        turn = [one._replace(latency=panel) if one.is_panel and one.kind == LOAD else one for one in turn]
    all_of_them, needs, last_writer = turn * turns, [], dict[str, int]()
    for i, one in enumerate(all_of_them):
        needs.append([last_writer[read] for read in one.reads if read in last_writer])
        if one.kind:
            last_writer[one.writes] = i
        elif one.reads[0] in last_writer:  # a move between registers is a matter of names
            last_writer[one.writes] = last_writer[one.reads[0]]
        else:
            last_writer.pop(one.writes, None)

    never = 1 << 60
    done, taken, port = [never] * len(all_of_them), [0] * len(all_of_them), [0] * len(all_of_them)
    free = Counter[int]()  # when a port is free
    queued = Counter[int]()
    waiting: list[int] = []
    first = last = now = registers = loads = 0  # what is in flight is [first, last)
    ends = []
    while first < len(all_of_them):
        for _ in range(core.width):
            if first == last or done[first] > now:
                break
            registers -= bool(all_of_them[first].kind and all_of_them[first].writes)
            first += 1
            if first % len(turn) == 0:
                ends.append(now)
        for i in waiting[:]:
            one = all_of_them[i]
            if now < taken[i] + 3 or now < free[port[i]] or any(done[need] > now for need in needs[i]):
                continue
            is_wide = one.kind in (PRODUCT, ADDITION, LOAD, STORE)
            free[port[i]] = now + (core.busy if is_wide else 1)
            done[i] = now + one.latency
            queued[port[i]] -= 1
            loads -= one.kind == LOAD
            waiting.remove(i)
        slots = core.width
        while last < len(all_of_them) and last - first < core.in_flight:
            one = all_of_them[last]
            if slots < one.slot or (one.writes and registers >= core.registers):
                break
            if loads >= core.waiting_loads if one.kind == LOAD else len(waiting) - loads >= core.waiting:
                break
            if one.kind:
                port[last] = min(core.ports[one.kind], key=lambda number: queued[number])
                queued[port[last]] += 1
                waiting.append(last)
            else:
                done[last] = now
            taken[last] = now
            registers += bool(one.kind and one.writes)
            loads += one.kind == LOAD
            slots -= one.slot
            last += 1
        now += 1
    begin = turns // 3
    return (ends[-2] - ends[begin]) / (len(ends) - 2 - begin)


def tile(rows: int, vectors: int, prefetches: int = 0) -> list[Instruction]:
    """A turn of a register tile: a row of the panel, and each row's number by each vector of it."""
    lines = [("vmovaps", f"({64 * j})(%rax),%zmm{j}") for j in range(vectors)]
    lines += [("prefetcht0", "(%rax)")] * prefetches
    for i in range(rows):
        lines += [("vbroadcastss", f"(%rcx,%r{i}),%zmm{vectors}")]
        lines += [("vfmadd231ps", f"%zmm{j},%zmm{vectors},%zmm{100 + i * vectors + j}") for j in range(vectors)]
    lines += [("add", "%rbx,%rcx"), ("add", "$256,%rax"), ("cmp", "%rax,%rdx"), ("jne", "0")]
    return [Instruction(0, *line) for line in lines]


def loops_of(path: Path, objdump: str, wanted: str) -> list[tuple[str, list[Instruction]]]:
    """The hottest loop of each function whose name fits, without copies of the same one."""
    command = [objdump, "-d", "-C", "--no-show-raw-insn", str(path)]
    disassembly = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, list[Instruction]] = {}
    for name, body in functions(disassembly):
        if fitting := re.search(wanted, name):
            products = [(sum(one.name.startswith("vfm") for one in loop), loop) for loop in innermost_loops(body)]
            most = max((loop for loop in products), key=lambda loop: loop[0] if len(loop[1]) < 100 else 0)[1]
            short = re.sub(r"mha::\w+::|\(anonymous namespace\)::|\w+Products<float>, ", "", name[fitting.start() :])
            found.setdefault(re.sub(r"(>::run)?\(.*", "", short), most)
    return list(found.items())


COLUMNS: list[tuple[str, Callable[[list[Instruction]], float]]] = [
    ("Zen 4", lambda loop: simulate(loop, ZEN4)),
    ("Golden C.", lambda loop: simulate(loop, GOLDEN_COVE)),
    ("L2", lambda loop: simulate(loop, GOLDEN_COVE, 16)),
    ("30", lambda loop: simulate(loop, GOLDEN_COVE, 30)),
    ("shared", lambda loop: simulate(loop, SHARED)),
    ("L2", lambda loop: simulate(loop, SHARED, 16)),
    ("24", lambda loop: simulate(loop, SHARED, 24)),
    ("30", lambda loop: simulate(loop, SHARED, 30)),
    ("half width", lambda loop: simulate(loop, SHARED._replace(width=3))),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objdump", default="objdump")
    parser.add_argument("--loops", default=f"{HOT}|{EXPONENTIALS}", help="functions, as a regular expression")
    parser.add_argument("--tiles", nargs="+", default=[], help="ROWSxVECTORS, with prefetches ROWSxVECTORSxNUMBER")
    parser.add_argument("objects", nargs="*", type=Path)
    arguments = parser.parse_args()

    loops = [(text, tile(*map(int, text.split("x")))) for text in arguments.tiles]
    for path in arguments.objects:
        loops += loops_of(path, arguments.objdump, arguments.loops)
    print("Cycles of a turn; L2, 24, 30: rows of the panel take 16, 24 or 30 cycles to come, not 8")
    print(f"{'loop':42}{'FMA':>4}{'ops':>5}{'loads':>6}{'slots':>6}" + "".join(f"{name:>11}" for name, _ in COLUMNS))
    for name, loop in loops:
        kinds = Counter(one.kind for one in operations(loop, GOLDEN_COVE))
        slots = sum(one.slot for one in operations(loop, GOLDEN_COVE))
        products = sum(one.name.startswith("vfm") for one in loop)
        cycles = "".join(f"{count(loop):11.1f}" for _, count in COLUMNS)
        print(f"{name:42}{products:4}{kinds[PRODUCT] + kinds[ADDITION]:5}{kinds[LOAD]:6}{slots:6}{cycles}")


if __name__ == "__main__":
    main()
