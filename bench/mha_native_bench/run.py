"""A run: chooses cases and contenders by the options, and measures one case after another."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import mha_native
from mha_native_bench.cases.case import Case
from mha_native_bench.cases.inputs import Inputs, copies, make_inputs
from mha_native_bench.cases.load import load_cases
from mha_native_bench.cases.oracle import oracle
from mha_native_bench.cases.sentence_model import Models
from mha_native_bench.contenders import PEERS, YARDSTICKS, Contender, Ours, Program, in_rotation, make_contender
from mha_native_bench.contenders.contender import CannotCompute, reason_to_skip
from mha_native_bench.errors import UserError
from mha_native_bench.machine import describe_machine
from mha_native_bench.measure.model_memory import measure_model_memory
from mha_native_bench.measure.overheads import measure_overheads
from mha_native_bench.measure.results import Results
from mha_native_bench.measure.rounds import Effort, WrongResult, check, race
from mha_native_bench.progress import Progress

FULL_ROUNDS, QUICK_ROUNDS = 9, 5

DEFAULT_CONTENDERS = ["read", *PEERS]  # without --peers


@dataclass(frozen=True)
class Plan:
    cases: list[Case]
    contenders: list[Contender]
    thread_counts: list[int]
    effort: Effort
    model: Path | None
    measures_overheads: bool


def prepare(options: Namespace) -> tuple[Plan, Results]:
    """What to run, and results that have no measurement yet.

    Raises
    ------
    UserError
    """
    try:
        mha_native.active_isa()
    except ValueError as error:  # MHA_NATIVE_ISA names an instruction set that is not available
        raise UserError(str(error)) from error
    absent: dict[str, str] = {}
    cases = chosen_cases(options, absent)
    contenders = chosen_contenders(options, absent)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS)
    effort = Effort(rounds)
    facts = describe_machine()
    facts.update({contender.name: contender.description() for contender in contenders})
    facts["effort"] = f"{rounds} rounds, turns of {effort.turn_seconds * 1e3:.0f} ms or one call"
    plan = Plan(cases, contenders, options.threads, effort, options.model, options.overheads)
    return plan, Results(facts, options.threads, absent)


def chosen_cases(options: Namespace, absent: dict[str, str]) -> list[Case]:
    """The cases of the options; `extra` cases run only if --cases names them."""
    cases = load_cases()
    if options.quick:
        cases = [case for case in cases if case.quick]
    if options.cases is not None:
        named = [case for case in cases if options.cases.search(case.name)]
        if not named:
            names = ", ".join(case.name for case in cases)
            raise UserError(f"--cases {options.cases.pattern}: no case matches; there are {names}")
        cases = named
    else:
        cases = [case for case in cases if not case.extra]
    for what, libraries, needing in (
        ("sentences", ("safetensors", "tokenizers"), [case for case in cases if case.kind == "sentences"]),
        ("images", ("safetensors", "PIL"), [case for case in cases if case.kind == "images"]),
        ("cases in bf16", ("ml_dtypes",), [case for case in cases if case.dtype == "bf16"]),
    ):
        missing = [library for library in libraries if find_spec(library) is None]
        if missing and needing:
            cases = [case for case in cases if case not in needing]
            absent[what] = f"not run, for lack of {' and '.join(missing)}"
    if not cases:
        raise UserError(f"nothing to run: {absent}")
    return cases


def chosen_contenders(options: Namespace, absent: dict[str, str]) -> list[Contender]:
    contenders: list[Contender] = [Ours(options.threads)]
    for name in DEFAULT_CONTENDERS if options.peers is None else options.peers:
        if name not in PEERS | YARDSTICKS:
            raise UserError(f"--peers {name}: there are {', '.join(PEERS | YARDSTICKS)}")
        try:
            contenders.append(make_contender(name, options.threads))
        except ImportError as error:
            if options.peers is not None:
                raise UserError(f"--peers {name}: {error}") from error
            absent[name] = f"not installed ({error})"
    return contenders


def run(plan: Plan, results: Results) -> None:
    """Adds one case after another to `results`; if it is interrupted, those that it has measured remain.

    Raises
    ------
    UserError
    """
    memory = []
    with Models(plan.model) as models, Progress(len(plan.cases)) as progress:
        for case in plan.cases:
            progress.begin(case.name)
            try:
                inputs = make_inputs(case, models.directory(case))
            except (OSError, ValueError) as error:
                raise UserError(f"--model: {error}") from error
            programs, cannot = programs_of(case, inputs, plan)
            try:
                measurement = check(case, programs, oracle(case, inputs), cannot)
            except WrongResult as error:
                results.wrong.append(str(error))
                progress.say(f"wrong: {error}")
                continue
            results.started.append(measurement)
            try:
                race(measurement, plan.effort, progress.advance)
            finally:
                measurement.release()
            if mha_native.last_used_isa() != mha_native.active_isa():
                results.wrong.append(f"{case.name} ran on {mha_native.last_used_isa()}")
            if case.kind == "sentences" and not case.texts and plan.measures_overheads:
                ran = dict.fromkeys((one.contender, one.threads) for one in programs)
                of_models = [key for key in ran if key[0] not in YARDSTICKS]
                memory += [found for key in of_models for found in measure_model_memory(*key, case, inputs.model)]
    if plan.measures_overheads:
        results.overheads = measure_overheads(plan.thread_counts, plan.effort, memory)


def programs_of(case: Case, inputs: Inputs, plan: Plan) -> tuple[list[Program], dict[str, str]]:
    """The programs of all contenders, and the reasons of those that cannot compute the case."""
    arrays = copies(case, inputs)
    programs: list[Program] = []
    cannot: dict[str, str] = {}
    for threads in plan.thread_counts:
        for contender in plan.contenders:
            if reason := reason_to_skip(case, contender):
                if contender.name in PEERS:
                    cannot[contender.name] = reason
                continue
            try:
                of_copies = [contender.programs(case, copy, threads) for copy in arrays]
            except CannotCompute as why:
                cannot[contender.name] = str(why)
            else:
                programs += [in_rotation(list(same)) for same in zip(*of_copies, strict=True)]
    return programs, cannot
