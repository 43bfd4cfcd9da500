"""A run: which cases and contenders it chooses, and what it does with wrong results."""

from __future__ import annotations

import dataclasses
import re
from argparse import Namespace

import pytest

from mha_native_bench import run
from mha_native_bench.cases.case import Case
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.contenders import Contender, Ours, Program
from mha_native_bench.contenders.contender import CannotCompute
from mha_native_bench.errors import UserError
from mha_native_bench.measure.results import Results
from mha_native_bench.measure.rounds import Effort
from mha_native_bench.options import parse

SMALL = Case("small", "sdpa", "f32", B=1, H=2, Hk=2, Tq=3, Tk=3, D=8, E=0, causal=False)
CAPPED = dataclasses.replace(SMALL, name="capped", softcap=2.0)


class Fake(Contender):
    """Has no softcap, and returns the sum of its inputs."""

    name = "torch"

    def description(self) -> str:
        return "of paper"

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if case.softcap is not None:
            raise CannotCompute("no softcap")
        return [Program(self.name, threads, lambda: sum(inputs.arrays))]


def plan_of(*cases: Case) -> run.Plan:
    effort = Effort(rounds=2, turn_seconds=0, rest_seconds=0)
    return run.Plan(list(cases), [Ours([1, 2]), Fake([1, 2])], [1, 2], effort, model=None, measures_overheads=False)


def test_a_wrong_program_and_one_that_cannot_leave_the_others_in_place() -> None:
    results = Results({}, [1, 2], {})
    run.run(plan_of(SMALL, CAPPED), results)
    assert [measurement.case for measurement in results.measurements] == [CAPPED]
    assert results.measurements[0].cannot == {"torch": "no softcap"}
    assert [cell.peers for cell in results.cells] == [{}, {}]
    [wrong] = results.wrong
    assert re.match("small: torch with 1 threads is off by .* from the float64 oracle", wrong)


def chosen(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    quick = dataclasses.replace(SMALL, name="quick", quick=True)
    extra = dataclasses.replace(SMALL, name="extra", extra=True)
    monkeypatch.setattr(run, "load_cases", lambda: [SMALL, quick, extra])
    options: Namespace = parse(list(arguments))
    return [case.name for case in run.chosen_cases(options, {})]


def test_which_cases_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch) == ["small", "quick"]
    assert chosen(monkeypatch, "--quick") == ["quick"]
    assert chosen(monkeypatch, "--cases", "a") == ["small", "extra"]
    with pytest.raises(UserError, match=r"no case matches; there are quick$"):
        chosen(monkeypatch, "--quick", "--cases", "extra")


def test_yardsticks_run_if_they_are_named() -> None:
    absent: dict[str, str] = {}
    names = [contender.name for contender in run.chosen_contenders(parse([]), absent)]
    assert names[:2] == ["mha_native", "read"]
    assert not {"against", "padded"} & {*names, *absent}
    asked = run.chosen_contenders(parse(["--peers", "against,padded"]), absent)
    assert [contender.name for contender in asked] == ["mha_native", "against", "padded"]


def test_a_case_of_texts_is_for_those_that_take_texts() -> None:
    pytest.importorskip("safetensors")
    pytest.importorskip("tokenizers")
    texts = dataclasses.replace(
        SMALL, name="texts", kind="sentences", B=2, Tq=5, Tk=5, E=16, F=8, activation="gelu", shortest=3, texts=True
    )
    results = Results({}, [1, 2], {})
    run.run(plan_of(texts), results)
    assert results.wrong == []
    assert results.measurements[0].cannot == {"torch": "begins with tokens"}
    with pytest.raises(ValueError, match="texts are for sentences of 3 tokens or more"):
        dataclasses.replace(texts, shortest=2)
