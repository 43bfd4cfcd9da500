"""How much memory a model takes beyond its weights, while it embeds a batch of texts."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import mha_native
from mha_native_bench.cases.case import Case
from mha_native_bench.cases.inputs import make_inputs
from mha_native_bench.cases.load import load_cases
from mha_native_bench.contenders import make_contender
from mha_native_bench.wording import counted


@dataclass(frozen=True)
class ModelMemory:
    """The most memory that is resident during a call, in bytes, less a state before it.

    `beyond_weights`: less what was resident before the model was loaded, and less the file of its weights. Second
    copies of weights, the tokenizer and what loading leaves behind count; code of libraries does not. `of_call`: less
    what was resident after the model was loaded and had embedded a short text. Pages of weights that the call reads
    for the first time count.
    """

    contender: str
    case: str
    threads: int
    beyond_weights: int
    of_call: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """The figures as a line of the report."""
        beyond, of_call = self.beyond_weights / 2**20, self.of_call / 2**20
        which = f"{self.contender}, {self.case}, {counted(self.threads, 'thread')}"
        return f"Memory of {which}: {beyond:.1f} MiB beyond weights, {of_call:.1f} MiB of it for the call"


def measure_model_memory(contender: str, threads: int, case: Case, model: Path) -> list[ModelMemory]:
    """Measures in a process of its own, as memory that was freed may stay resident.

    Empty where the system does not report it, and for ONNX Runtime, whose graph is built in the process and not read
    from a file.
    """
    if contender == "onnxruntime" or not Path("/proc/self/clear_refs").exists():
        return []
    given = [contender, str(threads), case.name, str(model), mha_native.active_isa()]
    command = [sys.executable, "-m", __name__, *given]
    return [ModelMemory(**json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))]


def measure_here(name: str, threads: int, case: Case, model: Path) -> ModelMemory:
    contender = make_contender(name, [threads])
    inputs = make_inputs(case, model)
    short = replace(case, B=1, Tq=8, Tk=8, shortest=8)
    short_inputs = make_inputs(short, model)
    for library in ("safetensors.numpy", "tokenizers"):  # imported late by mha_native, and already by peers
        import_module(library)
    before = resident_bytes("VmRSS")
    first = contender.programs(short, short_inputs, threads)[0]
    with first.turn():
        first.run()
    loaded = resident_bytes("VmRSS")
    program = contender.programs(case, inputs, threads)[0]
    with program.turn():
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # sets the peak to what is resident now
        program.run()
    most = resident_bytes("VmHWM")
    weights = (model / "model.safetensors").stat().st_size
    return ModelMemory(name, case.name, threads, most - before - weights, most - loaded)


def resident_bytes(field: str) -> int:
    """VmRSS: resident now; VmHWM: the peak so far."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    _, name, threads, case_name, model, isa = sys.argv
    mha_native.use_isa(isa)
    [chosen] = [case for case in load_cases() if case.name == case_name]
    print(json.dumps(measure_here(name, int(threads), chosen, Path(model)).as_json()))
